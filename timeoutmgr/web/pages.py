"""Read-only pages: if the store or the broker is unavailable, they show the last numbers."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from timeoutmgr.contracts.bulk_runs import BulkAction
from timeoutmgr.endpoint.timeouts import key_at
from timeoutmgr.message.message import enclosed_types
from timeoutmgr.web.access import Role
from timeoutmgr.web.dashboard import Dashboard, prefix_of
from timeoutmgr.web.dead_letters import copy_form
from timeoutmgr.web.forms import FailureForm, PendingForm
from timeoutmgr.web.regions import SPANS, span_of, window_of

_FAILURES_SHOWN: Final = 100


async def overview(board: Dashboard, request: Request) -> Response:
    """Show an overview of the endpoint."""
    return await board.page(request, "overview", regions=("overview", "load", "queues", "recent"))


async def load(board: Dashboard, request: Request) -> Response:
    """Show a histogram of due times; a selected bar leads to the list of its timeouts."""
    given = {"span": span_of(request.query_params)}
    for name in ("start", "destination", "zone"):
        if text := request.query_params.get(name, ""):
            given[name] = text
    window_of(given)
    return await board.page(request, "load", regions=("load",), given=given, spans=SPANS)


async def pending(board: Dashboard, request: Request) -> Response:
    """Show a page of the pending timeouts that match a filter."""
    form = PendingForm.of(request.query_params)
    after = request.query_params.get("after", "")
    which, behind = form.filter, key_at(after) if after else None
    found = await board.ask(
        ("pending", form, after), lambda: board.source.pending(which, behind), cost=20
    )
    return await board.page(
        request, "pending", readings=[found], form=form, after=after, found=found.value
    )


async def find(board: Dashboard, request: Request) -> Response:
    """Go to the page of the timeout with the id in the form."""
    given = request.query_params.get("id", "")
    if not given:
        return RedirectResponse(f"{prefix_of(request)}/pending", 303)
    return RedirectResponse(f"{prefix_of(request)}/timeouts/{quote(given, safe='')}", 303)


async def timeout(board: Dashboard, request: Request) -> Response:
    """Show one timeout: its state, message, events, and possible actions."""
    timeout_id: str = request.path_params["timeout_id"]
    found = await board.ask(
        ("timeout", timeout_id), lambda: board.source.timeout(timeout_id), max_age=0
    )
    seen, now = found.value or (None, None)
    message = None if seen is None or seen.timeout is None else seen.timeout.message
    return await board.page(
        request,
        "timeout",
        readings=[found],
        status=404 if found.value is not None and seen is None else 200,
        timeout_id=timeout_id if seen is None else seen.id,
        seen=seen,
        now=now,
        known=found.value is not None,
        types=[] if message is None else enclosed_types(message),
        may_read_bodies=request.scope["visitor"].may(Role.OPERATOR),
    )


async def of_region(board: Dashboard, request: Request, *, name: str) -> Response:
    """Show the page *name*, which has only the region of that name."""
    return await board.page(request, name, regions=(name,))


async def errors(board: Dashboard, request: Request) -> Response:
    """Show the messages of the error queue by group; a group shows its messages."""
    form = FailureForm.of(request.query_params)
    which = form.filter
    found = await board.ask(
        ("errors", form), lambda: board.source.failures(which), max_age=10, cost=3
    )
    is_group = form != FailureForm()
    return await board.page(
        request,
        "errors",
        readings=[found],
        form=form,
        found=found.value,
        shown=[] if found.value is None or not is_group else found.value.records[:_FAILURES_SHOWN],
        is_group=is_group,
    )


async def failed_message(board: Dashboard, request: Request) -> Response:
    """Show one message of the error queue, with its traceback."""
    message_id = request.query_params.get("id", "")
    found = await board.ask(
        ("failure", message_id), lambda: (board.source.failure(message_id),), cost=3
    )
    (failure,) = found.value or (None,)
    return await board.page(
        request,
        "failed_message",
        readings=[found],
        status=404 if found.value == (None,) else 200,
        message_id=message_id,
        known=found.value is not None,
        failure=failure,
        may_read_bodies=request.scope["visitor"].may(Role.OPERATOR),
    )


async def dead_letters(board: Dashboard, request: Request) -> Response:
    """Show dead letters by class; a class shows its copies."""
    form = copy_form(request.query_params)
    found = await board.ask(
        ("dead letters", form), lambda: board.letters.view(form), max_age=10, cost=4
    )
    return await board.page(
        request,
        "dead_letters",
        readings=[found],
        form=form,
        found=found.value,
        known=found.at is not None,
    )


async def change(board: Dashboard, request: Request) -> Response:
    """Show the form that plans a change of many timeouts."""
    return await board.page(
        request, "change", form=PendingForm.of(request.query_params), actions=[*BulkAction]
    )


async def run(board: Dashboard, request: Request) -> Response:
    """Show one run: its plan, progress, audit, and possible actions."""
    run_id: str = request.path_params["run_id"]
    given = {"run": run_id}
    read = (await board.read(["run"], given))["run"]
    return await board.page(
        request,
        "run",
        regions=("run",),
        given=given,
        status=404 if read.at is not None and read.value is None else 200,
        run_id=run_id,
        found=read.value,
    )


async def audit(board: Dashboard, request: Request) -> Response:
    """Show who changed timeouts."""
    run_id = request.query_params.get("run", "").strip()
    found = await board.ask(("audit", run_id), lambda: board.operations.audit(run_id), cost=2)
    return await board.page(request, "audit", readings=[found], run_id=run_id, found=found.value)


def address(path: str, values: Mapping[str, str]) -> str:
    """Return *path* with *values* as its query."""
    query = urlencode({name: text for name, text in values.items() if text})
    return f"{path}?{query}" if query else path
