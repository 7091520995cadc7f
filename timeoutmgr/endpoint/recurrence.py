"""Recurring timeouts of an endpoint: the task that stores their runs, and their commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from timeoutmgr.contracts import LockedSchedule, ScheduleRecord, Transaction
from timeoutmgr.contracts.stores import DirectStorage
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    InvalidMessage,
    StorageUnavailable,
    UnknownSchedule,
)
from timeoutmgr.features.parts import FeatureParts
from timeoutmgr.message import headers, routes
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.validation import is_satellite_of
from timeoutmgr.recurrence.changes import advance, pause, remove, resume
from timeoutmgr.recurrence.definition import RecurringTimeout
from timeoutmgr.recurrence.task import RecurringStore, RecurringTask
from timeoutmgr.sender.composer import Composed, Composer, SendOptions, Sent
from timeoutmgr.transport.delivery_policy import SendingPolicy

if TYPE_CHECKING:
    from timeoutmgr.endpoint.configuration import EndpointSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Makes and stores the runs of recurring timeouts, as if the program had sent them."""

    endpoint: str
    composer: Composer
    direct: DirectStorage
    policy: SendingPolicy

    def timeout_id(self, message_id: str) -> str:
        """Return the id of the timeout that keeps the message *message_id*."""
        return self.composer.timeout_id_of(message_id)

    def store(
        self,
        definition: RecurringTimeout,
        due: Micros,
        message_id: str,
        transaction: Transaction | None,
    ) -> None:
        """Store a run in *transaction*, bypassing the queue, with the manager's checks."""
        composed = self.compose(definition, due, message_id)
        self.policy.before_storing([composed.outgoing], transaction)
        self.direct.store([composed.outgoing.message], transaction)

    def compose(self, definition: RecurringTimeout, due: Micros, message_id: str) -> Composed:
        """Return the checked message of a run; raise InvalidMessage if it is wrong."""
        return self.composer.compose(
            definition.destination or self.endpoint,
            definition.message_type,
            definition.body,
            replace(_options(definition), deliver_at=from_micros(due), message_id=message_id),
            stored=True,
        )

    def require_sound(self, definition: RecurringTimeout) -> None:
        """Raise ConfigurationError if no run could send the message of the schedule.

        Compose no run if send middleware may repair the message, and ask no broker.
        """
        if self.composer.middleware:
            return
        is_own = partial(is_satellite_of, endpoint=self.endpoint)
        limits = replace(self.composer.limits, is_satellite=is_own)
        offline = replace(self, composer=replace(self.composer, limits=limits))
        try:
            offline.compose(definition, self.composer.clock.now(), "run")
        except StorageUnavailable:
            return  # a format name; the store of dead letters, which knows the nodes, is down
        except InvalidMessage as error:
            raise ConfigurationError(f"recurring {definition.name!r}: {error}") from error


def with_recurring(
    settings: EndpointSettings, features: FeatureParts, composer: Composer
) -> FeatureParts:
    """Return *features* with the task that stores the runs of the configured schedules.

    Raises CombinationRefused if nothing here keeps schedules, and ConfigurationError for a message
    that no run could have.
    """
    store, runs = _parts(settings.name, features, composer)
    for definition in settings.recurring:
        runs.require_sound(definition)
    assert settings.persistence is not None, "the store is of it"
    assert features.wake is not None, "the timeout manager brings it with its store"
    task = RecurringTask(
        settings.recurring,
        store,
        runs,
        ready=settings.persistence.check,
        wake=features.wake,
        telemetry=settings.telemetry,
    )
    return replace(features, tasks=(*features.tasks, task))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringCalls:
    """The calls of an endpoint that the commands of its recurring timeouts use."""

    wake: Callable[[Micros], None]
    send: Callable[[str, str, object, SendOptions], Sent]
    schema_expected: Callable[[], AbstractContextManager[None]]


def recurring_of(
    settings: EndpointSettings, features: FeatureParts, composer: Composer, calls: RecurringCalls
) -> Recurring:
    """Return the commands of an endpoint; raise CombinationRefused if no store keeps schedules."""
    store, runs = _parts(settings.name, features, composer)
    return Recurring(settings.recurring, store, runs, calls)


def _parts(
    endpoint: str, features: FeatureParts, composer: Composer
) -> tuple[RecurringStore, Runs]:
    store, direct = features.store, features.direct
    if features.delayed is not None:
        raise _refused("a delayed message store", "it neither remembers ids nor keeps schedules")
    if store is None or direct is None:
        raise _refused("an endpoint without a timeout manager", "no store here keeps the next run")
    if features.cancellable_delays is None:
        raise _refused(
            "native delayed delivery without a fallback", "delayed messages rest in the broker"
        )
    if not isinstance(store, RecurringStore):
        raise _refused(f"the store {type(store).__name__}", "it keeps no schedules")
    policy = features.policies.sending
    return store, Runs(endpoint=endpoint, composer=composer, direct=direct, policy=policy)


