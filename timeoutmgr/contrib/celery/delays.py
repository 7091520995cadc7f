"""Durable delays of a Celery app: tasks that wait in a store, and changes of them."""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from celery.app.task import Context
from kombu.exceptions import OperationalError
from kombu.utils import functional

from timeoutmgr import plugins
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    OnConflict,
    RepeatKind,
    Timeout,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contrib.celery.broker import options_to
from timeoutmgr.contrib.celery.tasks import (
    RUN,
    TaskMessage,
    fields_of,
    foreign_received,
    foreign_task,
    labels_of_stamps,
    saga_of,
    stamp_labels,
)
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint, check, installed, store
from timeoutmgr.contrib.worker_dispatch import AWAY_ERRORS
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import ConfigurationError, ContentConflict
from timeoutmgr.message.foreign import Foreign, finally_to, foreign_of
from timeoutmgr.message.instants import from_micros, to_micros
from timeoutmgr.message.labels import label_texts
from timeoutmgr.message.message import enclosed_types
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import cached_property
from timeoutmgr.sender.bulk import BulkInterrupted
from timeoutmgr.sender.composer import SendOptions, Sent, ToSend
from timeoutmgr.transport.foreign import headers_of, with_foreign_headers

if TYPE_CHECKING:
    from timeoutmgr.sender.in_transaction import CallerSession

logger = logging.getLogger(__name__)
retry_over_time: Any = functional.retry_over_time  # has no annotations

