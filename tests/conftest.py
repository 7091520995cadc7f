"""Fixtures for all tests: real servers, files and names; and a run that leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import amqp
import pytest

import tests.support.properties  # noqa: F401 - read before the tests are
from chaos.forkserver_client import ForkServer
from tests.services import catalog, mysql, processes
from tests.services import run as runs
from tests.services.postgres import PrivatePostgres, PrivateRecovery, PrivateStandby
from tests.services.private import PrivateServer, stop_all
from tests.services.run import Run
from tests.support.forked_programs import MODULES
from tests.support.recorded_revisions import Records, recorded_revisions
from timeoutmgr.database import Database, DatabaseSettings

pytest_plugins = ["tests.acceptance.not_applicable"]

_RUN = pytest.StashKey[Run]()
_LEFT = pytest.StashKey[list[str]]()


# --- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Give logging back as it was: a command that runs in this process sets it up anew."""
    root, own = logging.getLogger(), logging.getLogger("timeoutmgr")
    handlers, levels = list(root.handlers), (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.fixture(scope="session")
def _records(run_folder: Path) -> Records:
    return Records(run_folder)


@pytest.fixture(autouse=True)
def _installations(request: pytest.FixtureRequest, _records: Records) -> Iterator[None]:
    """Tables are installed in a fraction of the time, but where the installation is tested."""
    is_tested = request.node.get_closest_marker("installs")
    with nullcontext() if is_tested else recorded_revisions(_records):
        yield


@pytest.fixture
def unique() -> str:
    """A short lower-case name of its own."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def run_folder(pytestconfig: pytest.Config) -> Path:
    """The folder that all workers of this run share."""
    return pytestconfig.stash[_RUN].folder


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'timeoutmgr.db'}"


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config, worker_id: str) -> str:
    """A PostgreSQL database of this worker's own."""
    return _own(pytestconfig.stash[_RUN], "postgres", worker_id)


@pytest.fixture(scope="session")
def mysql_url(pytestconfig: pytest.Config, worker_id: str) -> str:
    """A MariaDB database of this worker's own."""
    return _own(pytestconfig.stash[_RUN], "mysql", worker_id)


@pytest.fixture(scope="session")
def mssql_url() -> str:
    """The database of the SQL Server that the environment names; nothing starts a server."""
    url = os.environ["TIMEOUTMGR_TEST_MSSQL_URL"]
    Database.shared(url, DatabaseSettings(experimental=True))
    return url


@pytest.fixture(scope="session")
def rabbitmq_url(pytestconfig: pytest.Config, worker_id: str) -> str:
    """A RabbitMQ virtual host of this worker's own."""
    return _own(pytestconfig.stash[_RUN], "rabbitmq", worker_id)


@pytest.fixture(scope="session")
def redis_url(pytestconfig: pytest.Config, worker_id: str) -> str:
    """A Redis database of this worker's own."""
    return _own(pytestconfig.stash[_RUN], "redis", worker_id)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The process from which programs are forked: all that they need is imported there."""
    with closing(ForkServer(tmp_path_factory.mktemp("forkserver") / "log", MODULES)) as made:
        yield made


@pytest.fixture
def raw_channel(rabbitmq_url: str) -> Iterator[amqp.Channel]:
    """A channel of py-amqp's own: the way of a foreign program to our queues."""
    parts = urlsplit(rabbitmq_url)
    with amqp.Connection(
        f"{parts.hostname}:{parts.port or 5672}",
        userid=parts.username,
        password=parts.password,
        virtual_host=unquote(parts.path[1:]),
    ) as connection:
        yield connection.channel()


@pytest.fixture
def private_server(pytestconfig: pytest.Config) -> Iterator[Callable[[str], PrivateServer]]:
    """Start servers that a test may stop, kill and start again: *postgres*, *mysql*, …."""
    started: list[PrivateServer] = []

    def start(name: str) -> PrivateServer:
        try:
            server = catalog.private_server(pytestconfig.stash[_RUN], name)
        except processes.DidNotStart as reason:
            _go_without(f"no private {catalog.SERVICES[name].title}: {reason}")
        started.append(server)
        return server

    yield start

    for server in started:
        server.remove()


@pytest.fixture
def standby(
    pytestconfig: pytest.Config, private_server: Callable[[str], PrivateServer]
) -> Iterator[PrivateStandby]:
    """A standby of a PostgreSQL, which a test may kill, and promote the standby."""
    primary = private_server("postgres")
    assert isinstance(primary, PrivatePostgres)
    started = catalog.standby(pytestconfig.stash[_RUN], primary)
    yield started
    started.remove()


@pytest.fixture
def recovery(
    pytestconfig: pytest.Config, private_server: Callable[[str], PrivateServer]
) -> Iterator[PrivateRecovery]:
    """A base backup of a PostgreSQL whose WAL is archived; a test recovers it to an instant."""
    primary = private_server("postgres")
    assert isinstance(primary, PrivatePostgres)
    made = catalog.recovery(pytestconfig.stash[_RUN], primary)
    yield made
    made.remove()


@pytest.fixture
def pooler(pytestconfig: pytest.Config, postgres_url: str) -> Iterator[Callable[[str], str]]:
    """Start PgBouncers before the worker's PostgreSQL database, by their mode; return the URL."""
    started: list[PrivateServer] = []

    def start(mode: str) -> str:
        try:
            server = catalog.pooler(pytestconfig.stash[_RUN], postgres_url, mode)
        except processes.DidNotStart as reason:
            _go_without(f"no PgBouncer: {reason}")
        started.append(server)
        return server.url

    yield start

    for server in started:
        server.remove()


@pytest.fixture
def galera_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """A database in a Galera cluster of this test's own, which has two members."""
    try:
        server = catalog.cluster(pytestconfig.stash[_RUN])
    except processes.DidNotStart as reason:
        _go_without(f"no Galera: {reason}")
    yield mysql.create(server.url, "ours")
    server.remove()


def _own(run: Run, name: str, worker: str) -> str:
    found = catalog.find(run, name)
    service = catalog.SERVICES[name]
    if found.url is None:
        _go_without(f"no {service.title}: {found.how}")
    return service.create(found.url, run.name(worker))


def _go_without(reason: str) -> NoReturn:
    if catalog.missing_is_an_error():
        pytest.fail(f"{reason} (with CI=true nothing may be missing)", pytrace=False)
    pytest.skip(reason)


# --- the run ----------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Have tests that use Spark share two workers."""
    from tests.scheduling import GroupedByWhatTheyShare

    return GroupedByWhatTheyShare(config, log) if config.getvalue("dist") == "load" else None


def pytest_configure(config: pytest.Config) -> None:
    """Begin the run, or join that of the controller."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts a background job so, and the processes of the tests would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        config.stash[_RUN] = runs.joined()
        return
    for folder in runs.crashed():
        stop_all(folder)
        runs.remove(folder)
    config.stash[_RUN] = runs.begin()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Clean up after the workers and before the summary, which names leftovers."""
    yield
    config = session.config
    if _is_worker(config):
        return
    run = config.stash[_RUN]
    left = _clean_up(run)
    config.stash[_LEFT] = left
    if config.pluginmanager.has_plugin("cacheprovider"):
        config.cache.set("tests/left_behind", left)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report the servers of the tests, the tests left out with their reasons, and leftovers."""
    found = catalog.found_by(config.stash[_RUN])
    if found:
        terminalreporter.section("servers")
    for one in sorted(found, key=lambda one: one.url is None):
        title = catalog.SERVICES[one.service].title
        if one.url is not None:
            terminalreporter.line(f"{title:<12} tested      {one.where}, {one.how}")
            continue
        count = sum(
            any(f"no {kind}{title}:" in str(report.longrepr) for kind in ("", "private "))
            for outcome in ("skipped", "error", "failed")
            for report in terminalreporter.stats.get(outcome, [])
        )
        terminalreporter.line(f"{title:<12} NOT TESTED  {count} tests; {one.how}", yellow=True)
    for line in config.stash.get(_LEFT, []):
        terminalreporter.line(f"LEFT BEHIND: {line}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's folder; stop the servers that an interrupted run has not stopped."""
    run = config.stash.get(_RUN, None)
    if run is None or _is_worker(config):
        return
    stop_all(run.folder)
    runs.remove(run.folder)


def _clean_up(run: Run) -> list[str]:
    """Drop the workers' databases, stop the run's servers; return the leftovers."""
    left = []
    for found in catalog.found_by(run):
        if found.url is None:
            continue
        try:
            catalog.SERVICES[found.service].sweep(found.url, run.owns)
        except Exception as error:  # after any error the other services must be swept too
            left.append(f"{found.service}: {error!r}")
    stop_all(run.folder)
    return left + processes.left_behind(run.folder)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the objects of fourteen thousand collected tests from garbage collection.

    A collection of tests makes hardly any garbage, and a test makes more objects than a message:
    at the interpreter's thresholds an eighth of the time of a test went into the search.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
