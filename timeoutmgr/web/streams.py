"""Live updates of regions: by a stream of events, or by an answer to each request."""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from timeoutmgr.web.dashboard import Dashboard, event, prefix_of
from timeoutmgr.web.guard import Denied
from timeoutmgr.web.open_streams import TICK
from timeoutmgr.web.regions import REGIONS

_TICKS: Final = 5
"""Ticks of a stream; then the browser connects again, and its rights are checked again. Also, a
server that does not end streams itself waits for them when it stops."""


async def events(board: Dashboard, request: Request) -> Response:
    """Send the requested regions whenever they have new numbers, and the banner."""
    names = [each for each in request.query_params.getlist("region") if each in REGIONS]
    stream = _stream(board, request, names)
    # A proxy that buffers the response would delay all events.
    return StreamingResponse(
        stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _stream(board: Dashboard, request: Request, names: list[str]) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    yield f"retry: {TICK * 1000:.0f}\n\n"  # the next stream replaces the next tick
    for tick in range(_TICKS):
        if tick:
            await board.streams.pause()
        if board.streams.are_ended:
            return
        for name, html in (await _fragments(board, request, names)).items():
            if sent.get(name) != html:
                sent[name] = html
                yield event(name, html)


async def _fragments(board: Dashboard, request: Request, names: list[str]) -> dict[str, str]:
    given, prefix = dict(request.query_params), prefix_of(request)
    readings = await board.read(names, given, live=True)
    found = {
        name: board.regions.html(name, given, reading, prefix) for name, reading in readings.items()
    }
    banner = board.regions.banner([*readings.values()], board.clock.now(), prefix)
    return {"banner": banner, **found}


async def region(board: Dashboard, request: Request) -> Response:
    """Answer with a single region, or with the banner about the regions in the address."""
    name = request.path_params["name"]
    if name == "banner":
        names = [each for each in request.query_params.getlist("region") if each in REGIONS]
        return HTMLResponse((await _fragments(board, request, names))["banner"])
    if name not in REGIONS:
        raise Denied(404, "There is no such region.")
    return HTMLResponse((await _fragments(board, request, [name]))[name])