DELAYS: Final = "timeoutmgr_delays"
"""The attribute of an app that contains its DurableDelays."""
_POLICY: Final = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}
OnDuplicate: TypeAlias = Literal["add", "replace"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedTask:
    """A stored task; its arguments are available only as the text that Celery made of them."""

    id: str
    name: str
    eta: datetime
    args: str | None
    kwargs: str | None
    retries: int
    queue: str


class DurableDelays:
    """Makes countdown, eta and retry of *app* durable: delayed tasks wait in *store*.

    *store* is the URL of a database; the app's own broker gets the tasks when they are due. *name*
    is the name of the endpoint, for apps that share a database. A task that is due within
    *min_delay* seconds is published at once. With *in_worker* each worker of the app dispatches due
    tasks; otherwise run ``celery timeouts run``. *on_duplicate* says what happens if a task id is
    used again with another eta before the task is due: ``add`` creates a second task, ``replace``
    moves the pending task. *configure* may change the endpoint's configuration before it is used.
    """

    def __init__(
        self,
        app: Any,
        *,
        store: str,
        name: str | None = None,
        min_delay: float = 1.0,
        in_worker: bool = True,
        on_duplicate: OnDuplicate = "add",
        configure: Callable[[EndpointConfiguration], None] | None = None,
    ) -> None:
        if on_duplicate not in ("add", "replace"):
            raise ConfigurationError(
                f"on_duplicate is 'add' or 'replace', got {on_duplicate!r:.40}"
            )
        if min_delay < 0:
            raise ConfigurationError(f"min_delay is never negative, got {min_delay}")
        self.app: Final = app
        self._store: Final = store
        self._name: Final = name or app.main or "celery"
        self._min_delay: Final = timedelta(seconds=min_delay)
        self._on_duplicate: Final = on_duplicate
        self._configure: Final = configure
        self._inside: Final[ContextVar[Any]] = ContextVar("timeoutmgr_inside", default=None)
        self._batch: Final[ContextVar[dict[object, ToSend] | None]] = ContextVar(
            "timeoutmgr_batch", default=None
        )
        self._endpoint: Final = ProcessEndpoint(lambda: installed(self.configuration()))
        self._hook(in_worker)

    def _hook(self, in_worker: bool) -> None:
        app = self.app
        if DELAYS in vars(app):
            raise ConfigurationError(f"app {app.main!r} has DurableDelays already; use these")
        setattr(app, DELAYS, self)
        # By name, so that Celery imports them: the classes ask for the delays of their app.
        app.amqp_cls = f"{__package__}.hooks:DelayingAMQP"
        app.control_cls = f"{__package__}.hooks:DelayingControl"
        for made in ("amqp", "control"):
            vars(app).pop(made, None)
        app.steps["worker"].add(f"{__package__}.worker:SenderStep")
        if in_worker:
            app.steps["worker"].add(f"{__package__}.worker:DispatchStep")
        app.steps["consumer"].add(f"{__package__}.worker:TakeoverStep")

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint with which this process sends; created and installed at its first use."""
        return self._endpoint()

    def configuration(self) -> EndpointConfiguration:
        """Return a new configuration of the endpoint that stores and dispatches the tasks.

        Raises ConfigurationError.
        """
        config = EndpointConfiguration(self._name)
        config.use_transport(self._store, **options_to(self._broker, self._store))
        config.use_persistence(self._store)
        config.enable_feature(plugins.load(plugins.FEATURES, "timeout-manager")())
        config.critical_error_action = "log"  # else a worker goes on, and dispatches no more
        if self._configure is not None:
            self._configure(config)
        return config

    # --- sending

    def marked(
        self, body: Any, headers: Mapping[str, Any] | None, run: str
    ) -> Mapping[str, Any] | None:
        """Return *headers* with *run*, except for the retry of a running task, which has its run.

        So the retry of a redelivered task is recognised as a repeat, while the retry of a task that
        was sent again, with the same id and the headers of its first send, is another retry.
        """
        task = TaskMessage(body, headers or {})
        is_marked = RUN in task.headers and self._is_retry_of_a_running(task)
        return headers if is_marked or not task.about else {**task.headers, RUN: run}

    def keeps(self, producer: Any, body: Any, options: dict[str, Any]) -> bool:
        """Store the task that *producer* is asked to publish; return whether it is stored.

        It is not stored if it is for another broker; if it is already due, outside a transaction,
        and replaces no task; or if it cannot be stored, and is a due replacement, or a running task
        sends it. Otherwise raises kombu's OperationalError if the store is away for longer than the
        app's retry policy.
        """
        task = TaskMessage(body, options.get("headers") or {})
        if not task.about:  # an event, which also has an eta
            return False
        due, now = task.due(), datetime.now(UTC)
        is_delayed = due is not None and due - now > self._min_delay
        is_kept = is_delayed or (self._inside.get() is not None and not task.retries)
        if not (is_kept or self._replaces(task)) or self._is_of_another_broker(producer):
            return False
        try:
            batch = self._batch.get() or ()
            if not (is_kept or saga_of(task.id) in batch or self._stored(task.id)):
                return False
            self._keep(producer, task, options, max(due or now, now), is_delayed)
        except Exception as error:
            if is_kept and not self._is_dropped_by(error, task):
                raise
            # A due task needs no store. A worker that receives another stores it, or keeps it.
            logger.warning(
                "app could not store task %.80s (retry %d), Celery publishes it with its eta: %s",
                task.id,
                task.retries,
                on_one_line(error),
                extra={"event": "task_not_stored", "message_id": task.id},
            )
            return False
        return True

    def _is_dropped_by(self, error: Exception, task: TaskMessage) -> bool:
        """Return whether *error* would end the running task, and Celery then drop *task*.

        It drops a retry, and in an outage also a callback or the next step of a chain.
        """
        in_block = self._inside.get() is not None or self._batch.get() is not None
        running = None if in_block else self.app.current_worker_task
        is_sent_by_a_worker = running is not None and not running.request.is_eager
        is_lost = is_sent_by_a_worker and isinstance(error, OperationalError)
        return is_lost or self._is_retry_of_a_running(task)

    def _replaces(self, task: TaskMessage) -> bool:
        return self._on_duplicate == "replace" and not task.retries

    def _is_retry_of_a_running(self, task: TaskMessage) -> bool:
        request = self._running(task)
        return request is not None and task.retries > (request.retries or 0)

    def _running(self, task: TaskMessage) -> Any:
        """Return the request of the running task with the id of *task*; None if there is none."""
        known = self.app.tasks.get(task.name)
        request = None if known is None else known.request_stack.top
        return request if request is not None and request.id == task.id else None

    def _keep(
        self,
        producer: Any,
        task: TaskMessage,
        options: dict[str, Any],
        due: datetime,
        is_delayed: bool,
    ) -> None:
        foreign = foreign_task(producer, task.body, options, is_amqp=self._is_amqp)
        retried = self._running(task)
        retry, policy = options.get("retry"), options.get("retry_policy")
        if replaces := self._replaces(task):
            message_id = self._insist(lambda: self._replaceable(saga_of(task.id)), retry, policy)
        else:
            eta = None if retried is None else retried.eta
            message_id = task.message_id(task.headers[RUN], is_delayed=is_delayed, retried_eta=eta)
        to_send = _to_send(task, foreign, due, message_id, OnConflict.REPLACE if replaces else None)
        if task.retries:
            # A retry raises an exception and so ends its block, but must not be dropped with it. A
            # redelivered task retries under the same id with a later eta: it must be stored once.
            self._store_all([to_send], [], retry, policy)
        else:
            self._send(to_send, retry, policy)

    def _send(self, task: ToSend, retry: Any, policy: Any) -> None:
        session = self._inside.get()
        gathered = self._batch.get()
        if session is not None:
            self._send_first([task], partial(self._send_in, session))
        elif gathered is not None:
            self._insist(lambda: check(self.endpoint, task), retry, policy)
            # The last replacement counts; the store compares other tasks of the same id.
            is_replaceable = task.options.on_conflict is not None
            gathered[task.options.saga_id if is_replaceable else len(gathered)] = task
        else:
            self._send_first([task], partial(self._store_all, retry=retry, policy=policy))

    def _send_in(self, session: CallerSession, tasks: Sequence[ToSend], sent: list[Sent]) -> None:
        def send(one: ToSend) -> Sent:
            to = (one.destination, one.message_type, one.body)
            return self.endpoint.send(*to, options=one.options, session=session)

        for one in tasks:  # a failed transaction cannot try again
            sent.append(self._insist(partial(send, one), retry=False))

    def _store_all(
        self, tasks: Sequence[ToSend], sent: list[Sent], retry: Any = True, policy: Any = None
    ) -> None:
        """Store *tasks* and add the answers to *sent*; a repeated try continues after these."""
        self._insist(lambda: store(self.endpoint, tasks[len(sent) :], sent.extend), retry, policy)

    def _insist(self, call: Callable[[], Result], retry: Any = True, policy: Any = None) -> Result:
        """Return the result of *call*; repeat it while the store is away."""
        known = _POLICY | (self.app.conf.task_publish_retry_policy or {}) | (policy or {})
        given = known if retry is not False else {**known, "max_retries": 0}
        limits = {name: given[name] for name in _POLICY}
        try:
            result: Result = retry_over_time(call, AWAY_ERRORS, **limits)
        except AWAY_ERRORS as error:
            # Programs of Celery expect this error of a broker that is away.
            raise OperationalError(str(error)) from error
        return result

    # --- ids that are used again

    def _send_first(
        self, tasks: Sequence[ToSend], send: Callable[[Sequence[ToSend], list[Sent]], None]
    ) -> None:
        """Send first sends; under their next id if *on_duplicate* replaces pending tasks.

        *send* adds the answers to a list. Raises ContentConflict if a task is not stored, since it
        must not be dropped silently. Once a task is stored, the error counts the other tasks.
        """
        used: dict[str, str] = {}
        left = tasks
        while left:
            sent: list[Sent] = []
            try:
                send(left, sent)
                refused = [one for one in sent if self._is_refused(one)]
                used |= {one.message_id: one.id or "" for one in refused}
                given = {one.options.message_id: one for one in left}
                again = [self._under_next_id(given[one.message_id], used) for one in refused]
            except Exception as error:
                unsent = _unsent(left, sent)
                if len(unsent) in (0, len(tasks)):
                    raise
                _raise_interrupted(len(tasks) - len(unsent), unsent, error)
            left = again

    def _is_refused(self, sent: Sent) -> bool:
        if sent.repeat is not RepeatKind.SUPERSEDED:
            return sent.repeat is RepeatKind.CONFLICT
        # With a clock that is behind, it was sent before the task of that id, which may have ended.
        found = self._insist(lambda: self.endpoint.timeouts.show(sent.message_id))
        return found is not None and found[0] is not TimeoutState.PENDING

    def _under_next_id(self, task: ToSend, used: Mapping[str, str]) -> ToSend:
        message_id, saga = task.options.message_id or "", task.options.saga_id or ""
        if task.options.on_conflict is None:
            raise ContentConflict(message_id, used[message_id])
        message_id = self._insist(lambda: self._last_id(saga, used))
        return replace(task, options=replace(task.options, message_id=message_id))

    def _replaceable(self, saga: str) -> str:
        """Return the id of *saga*'s pending task, or the last id that such a task had."""
        pending = self.endpoint.timeouts.stored(TimeoutFilter(saga_id=saga))
        # A retry of the running task is not replaced.
        first = (one.message.id for one in pending if _task_headers(one).get("retries") == 0)
        return next(first, "") or self._last_id(saga, ())

    def _last_id(self, saga: str, used: Container[str]) -> str:
        """Return the last known id of the tasks of *saga*; the next if that is *used*.

        The store compares the contents, so the same send does not recreate a task that ended.
        Programs that send at the same time find the same id.
        """

        def is_new(number: int) -> bool:
            one = _numbered_id(saga, number)
            return one not in used and self.endpoint.timeouts.show(one) is None

        end = 0
        while not is_new(end):
            end = 2 * end + 1
        numbers = range((end + 1) // 2, end)
        new = numbers.start + bisect_left(numbers, True, key=is_new)
        last = _numbered_id(saga, max(new - 1, 0))
        return _numbered_id(saga, new) if last in used else last

    @cached_property
    def _broker(self) -> Any:
        """The app's broker, as a connection that is never opened; built once, since it takes long.

        It is needed at the first send, when the configuration of the app is final.
        """
        return self.app.connection_for_write()

    @cached_property
    def _is_amqp(self) -> bool:
        return bool(self._broker.transport.driver_type == "amqp")

    def _is_of_another_broker(self, producer: Any) -> bool:
        connection = producer.connection
        return connection is not None and _place(connection) != _place(self._broker)

    @contextmanager
    def inside(
        self, session: CallerSession | None = None, *, using: str | None = None
    ) -> Iterator[None]:
        """Make tasks sent in this block exist only if the transaction of *session* commits.

        *session* is a SQLAlchemy session or connection, or a driver's connection, to the store's
        database; or *using* is the alias of a Django database with an open transaction. A task
        without a delay is published a moment after the commit. A retry does not belong to the
        block: it is stored at once. Raises CombinationRefused without an open transaction.
        """
        if (session is None) is (using is None):
            raise ConfigurationError("inside expects either a session or using=, the alias")
        if using is not None:
            from timeoutmgr.contrib.django.transactions import require_open

            session = require_open(using)
        token = self._inside.set(session)
        try:
            yield
        finally:
            self._inside.reset(token)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Store the delayed tasks that are sent in this block at its end, 500 per transaction.

        An error in the block drops them, except for retries, which are stored at once. A task that
        cannot be stored raises its error when it is sent. Raises kombu's OperationalError while the
        store is away. An error at the end that leaves some tasks stored is a BulkInterrupted, or an
        OperationalError with that cause; a block with the same ids and etas completes it.
        """
        gathered: dict[object, ToSend] = {}
        token = self._batch.set(gathered)
        try:
            yield
        finally:
            self._batch.reset(token)
        if gathered:
            self._send_first([*gathered.values()], self._store_all)

    def move_in(self, message: Any, payload: Any, queue: Any) -> bool:
        """Store the delayed task in *message*, which a worker received from *queue*.

        Return whether the store has it, so that the message may be acknowledged. *payload* is the
        decoded body with protocol 1, otherwise None. Raises TimeoutManagerError.
        """
        task = TaskMessage(payload, message.headers)
        due = task.due()
        if due is None or due - datetime.now(UTC) <= self._min_delay:
            return False
        # A dispatched task is due by the store's clock, whatever this host's clock says.
        if due - from_micros(self.endpoint.timeouts.now()) <= self._min_delay:
            return False
        foreign = foreign_received(message, queue, is_amqp=self._is_amqp)
        message_id = task.moved_id(queue.name, foreign.content)
        if RUN not in task.headers:
            foreign = with_foreign_headers(foreign, {RUN: message_id})
        sent: list[Sent] = []
        to_send = _to_send(task, foreign, due, message_id)
        store(self.endpoint, [to_send], sent.extend)
        return sent[0].repeat is None or self._rests(sent[0])

    def _rests(self, sent: Sent) -> bool:
        """Return whether a timeout is pending or was cancelled (not dispatched)."""
        found = self.endpoint.timeouts.show(sent.id or "")
        return found is not None and found[0] in (TimeoutState.PENDING, TimeoutState.CANCELLED)

    # --- stored tasks

    def list(
        self, *, task: str | None = None, before: datetime | None = None, limit: int | None = None
    ) -> Iterator[DelayedTask]:
        """Yield stored tasks by their eta: of the name *task*, due *before* an aware datetime."""
        which = TimeoutFilter(due_before=None if before is None else to_micros(before))
        found = map(_delayed_task, self.endpoint.timeouts.stored(which))
        yield from islice((one for one in found if task in (None, one.name)), limit)

    def reschedule(self, task_id: str, *, eta: datetime) -> ChangeResult | None:
        """Move a stored task to *eta*; return the store's answer, None if there is no such task."""
        timeouts = self.endpoint.timeouts
        return self._change(task_id, lambda one: timeouts.reschedule(one, deliver_at=eta))

    def send_now(self, task_id: str) -> ChangeResult | None:
        """Publish a stored task at once; return the answer, None if there is no such task."""
        return self._change(task_id, self.endpoint.timeouts.send_now)

    def _change(self, task_id: str, change: Callable[[str], ChangeResult]) -> ChangeResult | None:
        answers = [change(timeout.id) for timeout in self._stored(task_id)]
        return answers[0] if answers else None

    def revoke(self, task_id: str) -> bool:
        """Remove each stored copy of a task; return whether certainly no worker has a copy.

        The result of the task becomes REVOKED, and its chord is notified, if the app accepts the
        task's serializer. A failure of the result backend is logged.
        """
        timeouts = self.endpoint.timeouts
        answers = []
        for timeout in self._stored(task_id):
            answer = timeouts.cancel(timeout.id, channel=f"revoke of task {task_id:.80}")
            answers.append(answer)
            if answer is CancelResult.CANCELLED:
                self._publish_revocation(task_id, self._fields(timeout))
        return bool(answers) and all(each is CancelResult.CANCELLED for each in answers)

    def revoke_stamped(self, stamps: Mapping[str, Any]) -> Sequence[str]:
        """Revoke each stored task that has one of *stamps*, as its worker would; return the ids.

        The store finds the tasks by their labels.
        """
        timeouts = self.endpoint.timeouts
        revoked: dict[str, None] = {}
        for label in labels_of_stamps(stamps):
            parts = self._parts_of_groups(label)
            for one in timeouts.cancel_where(labels=label, channel="revoke by stamps"):
                if one.result is CancelResult.CANCELLED:
                    headers = _task_headers(one.timeout)
                    task_id = str(headers["id"])
                    self._publish_revocation(task_id, parts.get(one.timeout.id, headers))
                    revoked[task_id] = None
        return tuple(revoked)

    def _parts_of_groups(self, label: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the fields of the tasks with *label* that may belong to a chord, by timeout id.

        Read them beforehand: a cancel by labels answers without the bodies.
        """
        found = self.endpoint.timeouts.stored(TimeoutFilter(labels=label_texts(label)))
        return {one.id: self._fields(one) for one in found if _task_headers(one).get("group")}

    def _publish_revocation(self, task_id: str, fields: Mapping[str, Any]) -> None:
        request = Context(fields, id=task_id)
        try:
            self.app.backend.mark_as_revoked(
                task_id, "revoked", request=request, store_result=not request.ignore_result
            )
        except Exception as error:  # of any driver; the task is removed, and the rest must follow
            logger.warning(
                "app could not publish that task %.80s is revoked: %s",
                task_id,
                on_one_line(error),
                extra={"event": "revocation_not_published", "message_id": task_id},
            )

    def _fields(self, timeout: Timeout) -> Mapping[str, Any]:
        foreign = _foreign_of(timeout)
        try:
            return {} if foreign is None else fields_of(foreign, self.app.conf.accept_content)
        except Exception as error:  # a serializer may raise anything
            logger.warning(
                "app cannot read whether the revoked task of timeout %.80r is of a chord: %s",
                timeout.id,
                on_one_line(error),
                extra={"event": "chord_not_read", "timeout_id": timeout.id},
            )
            return _task_headers(timeout)

    def _stored(self, task_id: str) -> Sequence[Timeout]:
        return tuple(self.endpoint.timeouts.stored(TimeoutFilter(saga_id=saga_of(task_id))))


def delays_of(app: Any) -> DurableDelays:
    """Return the delays of *app*."""
    found: DurableDelays = vars(app)[DELAYS]
    return found


def _to_send(
    task: TaskMessage,
    foreign: Foreign,
    due: datetime,
    message_id: str,
    on_conflict: OnConflict | None = None,
) -> ToSend:
    options = SendOptions(
        deliver_at=due,
        message_id=message_id,
        saga_id=saga_of(task.id),
        on_conflict=on_conflict,
        cancellable=True,
        labels=stamp_labels(task.headers),
    )
    return ToSend(foreign.route.destination, task.name, foreign, options)


def _unsent(tasks: Sequence[ToSend], sent: Sequence[Sent]) -> list[ToSend]:
    """Return the *tasks* that, judging by the answers *sent*, may not be stored."""
    refusals = (RepeatKind.CONFLICT, RepeatKind.SUPERSEDED)
    both = zip_longest(tasks, sent)
    return [task for task, one in both if one is None or one.repeat in refusals]


def _raise_interrupted(stored: int, unsent: Sequence[ToSend], error: Exception) -> NoReturn:
    """Raise the error of a block with *stored* tasks, and tasks *unsent* due to *error*."""
    interrupted = BulkInterrupted(stored, unsent, error)
    interrupted.__cause__ = error
    if not isinstance(error, OperationalError):
        raise interrupted
    raise OperationalError(
        f"{error}; {stored} tasks of the block are stored, and {len(unsent)} are not, the first of "
        f"which is {unsent[0].options.saga_id!r:.80}; see .unsent of the cause, a BulkInterrupted"
    ) from interrupted


def _place(connection: Any) -> tuple[Any, ...]:
    """Return where *connection* leads: with several hosts, to any of them."""
    if connection.alt:
        return connection.transport_cls, *connection.alt
    # A connection opened by kombu has defaults for missing parts, and no localhost.
    usual = connection.transport.default_connection_params
    names = ("userid", "virtual_host", "hostname", "port")
    place = [getattr(connection, name) or usual.get(name) for name in names]
    host = ["127.0.0.1" if one == "localhost" else one for one in place]
    return connection.transport_cls, *host


def _numbered_id(saga: str, number: int) -> str:
    """Return an id of a task that may be replaced: the first, or another after *number* uses."""
    name = f"replaceable-{number}" if number else "replaceable"
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {saga}"))


def _foreign_of(timeout: Timeout) -> Foreign | None:
    return foreign_of(finally_to(timeout.destination, timeout.message))


def _task_headers(timeout: Timeout) -> dict[str, Any]:
    foreign = _foreign_of(timeout)
    return {} if foreign is None else headers_of(foreign)


def _delayed_task(timeout: Timeout) -> DelayedTask:
    known = _task_headers(timeout)
    headers = known if "task" in known else {}  # protocol 1: all is in the body, never decoded
    return DelayedTask(
        id=str(headers.get("id") or timeout.saga_id),
        name=str(headers.get("task") or (*enclosed_types(timeout.message), "")[0]),
        eta=from_micros(timeout.due),
        args=headers.get("argsrepr"),
        kwargs=headers.get("kwargsrepr"),
        retries=int(headers.get("retries") or 0),
        queue=timeout.destination,
    )
