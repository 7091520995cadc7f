"""The ASGI application: its routes, their guards, and its error pages."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.redaction import masked
from timeoutmgr.web import actions, bulk_actions, entrance, pages, streams
from timeoutmgr.web.access import Access, Role
from timeoutmgr.web.dashboard import Dashboard, Live, prefix_of
from timeoutmgr.web.dead_letters import NodeDeadLetters
from timeoutmgr.web.forms import require_texts
from timeoutmgr.web.guard import BrowserHeaders, Denied, OwnSession, require_own_form, visitor_of
from timeoutmgr.web.open_streams import OpenStreams
from timeoutmgr.web.operations import Operations
from timeoutmgr.web.page_texts import STATIC, environment
from timeoutmgr.web.readings import Readings
from timeoutmgr.web.regions import LiveRegions
from timeoutmgr.web.source import EndpointSource

Answer: TypeAlias = Callable[[Dashboard, Request], Awaitable[Response]]

_SHOWN: Final[tuple[tuple[str, Answer], ...]] = (
    ("/", pages.overview),
    ("/load", pages.load),
    ("/pending", pages.pending),
    ("/timeouts", pages.find),
    ("/timeouts/{timeout_id:path}", pages.timeout),
    ("/errors", pages.errors),
    ("/errors/message", pages.failed_message),
    ("/dead-letters", pages.dead_letters),
    ("/runs/{run_id}", pages.run),
    ("/events", streams.events),
    ("/regions/{name}", streams.region),
    *(
        (f"/{name}", partial(pages.of_region, name=name))
        for name in ("late", "processes", "runs", "pauses")
    ),
)
_FOR_OPERATORS: Final[tuple[tuple[str, Answer], ...]] = (
    ("/changes", pages.change),
    ("/audit", pages.audit),
)
_CHANGED: Final[tuple[tuple[str, Answer, Role], ...]] = (
    ("/timeouts/{timeout_id:path}/cancel", actions.cancel, Role.OPERATOR),
    ("/timeouts/{timeout_id:path}/reschedule", actions.reschedule, Role.OPERATOR),
    ("/timeouts/{timeout_id:path}/send-now", actions.send_now, Role.OPERATOR),
    ("/errors/retry", partial(actions.change_failures, delete=False), Role.OPERATOR),
    ("/errors/delete", partial(actions.change_failures, delete=True), Role.ADMIN),
    ("/dead-letters/retry", actions.retry_dead_letters, Role.OPERATOR),
    ("/changes", bulk_actions.plan, Role.OPERATOR),
    ("/runs/{run_id}/apply", partial(bulk_actions.carry_out, undo=False), Role.OPERATOR),
    ("/runs/{run_id}/undo", partial(bulk_actions.carry_out, undo=True), Role.OPERATOR),
    ("/pauses/pause", bulk_actions.pause, Role.OPERATOR),
    ("/pauses/resume", bulk_actions.resume, Role.OPERATOR),
)


def dashboard(
    endpoint: Endpoint,
    *,
    access: Access,
    live: Live = "events",
    secret: str | None = None,
    secure_cookie: bool = False,
    readings: Readings | None = None,
) -> Starlette:
    """Return the dashboard of *endpoint*, an ASGI application to be served or mounted.

    *access* returns the visitor of a request. *live* is how pages are updated; "polls" is for
    servers with threads. Processes that serve one dashboard must share *secret*, which signs the
    cookie; by default it is random. With *secure_cookie* browsers send the cookie only by HTTPS.
    """
    clock = endpoint.parts.settings.clock
    readings, streams = readings or Readings(clock), OpenStreams()
    source, templates = EndpointSource(endpoint), environment()
    operations = Operations(source)
    board = Dashboard(
        source=source,
        letters=NodeDeadLetters(endpoint.parts),
        operations=operations,
        readings=readings,
        regions=LiveRegions(source, operations, readings, templates),
        templates=templates,
        clock=clock,
        access=access,
        streams=streams,
        live=live,
    )
    session = Middleware(OwnSession, endpoint=endpoint.name, secret=secret, secure=secure_cookie)
    made = Starlette(
        routes=_routes(board),
        middleware=[Middleware(BrowserHeaders), session],
        exception_handlers={
            Denied: partial(_denied, board),
            TimeoutManagerError: partial(_failed, board),
            404: partial(_not_found, board),
        },
    )
    made.state.readings, made.state.streams, made.state.operations = readings, streams, operations
    made.state.servers = endpoint.parts.servers
    return made


def _routes(board: Dashboard) -> list[Route | Mount]:
    shown = [
        Route(path, partial(_show, board, answer, role))
        for answers, role in ((_SHOWN, Role.VIEWER), (_FOR_OPERATORS, Role.OPERATOR))
        for path, answer in answers
    ]
    changed = [
        Route(path, partial(_change, board, answer, role), methods=["POST"])
        for path, answer, role in _CHANGED
    ]
    entered = [
        Route("/login", partial(entrance.show_form, board)),
        Route("/login", partial(entrance.take_form, board), methods=["POST"]),
        Route("/enter", partial(entrance.follow_link, board)),
        Route("/logout", partial(entrance.leave, board), methods=["POST"]),
    ]
    # Compress only files: the size of a compressed page would reveal the form's token.
    files = Mount("/static", GZipMiddleware(_KeptFiles(directory=STATIC)))
    return [*shown, *changed, *entered, files]


class _KeptFiles(StaticFiles):
    """Static files; their addresses contain a digest, so browsers may cache them forever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        found = await super().get_response(path, scope)
        found.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return found


async def _show(board: Dashboard, answer: Answer, role: Role, request: Request) -> Response:
    request.scope["visitor"] = await visitor_of(request, board.access, role)
    _require_texts(request)
    return await answer(board, request)


async def _change(board: Dashboard, answer: Answer, role: Role, request: Request) -> Response:
    _require_texts(request)
    try:
        request.scope["visitor"] = await visitor_of(request, board.access, role)
    except Denied as denied:
        if denied.visitor is not None:
            await bulk_actions.note_denied(board, request, denied.visitor)
        raise
    await require_own_form(request)
    return await answer(board, request)


def _require_texts(request: Request) -> None:
    require_texts([*request.path_params.values(), *request.query_params.values()])


async def _denied(board: Dashboard, request: Request, error: Denied) -> Response:
    if request.url.path.endswith("/events"):
        return PlainTextResponse(error.reason, error.status)
    if error.status == 401 and board.has_login and request.method == "GET":
        return RedirectResponse(f"{prefix_of(request)}/login", 303)
    return await board.page(request, "refusal", status=error.status, reason=error.reason)


async def _failed(board: Dashboard, request: Request, error: TimeoutManagerError) -> Response:
    status = 400 if isinstance(error, InvalidMessage) else 503
    return await board.page(request, "refusal", status=status, reason=masked(str(error)))


async def _not_found(board: Dashboard, request: Request, _error: Exception) -> Response:
    return await board.page(request, "refusal", status=404, reason="There is no such page.")
