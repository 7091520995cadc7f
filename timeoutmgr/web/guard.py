"""Protection of requests: browser headers, the visitor's session, and checks of forms."""

import inspect
import secrets
from hashlib import sha256
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timeoutmgr.web.access import SESSION, Access, Role, Visitor, is_same, session_of

CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With referrers off, browsers would not send the origin of a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TOKEN: Final = "csrf"
_REMEMBERED: Final = 12 * 60 * 60
"""Seconds until a login expires."""


class BrowserHeaders:
    """Middleware that adds headers to each answer: browsers cache static files, but no pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add headers to its answer."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


class OwnSession:
    """Middleware for the dashboard's session, separate from the host application's session.

    Dashboards on one host name have separate cookies: the prefix is the path of the cookie, and a
    digest of the endpoint and the secret is its name. Without a given *secret* a single process
    serves the dashboard, and the digest uses the Host header instead, so that a restart leaves no
    second cookie. With a secret it does not: behind a proxy, processes that share a secret may see
    different addresses.
    """

    def __init__(self, app: ASGIApp, *, endpoint: str, secret: str | None, secure: bool) -> None:
        self._app = app
        self._endpoint = endpoint
        self._secret = secret
        self._key = secret or secrets.token_urlsafe(32)
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with both sessions, in a scope that the host does not see."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def passed(inside: Scope, receive: Receive, send: Send) -> None:
            own = inside["session"]
            await self._app(
                {**inside, SESSION: own, "session": scope.get("session", own)}, receive, send
            )

        session = SessionMiddleware(
            passed,
            secret_key=self._key,
            session_cookie=self._cookie_of(scope),
            max_age=_REMEMBERED,
            path=quote(scope.get("root_path", "").rstrip("/")) or "/",
            same_site="strict",
            https_only=self._secure,
        )
        await session(dict(scope), receive, send)

    def _cookie_of(self, scope: Scope) -> str:
        known_by = self._secret or Headers(scope=scope).get("Host", "")
        digest = sha256(f"{self._endpoint} {known_by}".encode()).hexdigest()
        return f"timeoutmgr_{digest[:16]}"


class Denied(Exception):
    """Raised for a request without the right to its page; *status* is the HTTP status.

    *visitor* is set if the role of a known visitor is too low.
    """

    def __init__(self, status: int, reason: str, visitor: Visitor | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.visitor = visitor


async def visitor_of(request: Request, access: Access, role: Role) -> Visitor:
    """Return the visitor of *request*; raise Denied if it lacks the rights of *role*."""
    found = access(request)
    visitor = await found if inspect.isawaitable(found) else found
    if visitor is None:
        raise Denied(401, "This page needs a known visitor.")
    if not visitor.may(role):
        reason = f"This needs the role {role.value}; {visitor.name} has {visitor.role}."
        raise Denied(403, reason, visitor)
    return visitor


def form_token(request: Request) -> str:
    """Return the token in the forms of this session."""
    token: str = session_of(request).setdefault(_TOKEN, secrets.token_urlsafe(24))
    return token


async def require_own_form(request: Request) -> None:
    """Raise Denied unless *request* comes from a form of our pages in this session."""
    if not _is_of_our_site(request):
        raise Denied(403, "The form came from another site; nothing was changed.")
    try:
        given = str((await request.form()).get(_TOKEN, ""))
    except UnicodeError as error:  # the charset of a part can name any codec
        raise Denied(400, f"The form cannot be read: {error}.") from None
    if not is_same(given, session_of(request).get(_TOKEN, "")):
        raise Denied(403, "The form is not of this session; load the page again.")


def _is_of_our_site(request: Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # An older browser, or plain HTTP. A proxy may have changed the host: then the token decides.
    origin = request.headers.get("Origin")
    hosts = request.headers.get("Host"), request.headers.get("X-Forwarded-Host")
    return origin is None or urlsplit(origin).netloc in hosts
