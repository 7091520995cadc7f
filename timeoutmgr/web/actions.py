"""Handlers of forms that change things: check input, call the library, and show the result."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from timeoutmgr.contracts import CancelResult, ChangeResult
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import from_micros, parse_duration
from timeoutmgr.message.redaction import masked
from timeoutmgr.transport.error_queue_retry import RetryRequest
from timeoutmgr.web.access import Visitor
from timeoutmgr.web.dashboard import Dashboard
from timeoutmgr.web.dead_letters import copy_form
from timeoutmgr.web.forms import FailureForm, instant_of, require_texts
from timeoutmgr.web.pages import address

CHANNEL: Final = "web"
ABOVE: Final = 100
"""Number of messages above which a person must type the number to change them."""
MOST: Final = 1_000
"""Maximum messages that one form retries or deletes: the visitor waits for the result."""
_SENTENCES: Final = {
    "cancelled": "Cancelled: it will not be delivered.",
    "will_be_cancelled": "No such timeout is stored. If its message arrives, it is dropped.",
    "too_late": "Too late: it was sent, or is being sent now.",
    "maybe_sent": "Done; but it may have been sent before.",
    "unknown": "No such timeout is stored.",
    "changed": "Moved.",
}


async def cancel(board: Dashboard, request: Request) -> Response:
    """Cancel the timeout of the page."""
    return await _change(board, request, board.source.cancel)


async def reschedule(board: Dashboard, request: Request) -> Response:
    """Move the page's timeout to the time in the form, or to the delay from now."""
    given = await form_of(request)

    def change(timeout_id: str, by: ChangedBy) -> ChangeResult:
        at, delay = _at_or_delay(given)
        return board.source.reschedule(timeout_id, by, at=at, delay=delay)

    return await _change(board, request, change)


async def send_now(board: Dashboard, request: Request) -> Response:
    """Dispatch the timeout of the page at once."""
    return await _change(board, request, board.source.send_now)


def _at_or_delay(given: Mapping[str, str]) -> tuple[datetime | None, timedelta | None]:
    at, delay = given.get("at", ""), given.get("delay", "")
    if bool(at) == bool(delay):
        raise InvalidMessage("give either a time or a delay")
    due = instant_of(at)
    if due is not None:
        return from_micros(due), None
    try:
        return None, parse_duration(delay)
    except ValueError as error:
        raise InvalidMessage(str(error)) from error


async def _change(
    board: Dashboard,
    request: Request,
    change: Callable[[str, ChangedBy], CancelResult | ChangeResult],
) -> Response:
    timeout_id, by = request.path_params["timeout_id"], changed_by(request)

    async def done() -> tuple[str, bool]:
        result = (await run_in_threadpool(change, timeout_id, by)).value
        return _SENTENCES[result], result in ("too_late", "unknown")

    return await told(board, request, f"/timeouts/{quote(timeout_id)}", done)


async def change_failures(board: Dashboard, request: Request, *, delete: bool) -> Response:
    """Retry or permanently delete selected messages of the error queue, up to a limit."""
    given = await form_of(request)
    form = FailureForm.of(given)

    async def done() -> tuple[str, bool]:
        which = form.filter
        changed = RetryRequest(ids=which.ids, which=which, limit=limit_of(given), delete=delete)
        results = await run_in_threadpool(board.source.retry, changed, changed_by(request))
        return _summary(Counter(each.result.value for each in results))

    of_group = {"exception": form.exception or "", "type": form.type or ""}
    return await told(board, request, address("/errors", of_group), done)


async def retry_dead_letters(board: Dashboard, request: Request) -> Response:
    """Send the selected dead letters to their destinations again."""
    given = await form_of(request)

    async def done() -> tuple[str, bool]:
        form = copy_form(given)
        by = changed_by(request)
        results = await run_in_threadpool(board.letters.retry, form, limit_of(given), by)
        return _summary(Counter(each.what.value for each in results))

    return await told(board, request, "/dead-letters", done)


def limit_of(given: Mapping[str, str]) -> int:
    """Return the maximum number of messages for a form: no more than its page showed.

    Raises InvalidMessage.
    """
    try:
        limit = min(MOST, *(int(given.get(each) or MOST) for each in ("limit", "expected")))
    except ValueError:
        raise InvalidMessage("the number of messages is a whole number") from None
    if limit < 1:
        raise InvalidMessage("the number of messages is at least 1")
    require_number(limit, given.get("typed", ""))
    return limit


def require_number(number: int, typed: str) -> None:
    """Raise InvalidMessage unless *number* is small, or the person has *typed* it."""
    if number > ABOVE and typed.strip() != str(number):
        raise InvalidMessage(f"type the number {number} to change more than {ABOVE} of them")


def _summary(results: Mapping[str, int]) -> tuple[str, bool]:
    if not results:
        return "No message was found; the page shows the present state.", True
    text = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in results.items())
    return f"{text}.", bool(set(results) - {"retried", "deleted"})


async def told(
    board: Dashboard, request: Request, path: str, done: Callable[[], Awaitable[tuple[str, bool]]]
) -> Response:
    """Await *done* and go to *path*, which shows the result or the reason of a refusal."""
    try:
        text, bad = await done()
    except TimeoutManagerError as error:
        text, bad = masked(str(error)), True
    board.readings.forget()
    return board.back(request, path, text, bad=bad)


def changed_by(request: Request, reason: str | None = None) -> ChangedBy:
    """Return the visitor of *request* in the form for the audit."""
    visitor: Visitor = request.scope["visitor"]
    return ChangedBy(channel=CHANNEL, actor=visitor.name, role=visitor.role.value, reason=reason)


async def form_of(request: Request) -> dict[str, str]:
    """Return the texts of the form of *request*. Raises InvalidMessage."""
    given = {name: str(text) for name, text in (await request.form()).items()}
    require_texts(given.values())
    return given
