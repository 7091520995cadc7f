"""Checks that existing RabbitMQ queues keep messages, through AMQP and the management API.

AMQP has no method that reads a queue's properties. But if a declaration differs from the queue, the
broker answers with the differing property and its value. So the probe declares, adopts the value in
the answer, and declares again, until the broker finds no difference.

A probe never creates a queue, even if the queue vanishes meanwhile: each declaration carries an
argument of streams that RabbitMQ (3.9 and later) compares only on streams, and refuses for a new
queue of any type: for a stream because of its value, otherwise because of its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from amqp.exceptions import AccessRefused, PreconditionFailed, ResourceLocked

from timeoutmgr.contracts import QueueReport
from timeoutmgr.transport.amqp import topology
from timeoutmgr.transport.amqp.management import ManagementApi, Unanswered
from timeoutmgr.transport.queue_view import QueueProperties

OLDEST: Final = (3, 9)
"""The first version of RabbitMQ that refuses a new queue with the probe's argument."""

_NEVER_CREATES: Final = {"x-max-age": "?"}
_MOST_DIFFERENCES: Final = 20
_TYPE: Final = "x-queue-type"
_DIFFERS: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .* but current is "
    r"(?:(?P<none>none)|the value '(?P<typed>.*)' of type '(?P<type>\w+)'|'(?P<plain>.*)')$",
    re.DOTALL,
)
_INVALID: Final = re.compile(r"invalid (?:arg|type) ")


class UnreadableProperties(Exception):
    """The broker does not show the properties of a queue; the text says why."""


def probe(channel: Any, name: str, expected: Mapping[str, object]) -> QueueProperties | None:
    """Return the properties of queue *name*, or None if there is no such queue.

    *expected* are the arguments to begin with: the closer they are, the fewer questions. Raises
    UnreadableProperties. The broker closes the channel over most questions; py-amqp opens it again.
    """
    asked = _Question(expected)
    for _ in range(_MOST_DIFFERENCES):
        try:
            channel.queue_declare(
                name,
                durable=asked.durable,
                auto_delete=asked.auto_delete,
                arguments=asked.arguments | _NEVER_CREATES,
            )
        except PreconditionFailed as error:
            if _INVALID.search(error.reply_text):
                return None  # deleted since the check that it exists
            asked.correct(error.reply_text)
        except ResourceLocked:
            return QueueProperties(exclusive=True)
        except AccessRefused as error:
            raise UnreadableProperties(
                f"the broker's user has no configure permission for {name!r}"
            ) from error
        else:
            return asked.answered()
        if asked.arguments.get(_TYPE) == "stream":
            return asked.answered()  # the probe's argument is an argument of streams
    raise UnreadableProperties(
        f"queue {name!r} differs in more than {_MOST_DIFFERENCES} properties"
    )


class _Question:
    """The properties of the next declaration."""

    def __init__(self, expected: Mapping[str, object]) -> None:
        self.durable = True
        self.auto_delete = False
        self.arguments: dict[str, object] = dict(expected)

    def correct(self, answer: str) -> None:
        """Adopt the value in *answer*."""
        found = _DIFFERS.search(answer)
        if found is None:
            raise UnreadableProperties(f"the broker's answer is not understood: {answer!r:.300}")
        name, plain = found["name"], found["plain"]
        if name in ("durable", "auto_delete"):
            setattr(self, name, plain == "true")
        elif found["none"]:
            self.arguments.pop(name, None)
        elif plain is not None:
            self.arguments[name] = _of_type(type(self.arguments.get(name)).__name__, plain)
        else:
            self.arguments[name] = _of_type(found["type"], found["typed"])

    def answered(self) -> QueueProperties:
        """Return the properties, which the broker has confirmed."""
        return QueueProperties(
            durable=self.durable, auto_delete=self.auto_delete, arguments=self.arguments
        )


