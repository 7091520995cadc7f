"""Whether existing queues on RabbitMQ keep messages: AMQP and the management API asked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from timeoutmgr.contracts import QueueReport
from timeoutmgr.transport.management import ManagementApi, Unanswered
from timeoutmgr.transport.queue_probe import OLDEST, Unreadable, probe
from timeoutmgr.transport.queue_properties import QueueProperties


class QueueInspection:
    """Looks at queues one by one; *expected* are the arguments of a queue that we created.

    An API that did not answer once is not asked again: each question may take seconds.
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

    def report(self, name: str) -> QueueReport:
        """Return what is known of queue *name*, which exists."""
        unchecked, told = "", self._told(name)
        try:
            found = self._probed(name)
        except Unreadable as reason:
            found, unchecked = told, "" if told else str(reason)
        found = found or QueueProperties()
        if told is not None:
            found = replace(found, policy=told.policy)
        return QueueReport(
            queue=name,
            losses=found.losses(),
            doubts=self._doubts(found) if not unchecked else (),
            unchecked=unchecked,
            policies_unread="" if told else self._silence,
        )

    def delivery_limit(self, name: str) -> int | None:
        """Return after how many deliveries queue *name* gives a message up, None for never.

        Raises Unreadable. A policy counts where the management API tells it.
        """
        told = self._told(name)
        try:
            found = self._probed(name) or QueueProperties()
        except Unreadable:
            if told is None:
                raise
            found = told
        if told is not None:
            found = replace(found, policy=told.policy)
        return found.delivery_limit(self._server_version)

    def _probed(self, name: str) -> QueueProperties | None:
        if self._server_version < OLDEST:
            raise Unreadable("only RabbitMQ 3.9 and later tells a queue's properties safely")
        return probe(self._channel, name, self._expected)

    def _told(self, name: str) -> QueueProperties | None:
        if self._management is None or self._silence:
            return None
        try:
            return self._management.properties_of(name)
        except Unanswered as reason:
            self._silence = str(reason)
            return None

    def _doubts(self, found: QueueProperties) -> tuple[str, ...]:
        wanted = self._expected.get("x-queue-type")
        if wanted != "quorum" or found.kind != "classic":
            return ()
        return ("it is a classic queue on one node, not a quorum queue on several",)
