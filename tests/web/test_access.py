"""Access: who may enter, by what, and which forms are believed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from tests.web.site import HOUR, Served, Site, fail, fill, pending, waiting
from timeoutmgr import Endpoint
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.web import Access, OneTimeLink, ProxyHeaders, Role, TokenFile, Visitor, dashboard
from timeoutmgr.web.server import ServerAddress

TOKEN = "a-long-enough-token"
NEXT_YEAR = 1_900_000_000_000_000


@pytest.fixture
def stored(endpoint: Endpoint) -> str:
    """The page of a pending timeout."""
    fill(endpoint, [pending("t1-stored", NEXT_YEAR + HOUR, body=b"secret body")])
    return "/timeouts/t1-stored"


@pytest.fixture
def served(endpoint: Endpoint) -> Iterator[Callable[[Access], httpx.Client]]:
    """Serves the dashboard with an access."""
    opened: list[tuple[Served, httpx.Client]] = []

    def serve(access: Access) -> httpx.Client:
        server = Served(dashboard(endpoint, access=access)).__enter__()
        client = httpx.Client(base_url=server.url, timeout=30, follow_redirects=True)
        opened.append((server, client))
        return opened[-1][1]

    yield serve

    for server, client in opened:
        client.close()
        server.__exit__(None, None, None)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# visitors\noperator ann {TOKEN}\n")
    path.chmod(0o600)
    return path


def posted(client: httpx.Client, path: str, charset: str, **fields: str) -> httpx.Response:
    """The answer to a form of several parts in *charset*, of ASCII as it is given."""
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    ]
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    content = "".join([*parts, "--x--\r\n"]).encode()
    return client.post(path, content=content, headers={"Content-Type": kind})


def csrf(text: str) -> str:
    found: str = re.findall(r'name="csrf" value="([^"]+)"', text)[0]
    return found


# --- roles ------------------------------------------------------------------------------------


def test_an_unknown_visitor_sees_nothing(site: Site, stored: str) -> None:
    site.role = None

    for path in ("/", "/pending", stored, "/events?region=overview", "/regions/overview"):
        assert "t1-stored" not in site.get(path, 401)


def test_a_viewer_sees_headers_and_no_body_and_no_action(site: Site, stored: str) -> None:
    site.role = Role.VIEWER

    text = site.get(stored)

    assert "PaymentOverdue" in text
    assert "secret body" not in text
    assert "/cancel" not in text


def test_a_viewer_cannot_change_even_with_a_token_of_a_form(
    site: Site, endpoint: Endpoint, stored: str
) -> None:
    token = csrf(site.get(stored))
    site.role = Role.VIEWER

    answer = site.client.post(f"{stored}/cancel", data={"csrf": token})

    assert answer.status_code == 403
    assert endpoint.timeouts.count() == 1


def test_an_operator_cannot_delete(site: Site, endpoint: Endpoint) -> None:
    fail(endpoint, 1, reason="broken")
    site.role = Role.OPERATOR

    answer = site.post("/errors", "/errors/delete", limit="1")

    assert answer.status_code == 403
    assert waiting(endpoint, endpoint.parts.settings.error_queue) == 1


# --- forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "guessed"])
def test_a_form_without_the_token_of_its_session_changes_nothing(
    site: Site, endpoint: Endpoint, stored: str, token: str
) -> None:
    site.get(stored)

    answer = site.client.post(f"{stored}/cancel", data={"csrf": token})

    assert answer.status_code == 403
    assert endpoint.timeouts.count() == 1


@pytest.mark.parametrize(
    ("charset", "text", "status"),
    [("unicode_escape", "\\ud800", 403), ("utf-7", "+2AA-", 403), ("undefined", "x", 400)],
)
def test_a_form_whose_charset_yields_no_unicode_changes_nothing(
    site: Site, endpoint: Endpoint, stored: str, charset: str, text: str, status: int
) -> None:
    token = csrf(site.get(stored))

    as_token = posted(site.client, f"{stored}/cancel", charset, csrf=text)
    as_reason = posted(
        site.client, "/pauses/pause", charset, csrf=token, destination="q", reason=text
    )

    assert (as_token.status_code, as_reason.status_code) == (status, 400)
    assert endpoint.timeouts.count() == 1
    assert endpoint.timeouts.pauses() == []


def test_a_login_whose_charset_yields_no_unicode_is_refused(
    served: Callable[[Access], httpx.Client],
) -> None:
    link = OneTimeLink(lambda _token: None)
    link.renew()
    client = served(link)
    token = csrf(client.get("/login").text)

    answer = posted(client, "/login", "unicode_escape", csrf=token, given="\\ud800")

    assert "not valid" in answer.text


@pytest.mark.parametrize(
    "header",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
def test_a_form_of_another_site_changes_nothing(
    site: Site, endpoint: Endpoint, stored: str, header: dict[str, str]
) -> None:
    token = csrf(site.get(stored))

    answer = site.client.post(f"{stored}/cancel", data={"csrf": token}, headers=header)

    assert answer.status_code == 403
    assert endpoint.timeouts.count() == 1


def test_an_address_alone_changes_nothing(site: Site, endpoint: Endpoint, stored: str) -> None:
    assert site.client.get(f"{stored}/cancel").status_code == 404
    assert endpoint.timeouts.count() == 1


def test_each_answer_binds_the_browser(site: Site) -> None:
    answer = site.client.get("/")
    policy = answer.headers["Content-Security-Policy"]

    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    cookie = answer.headers["Set-Cookie"]
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_no_page_has_a_script_or_a_style_of_its_own(site: Site, stored: str) -> None:
    for path in ("/", "/load", "/pending", stored, "/late", "/errors", "/processes"):
        text = site.get(path)
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]* src=)", text) == [], path


# --- tokens, links, proxies -------------------------------------------------------------------


def test_a_token_opens_a_session_until_it_is_removed(
    served: Callable[[Access], httpx.Client], token_file: Path
) -> None:
    client = served(TokenFile(token_file))
    asked = client.get("/")
    wrong = client.post("/login", data={"csrf": csrf(asked.text), "given": "wrong"})
    entered = client.post("/login", data={"csrf": csrf(wrong.text), "given": TOKEN})
    token_file.write_text("viewer bob another-long-token\n")
    after = client.get("/pending")

    assert asked.url.path == "/login"
    assert "not valid" in wrong.text
    assert (entered.url.path, "ann · operator" in entered.text) == ("/", True)
    assert after.url.path == "/login"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_removed_token_ends_its_session_if_the_file_keeps_size_and_time(
    served: Callable[[Access], httpx.Client], token_file: Path, replaced: bool
) -> None:
    client = served(TokenFile(token_file))
    client.post("/login", data={"csrf": csrf(client.get("/").text), "given": TOKEN})
    before = token_file.stat()
    written = token_file.with_name("new") if replaced else token_file
    written.write_text(token_file.read_text().replace(TOKEN, TOKEN[::-1]))
    written.chmod(0o600)
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    written.replace(token_file)

    assert token_file.stat().st_size == before.st_size
    assert token_file.stat().st_mtime_ns == before.st_mtime_ns
    assert client.get("/pending").url.path == "/login"


def test_leaving_ends_the_session(
    served: Callable[[Access], httpx.Client], token_file: Path
) -> None:
    client = served(TokenFile(token_file))
    entered = client.post("/login", data={"csrf": csrf(client.get("/").text), "given": TOKEN})

    client.post("/logout", data={"csrf": csrf(entered.text)})

    assert client.get("/").url.path == "/login"


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        (f"operator ann {TOKEN}", 0o644, "mode 0600"),
        (f"boss ann {TOKEN}", 0o600, "line 1"),
        ("viewer ann short", 0o600, "at least 16"),
        (f"viewer {TOKEN}", 0o600, "ROLE NAME TOKEN"),
        (f"viewer \udcff {TOKEN}", 0o600, "tokens is not text in UTF-8"),
    ],
)
def test_a_token_file_that_is_unsafe_is_refused(
    tmp_path: Path, text: str, mode: int, complaint: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, errors="surrogateescape")
    path.chmod(mode)

    with pytest.raises(ConfigurationError, match=complaint):
        TokenFile(path)


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="create it"):
        TokenFile(tmp_path / "none")


def test_a_link_works_once(served: Callable[[Access], httpx.Client]) -> None:
    tokens: list[str] = []
    link = OneTimeLink(tokens.append)
    link.renew()
    client = served(link)

    first = client.get("/enter", params={"token": tokens[0]})
    client.cookies.clear()
    second = client.get("/enter", params={"token": tokens[0]})
    third = client.get("/enter", params={"token": tokens[1]})

    assert (first.url.path, first.url.query) == ("/", b"")
    assert second.url.path == "/login"
    assert third.url.path == "/"


def test_a_preview_of_a_link_does_not_use_it_up(
    served: Callable[[Access], httpx.Client],
) -> None:
    tokens: list[str] = []
    link = OneTimeLink(tokens.append)
    link.renew()
    client = served(link)

    preview = client.head("/enter", params={"token": tokens[0]})
    entered = client.get("/enter", params={"token": tokens[0]})

    assert (preview.status_code, preview.headers["Allow"]) == (405, "GET")
    assert entered.url.path == "/"


@pytest.mark.parametrize(
    ("secret", "is_shared"),
    [pytest.param(None, False, id="random"), pytest.param("given", True, id="given")],
)
def test_dashboards_at_two_ports_share_a_session_only_by_their_secret(
    endpoint: Endpoint, secret: str | None, is_shared: bool
) -> None:
    def board() -> Starlette:
        return dashboard(
            endpoint, access=lambda _request: Visitor("ann", Role.ADMIN), secret=secret
        )

    def resume(at: Served, token: str) -> int:
        form = {"csrf": token, "reason": "back"}
        return client.post(f"{at.url}/pauses/resume", data=form).status_code

    with Served(board()) as one, Served(board()) as other, httpx.Client(timeout=30) as client:
        token = csrf(client.get(f"{one.url}/pauses").text)
        others = csrf(client.get(f"{other.url}/pauses").text)
        answers = [resume(one, token), resume(other, others)]

    assert answers == [303, 303]
    assert (token == others) is is_shared
    assert len(client.cookies) == (1 if is_shared else 2)


def test_headers_of_a_listed_proxy_name_the_visitor(
    served: Callable[[Access], httpx.Client],
) -> None:
    access = ProxyHeaders(["127.0.0.1"], role_header="X-Role")
    client = served(access)

    named = client.get("/", headers={"X-Forwarded-User": "eve", "X-Role": "operator"})
    viewer = client.get("/", headers={"X-Forwarded-User": "eve", "X-Role": "boss"})
    unnamed = client.get("/")

    assert "eve · operator" in named.text
    assert "eve · viewer" in viewer.text
    assert unnamed.status_code == 401


def test_headers_of_any_other_client_are_not_believed(
    served: Callable[[Access], httpx.Client],
) -> None:
    client = served(ProxyHeaders(["10.0.0.1"]))

    answer = client.get("/", headers={"X-Forwarded-User": "eve", "X-Forwarded-For": "10.0.0.1"})

    assert answer.status_code == 401


def test_a_coroutine_of_the_host_application_names_the_visitor(
    served: Callable[[Access], httpx.Client],
) -> None:
    from starlette.requests import Request

    async def known(request: Request) -> Visitor | None:
        return Visitor("host", Role.VIEWER) if "X-Key" in request.headers else None

    client = served(known)

    assert client.get("/").status_code == 401
    assert "host · viewer" in client.get("/", headers={"X-Key": "1"}).text


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("example.com", False),
    ],
)
def test_only_this_machines_own_addresses_need_no_authentication(host: str, local: bool) -> None:
    address = ServerAddress(host=host)

    address.require_authentication(has_authentication=True)
    if local:
        address.require_authentication(has_authentication=False)
    else:
        with pytest.raises(ConfigurationError, match="--tokens"):
            address.require_authentication(has_authentication=False)
