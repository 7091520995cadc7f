"""The dashboard within an application of FastAPI, Flask or Django, below a prefix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from a2wsgi import ASGIMiddleware, WSGIMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from tests.web.site import HOUR, Served, fill, pending
from timeoutmgr import Endpoint
from timeoutmgr.web import Role, Visitor, dashboard

PREFIX = "/ops/timeouts"


def in_fastapi(endpoint: Endpoint) -> ASGIApp:
    from fastapi import FastAPI

    app = FastAPI()
    app.mount(PREFIX, dashboard(endpoint, access=lambda _request: Visitor("ann", Role.ADMIN)))
    return app


def below_prefix(outer: Any, endpoint: Endpoint) -> Any:
    """A WSGI application with the dashboard below the prefix, in a server of ASGI for the test."""
    board: Any = dashboard(
        endpoint, access=lambda _request: Visitor("ann", Role.ADMIN), live="polls"
    )
    mounted: dict[str, Any] = {PREFIX: ASGIMiddleware(board)}
    both: Any = DispatcherMiddleware(outer, mounted)
    return WSGIMiddleware(both)


def in_flask(endpoint: Endpoint) -> ASGIApp:
    from flask import Flask

    found: ASGIApp = below_prefix(Flask("shop").wsgi_app, endpoint)
    return found


def in_django(endpoint: Endpoint) -> ASGIApp:
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
    found: ASGIApp = below_prefix(get_wsgi_application(), endpoint)
    return found


def of_a_shop(endpoint: Endpoint) -> ASGIApp:
    board = dashboard(endpoint, access=lambda _request: Visitor("ann", Role.ADMIN))
    return Starlette(routes=[Mount("/{shop}/timeouts", board)])


@pytest.mark.parametrize(
    ("mount", "prefix"),
    [
        (in_fastapi, PREFIX),
        (in_flask, PREFIX),
        (in_django, PREFIX),
        (of_a_shop, "/what%3F%20%231%25/timeouts"),
    ],
)
def test_links_files_and_forms_stay_below_the_prefix(
    mount: Callable[[Endpoint], ASGIApp], prefix: str, endpoint: Endpoint
) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    with (
        Served(mount(endpoint)) as served,
        httpx.Client(base_url=served.url, follow_redirects=True, timeout=30) as client,
    ):
        overview = client.get(f"{prefix}/")
        page = client.get(f"{prefix}/timeouts/t1")
        (token, *_same) = re.findall(r'name="csrf" value="([^"]+)"', page.text)
        links = re.findall(r'(?:href|src)="(/[^"]*)"', overview.text + page.text)
        forms = re.findall(r'action="([^"]*)"', page.text)
        answers = {client.get(link.replace("&amp;", "&")).status_code for link in set(links)}
        done = client.post(f"{prefix}/timeouts/t1/cancel", data={"csrf": token})

    assert overview.status_code == 200
    assert [link for link in (*links, *forms) if not link.startswith(f"{prefix}/")] == []
    assert answers == {200}
    assert 'aria-current="page">Pending' in page.text
    assert "Cancelled" in done.text
    assert endpoint.timeouts.count() == 0


def test_a_dashboard_leaves_the_session_of_its_host_to_the_host(endpoint: Endpoint) -> None:
    seen: list[dict[str, Any]] = []

    def visitor(request: Request) -> Visitor:
        seen.append(dict(request.session))
        request.session["seen"] = len(seen)
        return Visitor("ann", Role.ADMIN)

    async def enter(request: Request) -> PlainTextResponse:
        request.session["user"] = "ann"
        return PlainTextResponse("")

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(dict(request.session))

    routes = [
        Route("/enter", enter),
        Route("/show", show),
        Mount(PREFIX, dashboard(endpoint, access=visitor)),
    ]
    session = Middleware(SessionMiddleware, secret_key="of the host")
    with (
        Served(Starlette(routes=routes, middleware=[session])) as served,
        httpx.Client(base_url=served.url, timeout=30) as client,
    ):
        client.get("/enter")
        page = client.get(f"{PREFIX}/pauses")
        of_host = client.get("/show").json()

    assert page.status_code == 200
    assert seen == [{"user": "ann"}]
    assert of_host == {"user": "ann", "seen": 1}


def test_two_dashboards_of_one_application_keep_their_sessions_apart(endpoint: Endpoint) -> None:
    prefixes = ("/ops/sales", "/ops/old")
    routes = [
        Mount(prefix, dashboard(endpoint, access=lambda _request: Visitor("ann", Role.ADMIN)))
        for prefix in prefixes
    ]
    with (
        Served(Starlette(routes=routes)) as served,
        httpx.Client(base_url=served.url, timeout=30) as client,
    ):
        pages = [client.get(f"{prefix}/pauses") for prefix in prefixes]
        tokens = [re.findall(r'name="csrf" value="([^"]+)"', page.text)[0] for page in pages]
        answers = [
            client.post(f"{prefix}/pauses/resume", data={"csrf": token, "reason": "back"})
            for prefix, token in zip(prefixes, tokens, strict=True)
        ]

    assert [page.headers["Set-Cookie"].split("; ")[1] for page in pages] == [
        f"path={prefix}" for prefix in prefixes
    ]
    assert [answer.status_code for answer in answers] == [303, 303]


def test_a_server_with_threads_has_its_pages_poll(endpoint: Endpoint) -> None:
    with (
        Served(in_flask(endpoint)) as served,
        httpx.Client(base_url=served.url, timeout=30) as client,
    ):
        text = client.get(f"{PREFIX}/").text
        (address, *_rest) = re.findall(r'hx-get="([^"]*/regions/overview[^"]*)"', text)
        region = client.get(address.replace("&amp;", "&"))

    assert "sse-connect" not in text
    assert "tile" in region.text