def _of_type(kind: str, text: str) -> object:
    """Return the value that *text* spells; *kind* is a type of AMQP or Python."""
    if kind in ("longstr", "str"):
        return text
    if kind in ("bool", "boolean"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        raise UnreadableProperties(
            f"the broker tells a value of type {kind}: {text!r:.80}"
        ) from None


class QueueInspection:
    """Inspects queues one by one; *expected* are the arguments of a queue that we created.

    If the API fails to answer once, it is not asked again: each question may take seconds.
    """

    def __init__(
        self,
        channel: Any,
        server_version: tuple[int, ...],
        expected: Mapping[str, object],
        management: ManagementApi | None,
    ) -> None:
        self._channel = channel
        self._server_version = server_version
        self._expected = expected
        self._management = management
        self._silence = "" if management else "management_url is 'off'"
        self.meant: Mapping[str, Mapping[str, Any]] = {}
        """Arguments that queues should have, by queue name: they do not count as losses."""

    def report(self, name: str) -> QueueReport:
        """Return the known properties of queue *name*, which exists."""
        unchecked, found, reported = "", None, self._reported(name)
        try:
            found = self._known(name, reported)
        except UnreadableProperties as reason:
            unchecked = str(reason)
        found = replace(found, meant=self.meant.get(name, {})) if found else QueueProperties()
        dead_end = self._dead_end(name, found)
        default = found.default_losses(self._server_version, dead_end)
        # An error queue that we created on RabbitMQ 3 gets the default limit when the broker
        # becomes version 4, but has few deliveries. Queues that point to it lose nothing.
        is_consumed = "x-dead-letter-exchange" in self._expected
        is_certain = reported is not None and is_consumed
        return QueueReport(
            queue=name,
            losses=found.losses(dead_end) + (default if is_certain else ()),
            doubts=() if unchecked else self._doubts(found) + (() if is_certain else default),
            refusals=found.refusals(),
            unchecked=unchecked,
            policies_unread="" if reported else self._silence,
        )

    def delivery_limit(self, name: str) -> int | None:
        """Return after how many deliveries queue *name* gives a message up; None means never.

        Raises UnreadableProperties. A policy counts if the management API reports it.
        """
        found = self._known(name, self._reported(name)) or QueueProperties()
        return found.delivery_limit(self._server_version)

    def dead_messages_to(self, name: str) -> str | None:
        """Return the queue that gets the dead messages of queue *name*; None if unknown."""
        try:
            found = self._known(name, self._reported(name))
        except UnreadableProperties:
            return None
        return found.dead_message_queue if found else None

    def _known(self, name: str, reported: QueueProperties | None) -> QueueProperties | None:
        try:
            found = self._probed(name)
        except UnreadableProperties:
            if reported is None:
                raise
            return reported
        return replace(found, policy=reported.policy) if found and reported else found

    def _probed(self, name: str) -> QueueProperties | None:
        if self._server_version < OLDEST:
            raise UnreadableProperties(
                "only RabbitMQ 3.9 and later tells a queue's properties safely"
            )
        return probe(self._channel, name, self.meant.get(name) or self._expected)

    def _reported(self, name: str) -> QueueProperties | None:
        if self._management is None or self._silence:
            return None
        try:
            return self._management.properties_of(name)
        except Unanswered as reason:
            self._silence = str(reason)
            return None

    def _dead_end(self, name: str, found: QueueProperties) -> str:
        """Return why dead messages of queue *name* reach no queue, "" if no reason is known."""
        exchange = found.dead_messages("exchange")
        if exchange is None:
            return "no dead-letter exchange is set"
        if found.delivery_limit(self._server_version) is None:
            return ""
        queue = found.dead_message_queue or name
        # Without a routing key of their own, dead messages keep the key of the queue.
        if not exchange and queue == name:
            return "the broker ends the cycle of dead messages that return to the queue"
        kind, goal = ("exchange", str(exchange)) if exchange else ("queue", queue)
        has = topology.has_exchange if exchange else topology.has_queue
        return "" if has(self._channel, goal) else f"there is no {kind} {goal!r} for dead messages"

    def _doubts(self, found: QueueProperties) -> tuple[str, ...]:
        wanted = (found.meant or self._expected).get("x-queue-type")
        if wanted != "quorum" or found.kind != "classic":
            return ()
        return ("it is a classic queue on one node, not a quorum queue on several",)
