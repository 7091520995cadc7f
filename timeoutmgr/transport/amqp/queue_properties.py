"""The properties of a queue on RabbitMQ, and which of them drop accepted messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_KEEPS_WHAT_IT_HAS: Final = frozenset({"reject-publish", "reject-publish-dlx"})
"""Overflow modes of a full queue that refuse the newcomer, and so lose nothing accepted."""

_DEFAULT_LIMIT: Final = 20
"""Deliveries after which a quorum queue of RabbitMQ 4 gives a message up, if nothing says else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """Properties of a queue's declaration; the *policy* for it has names without ``x-``."""

    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The queue's type: classic, quorum or stream."""
        return str(self.arguments.get("x-queue-type", "classic"))

    def delivery_limit(self, server_version: tuple[int, ...]) -> int | None:
        """Return after how many deliveries a message is given up, None for never."""
        if self.kind != "quorum":
            return None
        given = (self.arguments.get("x-delivery-limit"), self.policy.get("delivery-limit"))
        limits = [each for each in given if isinstance(each, int)]
        if not limits:
            return _DEFAULT_LIMIT if server_version >= (4,) else None
        return min((each for each in limits if each >= 0), default=None)

    def losses(self) -> tuple[str, ...]:
        """Return a sentence for each property by which messages are lost."""
        return (*self._own_losses(), *self._shared_losses())

    def _own_losses(self) -> Iterator[str]:
        if not self.durable:
            yield "durable is false: a restart of the broker deletes the queue"
        if self.auto_delete:
            yield "auto_delete is true: the queue goes with its last consumer"
        if self.exclusive:
            yield "exclusive is true: the queue goes with the connection that declared it"
        if self.kind == "stream":
            yield "x-queue-type is 'stream': a stream never settles a message, it ages it out"

    def _shared_losses(self) -> Iterator[str]:
        for name, consequence in (
            ("expires", "the broker deletes the queue when no consumer was there for so long"),
            ("message-ttl", "the broker removes a message that waits for longer"),
        ):
            yield from (f"{each}: {consequence}" for each in self._set(name))
        if self._overflow() in _KEEPS_WHAT_IT_HAS:
            return
        for name in ("max-length", "max-length-bytes"):
            for each in self._set(name):
                yield f"{each}: a full queue drops its oldest message ({self._overflow()})"

    def _set(self, name: str) -> Iterator[str]:
        if self.arguments.get(f"x-{name}") is not None:
            yield f"x-{name} is {self.arguments[f'x-{name}']}"
        if self.policy.get(name) is not None:
            yield f"a policy sets {name} to {self.policy[name]}"

    def _overflow(self) -> str:
        # An argument of the queue wins over a policy here; for limits the lower value counts.
        found = self.arguments.get("x-overflow") or self.policy.get("overflow")
        return str(found or "drop-head")