def _refused(what: str, reason: str) -> CombinationRefused:
    return CombinationRefused(
        f"config.recurring with {what}",
        reason,
        "Enable TimeoutManager with a SQL persistence (beside native delayed delivery say "
        "NativeDelayedDelivery(fallback_to_store=True) too), or leave the recurring timeouts out",
    )


def _resumed(
    locked: LockedSchedule, definition: RecurringTimeout | None, runs: Runs, channel: str
) -> Sequence[Micros] | None:
    """Resume a schedule; return the instants of the stored runs, None if it was not paused."""
    if not resume(locked, channel):
        return None
    # As if this process had started first, because a command does not change `every`.
    return () if definition is None else advance(locked, definition, runs, 0).stored


def _options(definition: RecurringTimeout) -> SendOptions:
    return SendOptions(headers={**definition.headers, headers.RECURRING: definition.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringView:
    """A schedule as a person or a command sees it.

    *next* is the instant of the stored next run, *timeout_id* its timeout; both are None while the
    schedule is paused, or before the first start of an endpoint with it. *message_type*,
    *destination* and *catch_up* are None if the schedule *is_configured* nowhere here.
    """

    name: str
    every: str
    next: datetime | None
    timeout_id: str | None
    is_paused: bool
    is_configured: bool
    message_type: str | None = None
    destination: str | None = None
    catch_up: str | None = None


class Recurring:
    """Lists, pauses, resumes and runs the recurring timeouts of an endpoint.

    Each raises SchemaMissing, with the command to run, if the tables do not exist, and
    UnknownSchedule for a name that is neither configured nor kept.
    """

    def __init__(
        self,
        definitions: Sequence[RecurringTimeout],
        store: RecurringStore,
        runs: Runs,
        calls: RecurringCalls,
    ) -> None:
        self._definitions: Mapping[str, RecurringTimeout] = {one.name: one for one in definitions}
        self._store = store
        self._runs = runs
        self._calls = calls

    def list(self) -> Sequence[RecurringView]:
        """Return the schedules that are configured here or kept in the store, by name."""
        with self._calls.schema_expected():
            kept = {record.name: record for record in self._store.schedules()}
        names = sorted({*kept, *self._definitions})
        return [self._view(name, kept.get(name)) for name in names]

    def pause(self, name: str, *, channel: str = routes.API) -> bool:
        """Cancel the next run, and store no further run; return False if paused before.

        The pause is durable and applies to all processes. A run that is being sent is still sent.
        """
        self._check(name)
        with self._calls.schema_expected():
            return self._store.change_schedule(
                name, lambda locked: pause(locked, routes.bounded(channel))
            )

    def resume(self, name: str, *, channel: str = routes.API) -> bool:
        """Store runs again; return False if the schedule is not paused.

        The policy ``catch_up`` decides about occurrences missed during the pause. The next run is
        stored at once if the schedule is configured here; otherwise a process with it stores it.
        """
        self._check(name)
        definition = self._definitions.get(name)
        with self._calls.schema_expected():
            stored = self._store.change_schedule(
                name,
                lambda locked: _resumed(locked, definition, self._runs, routes.bounded(channel)),
            )
        if stored:
            self._store.notify_stored(min(stored))
            self._calls.wake(min(stored))
        return stored is not None

    def run_now(self, name: str) -> Sent:
        """Send the message of the schedule at once, under a new id; the next run stays.

        Raises UnknownSchedule if the schedule is not configured here: only a configuration has
        the message.
        """
        definition = self._definitions.get(name)
        if definition is None:
            raise UnknownSchedule(name, sorted(self._definitions))
        destination = definition.destination or self._runs.endpoint
        options = _options(definition)
        return self._calls.send(destination, definition.message_type, definition.body, options)

    def remove(self, name: str, *, channel: str = routes.API) -> None:
        """Cancel the next run of a schedule that left the configuration, and delete the schedule.

        Raises CombinationRefused while the schedule is configured here: it would start again.
        """
        if name in self._definitions:
            raise CombinationRefused(
                f"removing the recurring timeout {name!r}",
                "it is configured here, and would begin anew",
                "Take it out of the configuration first, or pause it",
            )
        self._check(name)
        with self._calls.schema_expected():
            self._store.change_schedule(
                name, lambda locked: remove(locked, routes.bounded(channel))
            )

    def _check(self, name: str) -> None:
        if name in self._definitions:
            return
        with self._calls.schema_expected():
            kept = [record.name for record in self._store.schedules()]
        if name not in kept:
            raise UnknownSchedule(name, sorted({*kept, *self._definitions}))

    def _view(self, name: str, record: ScheduleRecord | None) -> RecurringView:
        definition = self._definitions.get(name)
        kept = record or ScheduleRecord(name=name)
        view = RecurringView(
            name=name,
            every=kept.every or ("" if definition is None else definition.occurrences.text),
            next=None if kept.run_due is None else from_micros(kept.run_due),
            timeout_id=kept.run_id,
            is_paused=kept.is_paused,
            is_configured=definition is not None,
        )
        if definition is None:
            return view
        return replace(
            view,
            message_type=definition.message_type,
            destination=definition.destination or self._runs.endpoint,
            catch_up=definition.policy.value,
        )
