"""Access control: roles, and the ways to identify a visitor."""

import hmac
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from starlette.requests import Request

from timeoutmgr.errors import ConfigurationError

_LEAST_TOKEN: Final = 16
"""Minimum characters of a token: a shorter token could be guessed."""


class Role(StrEnum):
    """Rights of a visitor; each role includes the rights of the previous roles."""

    VIEWER = "viewer"
    """Sees numbers, headers and tracebacks; no bodies."""
    OPERATOR = "operator"
    """Sees bodies; cancels, reschedules, sends and retries."""
    ADMIN = "admin"
    """Also deletes for good."""

    def includes(self, other: "Role") -> bool:
        """Return whether the role has all rights of *other*."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person or program that uses a page: its name for the audit, and its role."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Return whether the visitor has the rights of *role*."""
        return self.role.includes(role)


Access: TypeAlias = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]
"""Returns the visitor of a request, or None; a host application may provide its own function."""


@runtime_checkable
class TakesTokens(Protocol):
    """Access by tokens: a visitor enters a token once, and a signed cookie remembers it."""

    def enter(self, token: str) -> str | None:
        """Return the ticket to remember for *token*; None if the token is invalid."""
        ...


TICKET: Final = "ticket"
"""Key of the ticket in the signed cookie."""
SESSION: Final = "timeoutmgr.session"
"""Key of the dashboard's session in the scope of a request."""


def session_of(request: Request) -> MutableMapping[str, Any]:
    """Return the dashboard's session; ``request.session`` is the host application's, if any."""
    found: MutableMapping[str, Any] = request.scope[SESSION]
    return found


class TokenFile:
    """Access by the tokens in a file with lines ``ROLE NAME TOKEN``.

    The file is read again after a change: removing a token ends its sessions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, ...] = ()
        """Inode, times and size of the last read file; size and mtime alone could be faked."""
        self._visitors: Mapping[str, Visitor] = {}
        self._lock = threading.Lock()
        self._known()

    def __call__(self, request: Request) -> Visitor | None:
        """Return the visitor whose ticket the cookie of *request* has."""
        return self._known().get(session_of(request).get(TICKET, ""))

    def enter(self, token: str) -> str | None:
        """Return the ticket of *token*: its digest, so that a cookie holds no token."""
        ticket = _digest(token)
        return next((each for each in self._known() if hmac.compare_digest(each, ticket)), None)

    def _known(self) -> Mapping[str, Visitor]:
        with self._lock:
            try:
                found = self._path.stat()
                seen = found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size
                if seen != self._read:
                    self._visitors = _visitors(self._path, found.st_mode)
                    self._read = seen
            except OSError as error:
                raise ConfigurationError(
                    f"the token file {self._path} cannot be read ({error.strerror}); create it "
                    "with a line 'ROLE NAME TOKEN' for each visitor, and mode 0600"
                ) from error
            return self._visitors


class OneTimeLink:
    """Access by a printed link that works once; its visitor is an admin.

    *announce* is called with a new link whenever a link was used.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._token = ""
        self._tickets: dict[str, Visitor] = {}
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Create a new token, and announce it."""
        with self._lock:
            self._token = secrets.token_urlsafe(24)
            token = self._token
        self._announce(token)

    def __call__(self, request: Request) -> Visitor | None:
        """Return the visitor whose ticket the cookie of *request* has."""
        return self._tickets.get(session_of(request).get(TICKET, ""))

    def enter(self, token: str) -> str | None:
        """Return a new ticket for *token*, which becomes invalid."""
        with self._lock:
            if not is_same(token, self._token):
                return None
            self._token, ticket = "", secrets.token_urlsafe(24)
            self._tickets[ticket] = Visitor("local", Role.ADMIN)
        self.renew()
        return ticket


class ProxyHeaders:
    """Access by headers that a proxy adds; only requests from the addresses *proxies* are trusted.

    A visitor whose *role_header* is missing or names no role is a viewer.
    """

    def __init__(
        self,
        proxies: Iterable[str],
        *,
        user_header: str = "X-Forwarded-User",
        role_header: str | None = None,
    ) -> None:
        self._proxies = frozenset(proxies)
        self._user_header = user_header
        self._role_header = role_header
        if not self._proxies:
            raise ConfigurationError(
                "access by headers needs the addresses of the proxies that may set the headers; "
                "any client could set them otherwise"
            )

    def __call__(self, request: Request) -> Visitor | None:
        """Return the visitor that the headers of *request* name, if a trusted proxy sent it."""
        if request.client is None or request.client.host not in self._proxies:
            return None
        name = request.headers.get(self._user_header)
        if not name:
            return None
        given = request.headers.get(self._role_header, "") if self._role_header else ""
        return Visitor(name, Role(given) if given in set(Role) else Role.VIEWER)


def is_same(given: str, expected: str) -> bool:
    """Return whether *given* equals *expected*, in constant time; an empty text equals nothing."""
    bytes_given = given.encode("utf-8", "surrogatepass")  # a charset can yield half a pair
    return bool(expected) and hmac.compare_digest(bytes_given, expected.encode())


def _digest(token: str) -> str:
    return sha256(token.strip().encode("utf-8", "surrogatepass")).hexdigest()


def _visitors(path: Path, mode: int) -> dict[str, Visitor]:
    if mode & 0o077:
        raise ConfigurationError(
            f"the token file {path} can be read by other users; give it mode 0600"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the token file {path} is not text in UTF-8 (byte {error.start}: {error.reason}); "
            "save it as UTF-8"
        ) from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        if len(words) != 3 or words[0] not in set(Role) or len(words[2]) < _LEAST_TOKEN:
            raise ConfigurationError(
                f"line {number} of {path} is not 'ROLE NAME TOKEN' with a role of "
                f"{', '.join(Role)} and a token of at least {_LEAST_TOKEN} characters"
            )
        found[_digest(words[2])] = Visitor(words[1], Role(words[0]))
    return found
