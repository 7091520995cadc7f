"""Forms that change many timeouts or pause dispatch; each has a reason for the audit."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import Micros, duration_micros, from_micros, parse_duration
from timeoutmgr.message.redaction import masked, on_one_line
from timeoutmgr.web.access import Visitor
from timeoutmgr.web.actions import CHANNEL, changed_by, form_of, require_number, told
from timeoutmgr.web.dashboard import Dashboard
from timeoutmgr.web.forms import PendingForm, instant_of

logger = logging.getLogger(__name__)


async def note_denied(board: Dashboard, request: Request, visitor: Visitor) -> None:
    """Record in the audit that the role of *visitor* did not permit a change."""
    action = request.url.path.rsplit("/", 1)[-1]
    by = ChangedBy(channel=CHANNEL, actor=visitor.name, role=visitor.role.value)
    try:
        await run_in_threadpool(board.operations.note_denied, action, request.path_params, by)
    except TimeoutManagerError as error:
        logger.warning(
            "dashboard could not keep a denied %s of %.80s in the audit: %s",
            action,
            on_one_line(visitor.name),
            on_one_line(error),
            extra={"event": "audit_not_written", "endpoint": board.source.name},
        )


async def plan(board: Dashboard, request: Request) -> Response:
    """Plan a run with the timeouts that the form selects now, and show the plan."""
    given = await form_of(request)
    form = PendingForm.of(given)
    try:
        by, change = changed_by(request, _reason(given)), change_of(given)
        run = await run_in_threadpool(board.operations.plan, form, change, by)
    except TimeoutManagerError as error:
        return board.back(request, f"/changes?{form.query}", masked(str(error)), bad=True)
    board.readings.forget()
    if not run.selected:
        return board.back(request, f"/runs/{run.id}", "Nothing matches.", bad=True)
    return board.back(request, f"/runs/{run.id}", "Planned; nothing is changed yet.")


async def carry_out(board: Dashboard, request: Request, *, undo: bool) -> Response:
    """Apply the plan of the page, continue its run, or undo the run."""
    given, run_id = await form_of(request), request.path_params["run_id"]

    def begin() -> str:
        found = board.operations.run(run_id)
        if found is None:
            raise InvalidMessage("there is no such run")
        number = found.run.changed if undo else found.run.selected
        require_number(number, given.get("typed", ""))
        board.operations.begin(run_id, changed_by(request, _reason(given)), undo=undo)
        return "The run has begun; the page shows its progress."

    return await _done(board, request, f"/runs/{run_id}", begin)


async def pause(board: Dashboard, request: Request) -> Response:
    """Pause a destination, or all destinations."""
    given = await form_of(request)

    def change() -> str:
        by = changed_by(request, _reason(given))
        is_new = board.operations.pause(given.get("destination", ""), _end(given), by)
        return "Paused." if is_new else "It was paused before; the new end counts."

    return await _done(board, request, "/pauses", change)


async def resume(board: Dashboard, request: Request) -> Response:
    """End a pause."""
    given = await form_of(request)

    def change() -> str:
        by = changed_by(request, _reason(given))
        returned = board.operations.resume(given.get("destination", ""), by)
        if returned is None:
            raise InvalidMessage("there is no such pause; the list shows the pauses in force")
        return f"Resumed; {returned} parked timeouts are due."

    return await _done(board, request, "/pauses", change)


async def _done(
    board: Dashboard, request: Request, path: str, change: Callable[[], str]
) -> Response:
    async def done() -> tuple[str, bool]:
        return await run_in_threadpool(change), False

    return await told(board, request, path, done)


def change_of(given: Mapping[str, str]) -> BulkChange:
    """Return the change that a form describes. Raises InvalidMessage."""
    try:
        action = BulkAction(given.get("action", ""))
    except ValueError:
        raise InvalidMessage(f"choose an action: {', '.join(BulkAction)}") from None
    values: dict[str, Any] = {}
    at = instant_of(given.get("at", ""))
    if action is BulkAction.SHIFT:
        values = {"by": _duration(given.get("by", ""))}
    elif action is BulkAction.MOVE:
        values = {"to": at}
    elif action is BulkAction.SPREAD:
        over = _duration(given.get("over", ""))
        values = {"start": at, "end": None if at is None or over is None else at + over}
    elif action is BulkAction.REROUTE:
        values = {"destination": given.get("queue") or None}
    return BulkChange(action=action, **values)


def _duration(text: str) -> Micros | None:
    """Return the duration in *text*, perhaps negative; None for an empty text."""
    if not (text := text.strip()):
        return None
    try:
        span = duration_micros(parse_duration(text.removeprefix("-")))
        if span < 0:
            raise ValueError(f"{text!r:.80} is negative twice; give a single sign")
    except ValueError as error:
        raise InvalidMessage(str(error)) from error
    return -span if text.startswith("-") else span


def _end(given: Mapping[str, str]) -> datetime | timedelta | None:
    at, delay = instant_of(given.get("at", "")), _duration(given.get("delay", ""))
    if at is not None and delay is not None:
        raise InvalidMessage("give either a time or a duration")
    if at is not None:
        return from_micros(at)
    return None if delay is None else timedelta(microseconds=delay)


def _reason(given: Mapping[str, str]) -> str:
    reason = given.get("reason", "").strip()
    if not reason:
        raise InvalidMessage("give a reason; the audit keeps it")
    return reason
