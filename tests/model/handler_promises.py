"""The promises for messages that handlers handle in batches, in every state."""

from __future__ import annotations

import json
from dataclasses import dataclass

from timeoutmgr.message.message import Message

from .promises import Promise, PromiseBroken
from .world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerPromises:
    """The promises for the messages *sent*: each handler has one effect and sends one message.

    *is_scope* says that the effect, the send and the acknowledgement are one transaction; without
    it the send is the only effect. The handler of *rejected* fails each time.
    """

    sent: tuple[str, ...]
    is_scope: bool
    rejected: str | None = None

    def delivered(self, world: World, message: Message) -> World:
        """Record a message that a handler sent, if the handler may have sent it now."""
        name: str = json.loads(message.body)["cause"]
        known = world.handling.sent_ids
        if known.get(name, message.id) != message.id:
            raise PromiseBroken(Promise.SAME_ID, f"the handler of {name} repeats with a new id")
        times = world.times_delivered(name) + 1
        if times > 1 + self._repeats(world, name):
            raise PromiseBroken(
                Promise.NO_REPEAT_WITHOUT_CRASH, f"the handler of {name} sends {times} times"
            )
        handling = world.handling._replace(sent_ids=known.having(name, message.id))
        delivered = world.delivered.having((name, world.now), times)
        return world._replace(delivered=delivered, handling=handling)

    def check(self, world: World) -> None:
        """Check one state."""
        waiting = {held.copy.serial for held in world.held.values()}
        waiting |= {copy.serial for queue in world.queues.values() for copy in queue}
        for serial, name in enumerate(self.sent):
            self._check_failed(world, name)
            if self.is_scope:
                self._check_scope(world, name, serial in waiting)
            elif serial not in waiting and not self._ends(world, name):
                raise PromiseBroken(Promise.NEVER_LOST, f"{name} is acknowledged, and not handled")

    def check_end(self, world: World) -> None:
        """Check that no message is on its way at a fair end; ``check`` judges the others."""
        if world.held or any(world.queues.values()):
            raise PromiseBroken(Promise.NEVER_LOST, "at a fair end a message is still on its way")

    def _repeats(self, world: World, name: str) -> int:
        if self.is_scope:
            return 0
        return world.handling.interrupted.get(name, 0) + world.unknowns

    def _ends(self, world: World, name: str) -> int:
        copies = world.handling.error_copies.get(name, 0)
        return copies if name == self.rejected else world.times_delivered(name)

    def _check_failed(self, world: World, name: str) -> None:
        copies = world.handling.error_copies.get(name, 0)
        if name != self.rejected:
            if copies:
                raise PromiseBroken(Promise.FAILS_ALONE, f"{name} is sound, and has an error copy")
            return
        if world.handling.effects.get(name, 0) or world.times_delivered(name):
            raise PromiseBroken(Promise.FAILS_ALONE, f"{name} failed, and has an effect")
        if copies > 1 + self._repeats(world, name):
            raise PromiseBroken(
                Promise.NO_REPEAT_WITHOUT_CRASH, f"{name} has {copies} error copies"
            )

    def _check_scope(self, world: World, name: str, waits: bool) -> None:
        """Check that the effects of *name* are there once it is acknowledged, and not before."""
        ends, effects = self._ends(world, name), world.handling.effects.get(name, 0)
        if name != self.rejected and effects != ends:
            raise PromiseBroken(
                Promise.EXACTLY_ONCE, f"{name} has {effects} effects and {ends} sends"
            )
        if waits and ends:
            raise PromiseBroken(Promise.EXACTLY_ONCE, f"{name} is handled, and not acknowledged")
        if not waits and not ends:
            raise PromiseBroken(Promise.NEVER_LOST, f"{name} is acknowledged, and not handled")
