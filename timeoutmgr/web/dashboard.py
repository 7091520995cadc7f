"""The dashboard of an endpoint: what its pages share, and the responses to requests."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from timeoutmgr.contracts import Clock
from timeoutmgr.web.access import Access, Role, TakesTokens, Visitor, session_of
from timeoutmgr.web.dead_letters import NodeDeadLetters
from timeoutmgr.web.guard import form_token
from timeoutmgr.web.open_streams import OpenStreams
from timeoutmgr.web.operations import Operations
from timeoutmgr.web.readings import Question, Reading, Readings
from timeoutmgr.web.regions import LiveRegions
from timeoutmgr.web.source import EndpointSource

Live: TypeAlias = Literal["events", "polls"]
"""How pages are updated: by server-sent events, or by polling if the server uses threads."""

PAGES: tuple[tuple[str, str], ...] = (
    ("/", "Overview"),
    ("/load", "What comes when"),
    ("/pending", "Pending"),
    ("/late", "Overdue, in flight"),
    ("/errors", "Errors"),
    ("/dead-letters", "Dead letters"),
    ("/processes", "Processes"),
    ("/runs", "Runs"),
    ("/pauses", "Pauses"),
    ("/audit", "Audit"),
)
_NOTE = "note"
_LINE_END = re.compile(r"\r\n|\r|\n")
"""The ends of a line of server-sent events."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The source, its readings, and the templates of one mounted dashboard."""

    source: EndpointSource
    letters: NodeDeadLetters
    operations: Operations
    readings: Readings
    regions: LiveRegions
    templates: Environment
    clock: Clock
    access: Access
    streams: OpenStreams
    live: Live = "events"

    @property
    def has_login(self) -> bool:
        """Whether a visitor can log in by a token."""
        return isinstance(self.access, TakesTokens)

    async def ask(
        self, key: Hashable, read: Callable[[], Any], *, cost: int = 4, max_age: float = 2
    ) -> Reading:
        """Return the reading of *key* for a page that a person asked for."""
        fresh = self.readings.fresh(key, max_age)
        if fresh is not None:
            return fresh
        question = Question(key, read, max_age=max_age, cost=cost)
        return await run_in_threadpool(self.readings.get, question)

    async def read(
        self, names: Sequence[str], given: Mapping[str, str], *, live: bool = False
    ) -> dict[str, Reading]:
        """Return the readings of regions; use a thread if some may need a read."""
        get = partial(self.regions.readings, names, given, live=live)
        if all(self.regions.is_fresh(each, given) for each in names):
            return get()
        return await run_in_threadpool(get)

    async def page(
        self,
        request: Request,
        name: str,
        *,
        regions: Sequence[str] = (),
        given: Mapping[str, str] | None = None,
        readings: Sequence[Reading] = (),
        status: int = 200,
        **values: Any,
    ) -> Response:
        """Answer with the page *name*, its *regions*, and a banner about failed reads."""
        prefix, given = prefix_of(request), given or {}
        read = await self.read(regions, given)
        html = {
            each: self.regions.html(each, given, reading, prefix) for each, reading in read.items()
        }
        every = [*readings, *read.values()]
        visitor: Visitor | None = request.scope.get("visitor")
        text = self.templates.get_template(f"{name}.html").render(
            prefix=prefix,
            path=request.scope["path"].removeprefix(unquote(prefix)) or "/",
            endpoint=self.source.name,
            pages=PAGES,
            visitor=visitor,
            may_change=visitor is not None and visitor.may(Role.OPERATOR),
            may_delete=visitor is not None and visitor.may(Role.ADMIN),
            has_login=self.has_login,
            token=form_token(request),
            note=session_of(request).pop(_NOTE, None),
            banner=self.regions.banner(every, self.clock.now(), prefix, renews=bool(regions)),
            live=self.live,
            renewing=[*regions],
            query=urlencode([*((("region", each)) for each in regions), *given.items()]),
            html=html,
            given=given,
            **values,
        )
        return HTMLResponse(text, status)

    def back(self, request: Request, path: str, note: str, *, bad: bool = False) -> Response:
        """Answer a form: go to the page *path*, which shows *note* once."""
        # The cookie holds 4 KiB, and encodes a character outside ASCII with up to twelve bytes.
        length = 600 if note.isascii() else 200
        session_of(request)[_NOTE] = {"text": note[:length], "bad": bad}
        return RedirectResponse(f"{prefix_of(request)}{path}", 303)


def prefix_of(request: Request) -> str:
    """Return the path prefix, encoded, at which the host application mounted the dashboard."""
    return quote(request.scope.get("root_path", "").rstrip("/"))


def event(name: str, html: str) -> str:
    """Return a server-sent event with *html*; each line of it becomes a separate field."""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(html))
    return f"event: {name}\n{lines}\n"
