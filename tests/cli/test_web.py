"""web: the dashboard as a process of its own."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import httpx
import pytest
from click.testing import CliRunner

from tests.cli.programs import Folder
from tests.web.site import configuration
from timeoutmgr import Endpoint
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.cli.web import ProxyAddress
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.web import dashboard
from timeoutmgr.web.server import ServerAddress, serve


@pytest.fixture
def installed(folder: Folder) -> Folder:
    assert folder.run("install").returncode == 0
    return folder


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_printed_link_opens_the_dashboard_once(installed: Folder, end: signal.Signals) -> None:
    program = installed.start("web", "--port", "0")
    program.wait_for("/enter?token=")
    (url,) = [line.removeprefix("open ").strip() for line in program.out if "/enter" in line]
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        entered = client.get(url)
        client.cookies.clear()
        again = client.get(url)
        elsewhere = client.get(url, headers={"Host": "evil.example"})
    program.wait_for("/enter?token=", times=2)
    program.process.send_signal(end)
    program.process.wait(30)

    assert entered.url.path == "/"
    assert "local · admin" in entered.text
    assert again.url.path == "/login"
    assert elsewhere.status_code == 400


@pytest.mark.parametrize("where", ["run", "announce", "main_loop"])
def test_a_signal_at_the_server_is_noted_and_raises_in_no_callback(
    folder: Folder, sqlite_url: str, where: str
) -> None:
    raised: list[bool] = []

    def announce(_url: str) -> None: ...

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        if frame.f_code.co_name == where and event == "call" and not raised:
            try:
                raised.append(False)
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raised[:] = [True]
                raise

    endpoint = Endpoint(configuration(folder.endpoint, sqlite_url))
    board = dashboard(endpoint, access=lambda _request: None)
    # A program that ran in this process may have left a handler of its own.
    handler, before = signal.signal(signal.SIGINT, signal.default_int_handler), sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            serve(board, ServerAddress(port=0), announce)
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
        endpoint.close()

    assert raised == [False]


def test_a_dashboard_ends_without_a_database_that_hangs(folder: Folder, postgres_url: str) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        url = proxy.url(postgres_url)
        folder.variables |= {"TIMEOUTMGR_TRANSPORT": url, "TIMEOUTMGR_PERSISTENCE": url}
        assert folder.run("install").returncode == 0
        program = folder.start("web", "--port", "0")
        program.wait_for("/enter?token=")
        (link,) = [line.removeprefix("open ").strip() for line in program.out if "/enter" in line]
        with httpx.Client(follow_redirects=True, timeout=30) as client:
            client.get(link)
            proxy.blackhole()
            client.get(link.partition("/enter")[0] + "/late")  # its read goes on behind the page
        program.stop(signal.SIGINT)

    assert "endpoint stops without postgresql" in "".join(program.err)


def test_an_address_of_other_machines_needs_authentication(installed: Folder) -> None:
    refused = installed.run("web", "--host", "0.0.0.0")

    assert refused.returncode != 0
    assert "--tokens" in refused.stderr


def test_a_token_file_admits_other_machines(installed: Folder) -> None:
    installed.write("tokens", "viewer ann a-long-enough-token\n").chmod(0o600)
    program = installed.start("web", "--host", "0.0.0.0", "--port", "0", "--tokens", "tokens")
    program.wait_for("open http://0.0.0.0:")
    (line,) = [line for line in program.out if line.startswith("open ")]
    url = line.removeprefix("open ").strip().replace("0.0.0.0", "127.0.0.1")
    answer = httpx.get(url, timeout=30)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--role-header", "X-Role"], "--role-header X-Role is read from the requests of a proxy"),
        (["--user-header", "U"], "--user-header U is read from the requests of a proxy"),
        (["--proxy", "foo"], "'foo' is not an address"),
        (["--proxy", "10.0.0.0/8"], "'10.0.0.0/8' is not an address"),
        (["--tokens", "t", "--proxy", "::1"], "--tokens and --proxy exclude each other"),
        (["--host", "127.0.0.1:80"], "give both apart: --host 127.0.0.1 --port 80"),
        (["--name", "ops.example.com:8443"], "'ops.example.com:8443' is not a host name alone"),
        (
            ["--name", "https://ops.example.com"],
            "'https://ops.example.com' is not a host name alone",
        ),
        (["--name", "ops*"], "'ops*' is not a host name alone"),
        (["--host", "[::1]:80"], "give both apart: --host ::1 --port 80"),
    ],
)
def test_an_option_that_would_do_nothing_is_a_usage_error(given: list[str], why: str) -> None:
    refused = CliRunner().invoke(cli, ["web", *given])

    assert refused.exit_code == Exit.USAGE
    assert why in refused.output


def test_the_address_of_a_proxy_is_compared_as_a_connection_shows_it() -> None:
    assert ProxyAddress().convert("0:0:0:0:0:0:0:1", None, None) == "::1"


def test_a_port_in_use_is_named(installed: Folder) -> None:
    program = installed.start("web", "--port", "0", "--json")
    program.wait_for("/enter?token=")
    port = next(line for line in program.out if "http" in line).split(":")[-1].split("/")[0]

    refused = installed.run("web", "--port", port)

    assert "choose another --port" in refused.stderr


@pytest.mark.parametrize("host", ["ü" * 70, "192.0.2.1"], ids=["too long", "elsewhere"])
def test_an_address_of_no_host_here_is_refused_with_the_remedy(
    installed: Folder, host: str
) -> None:
    installed.write("tokens", "viewer ann a-long-enough-token\n").chmod(0o600)

    refused = installed.run("web", "--host", host, "--tokens", "tokens")

    assert refused.returncode == Exit.CONFIGURATION
    assert f"cannot listen on {host}:8642" in refused.stderr
    assert "or a --host of this machine" in refused.stderr


def test_the_dashboard_starts_while_the_store_is_missing(folder: Folder) -> None:
    program = folder.start("web", "--port", "0")
    program.wait_for("/enter?token=")
    (url,) = [line.removeprefix("open ").strip() for line in program.out if "/enter" in line]

    text = httpx.get(url, follow_redirects=True, timeout=30).text

    assert "timeoutmgr install" in text
