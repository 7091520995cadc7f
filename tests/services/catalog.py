"""Look for a service once per run: named, answering, startable, installable, or missing."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.services import galera, mysql, pgbouncer, postgres, rabbitmq, redis
from tests.services.private import PrivateServer
from tests.services.processes import DidNotStart
from tests.services.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A kind of server that tests may ask for."""

    name: str
    title: str
    candidates: Callable[[], list[str]]
    refusal: Callable[[str], str | None]
    create: Callable[[str, str], str]
    sweep: Callable[[str, Callable[[str], bool]], None]
    private: type[PrivateServer]
    apt: list[str]

    @property
    def variable(self) -> str:
        """The environment variable that names a server to use."""
        return f"TIMEOUTMGR_TEST_{self.name.upper()}_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of the search for a service: a URL, or the reason why there is none."""

    service: str
    url: str | None
    how: str

    @property
    def where(self) -> str:
        """Where it is, without user and password."""
        if self.url is None:
            return ""
        parts = urlsplit(self.url)
        return f"{parts.hostname or 'socket'}:{parts.port or 'standard port'}"


SERVICES = {
    service.name: service
    for service in (
        Service(
            name="postgres",
            title="PostgreSQL",
            candidates=postgres.candidates,
            refusal=postgres.refusal,
            create=postgres.create,
            sweep=postgres.sweep,
            private=postgres.PrivatePostgres,
            apt=postgres.APT,
        ),
        Service(
            name="mysql",
            title="MariaDB",
            candidates=mysql.candidates,
            refusal=mysql.refusal,
            create=mysql.create,
            sweep=mysql.sweep,
            private=mysql.PrivateMariaDB,
            apt=mysql.APT,
        ),
        Service(
            name="rabbitmq",
            title="RabbitMQ",
            candidates=rabbitmq.candidates,
            refusal=rabbitmq.refusal,
            create=rabbitmq.create,
            sweep=rabbitmq.sweep,
            private=rabbitmq.PrivateRabbitMQ,
            apt=rabbitmq.APT,
        ),
        Service(
            name="redis",
            title="Redis",
            candidates=redis.candidates,
            refusal=redis.refusal,
            create=redis.create,
            sweep=redis.sweep,
            private=redis.PrivateRedis,
            apt=redis.APT,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that some tests start beside the services: found, or installed where it may be."""

    name: str
    title: str
    missing: Callable[[], list[str]]
    apt: list[str]


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            name="pgbouncer",
            title="PgBouncer",
            missing=pgbouncer.PgBouncer.missing_programs,
            apt=pgbouncer.APT,
        ),
        Program(
            name="galera",
            title="Galera",
            missing=galera.PrivateGalera.missing_programs,
            apt=galera.APT,
        ),
    )
}


def require_program(run: Run, name: str) -> None:
    """Return if the program *name* is there, after an installation if need be.

    Raises DidNotStart with the reason where it is not.
    """
    program = PROGRAMS[name]
    said = ""
    if program.missing() and _may_install():
        said = _installed(run, program)
    if missing := program.missing():
        raise DidNotStart(f"not installed: {', '.join(missing)}{said and '; '}{said}")


def pooler(run: Run, upstream: str, mode: str) -> PrivateServer:
    """Start a PgBouncer of *run*'s own before *upstream*; raises DidNotStart."""
    require_program(run, "pgbouncer")
    server = pgbouncer.PgBouncer(_fresh_folder(run, "pgbouncer"), upstream, mode)
    server.start()
    return server


def cluster(run: Run) -> PrivateServer:
    """Start a Galera cluster of *run*'s own; raises DidNotStart."""
    require_program(run, "galera")
    server = galera.PrivateGalera(_fresh_folder(run, "galera"))
    server.start()
    return server


def standby(run: Run, primary: postgres.PrivatePostgres) -> postgres.PrivateStandby:
    """Start a standby of *primary*; raises DidNotStart."""
    server = postgres.PrivateStandby(_fresh_folder(run, "standby"), primary)
    server.start()
    return server


def recovery(run: Run, primary: postgres.PrivatePostgres) -> postgres.PrivateRecovery:
    """Take a base backup of *primary*, from which a server can start later."""
    return postgres.PrivateRecovery(_fresh_folder(run, "recovery"), primary)


def find(run: Run, name: str) -> Found:
    """Return the service *name* of *run*; the first worker looks for it, later workers wait."""
    noted = run.folder / f"{name}.json"
    with _lock(run.folder / f"{name}.lock"):
        if noted.exists():
            return Found(**json.loads(noted.read_text()))
        found = _search(run, SERVICES[name])
        noted.write_text(json.dumps(asdict(found)))
        return found


def found_by(run: Run) -> list[Found]:
    """Return the results of all searches in *run*."""
    return [
        Found(**json.loads(path.read_text()))
        for path in (run.folder / f"{name}.json" for name in SERVICES)
        if path.exists()
    ]


def private_server(run: Run, name: str) -> PrivateServer:
    """Start a server of *run*'s own; raises DidNotStart where that cannot be."""
    server = SERVICES[name].private(_fresh_folder(run, name))
    server.start()
    return server


def missing_is_an_error() -> bool:
    """Whether nothing may be left out, as in continuous integration."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def _search(run: Run, service: Service) -> Found:
    named = os.environ.get(service.variable)
    if named:
        refusal = service.refusal(named)
        if refusal is None:
            return Found(service=service.name, url=named, how=f"named by {service.variable}")
        # The variable names a server: no other server replaces it.
        return Found(service=service.name, url=None, how=f"{service.variable}: {refusal}")

    attempts: list[Callable[[], Found | str]] = [
        _answering(service),
        lambda: _started(run, service),
    ]
    if _may_install():
        attempts += [lambda: _installed(run, service), *attempts]
    said: dict[str, None] = {}
    for attempt in attempts:
        result = attempt()
        if isinstance(result, Found):
            return result
        said[result] = None
    return Found(service=service.name, url=None, how="; ".join(filter(None, said)))


def _answering(service: Service) -> Callable[[], Found | str]:
    def attempt() -> Found | str:
        refusals = []
        for url in service.candidates():
            refusal = service.refusal(url)
            if refusal is None:
                return Found(service=service.name, url=url, how="on its standard port")
            refusals.append(refusal)
        return f"standard port: {refusals[0]}"

    return attempt


def _started(run: Run, service: Service) -> Found | str:
    try:
        server = private_server(run, service.name)
    except DidNotStart as reason:
        return f"private: {reason}"
    return Found(service=service.name, url=server.url, how="started for this run")


def _may_install() -> bool:
    wanted = missing_is_an_error() or os.environ.get("TIMEOUTMGR_TEST_APT") == "1"
    return wanted and os.geteuid() == 0


def _installed(run: Run, service: Service | Program) -> str:
    # RUNLEVEL=1: the installation starts no server; the tests start a server of their own.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with _lock(run.folder / "apt.lock"):  # `apt-get update` does not wait for another
        for words in (["update"], ["install", "-y", "--no-install-recommends", *service.apt]):
            try:
                done = subprocess.run(
                    ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *words],
                    env=env,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except FileNotFoundError:
                return "apt-get is not installed"
            if done.returncode:
                return f"apt-get {words[0]}: {done.stderr.strip()[-300:]}"
    return ""


def _fresh_folder(run: Run, name: str) -> Path:
    for number in range(1, 10_000):
        folder = run.folder / f"{name}-{os.getpid()}-{number}"
        if not folder.exists():
            return folder
    raise RuntimeError(f"no free folder for {name} in {run.folder}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
