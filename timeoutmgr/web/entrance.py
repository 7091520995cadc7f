"""Login and logout: a token becomes a ticket in the signed cookie."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from timeoutmgr.web.access import TICKET, TakesTokens, session_of
from timeoutmgr.web.dashboard import Dashboard, prefix_of
from timeoutmgr.web.guard import Denied, require_own_form


async def show_form(board: Dashboard, request: Request) -> Response:
    """Show the form that asks for a token."""
    if not board.has_login:
        raise Denied(404, "There is no such page.")
    return await board.page(request, "login")


async def take_form(board: Dashboard, request: Request) -> Response:
    """Log in with the token in the form."""
    await require_own_form(request)
    return _enter(board, request, str((await request.form()).get("given", "")))


async def follow_link(board: Dashboard, request: Request) -> Response:
    """Log in with the token of a link; the browser then shows an address without it."""
    if request.method == "HEAD":
        # The preview of a chat would use up the link.
        raise HTTPException(405, headers={"Allow": "GET"})
    return _enter(board, request, request.query_params.get("token", ""))


async def leave(board: Dashboard, request: Request) -> Response:
    """Log out the visitor."""
    await require_own_form(request)
    session_of(request).clear()
    return RedirectResponse(f"{prefix_of(request)}/login", 303)


def _enter(board: Dashboard, request: Request, token: str) -> Response:
    ticket = board.access.enter(token) if isinstance(board.access, TakesTokens) else None
    if ticket is None:
        return board.back(request, "/login", "The token is not valid.", bad=True)
    # Start a new session: an attacker may have planted the old session.
    session = session_of(request)
    session.clear()
    session[TICKET] = ticket
    return RedirectResponse(f"{prefix_of(request)}/", 303)
