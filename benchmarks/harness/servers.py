"""A database and a virtual host for a program, created at its start and dropped at its end."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import make_url

from . import machine

if TYPE_CHECKING:
    from tests.services.catalog import Service

VARIABLE = "BENCH_{}_URL"


@dataclass(frozen=True, slots=True)
class Servers:
    """URLs of our databases and brokers, and the settings on which figures depend."""

    urls: dict[str, str]
    settings: dict[str, str]
    another: Callable[[str], str]
    """Creates a second database (or virtual host) on the server of that name."""

    def __getitem__(self, name: str) -> str:
        return self.urls[name]

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement in our PostgreSQL database and return its rows."""
        with connect(self["postgres"]) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def servers(*names: str) -> Iterator[Servers]:
    """Create our databases on the servers *names* (``postgres``, ``rabbitmq``, ``redis``).

    BENCH_<NAME>_URL names a server; the default is its standard port.
    ``sqlite`` is a file in a new folder.
    """
    # Import this here: every worker loads this module with the program.
    from tests.services import catalog

    own = f"tmbench_{secrets.token_hex(4)}"
    urls: dict[str, str] = {}
    admins: dict[str, str] = {}

    def make(name: str) -> str:
        return catalog.SERVICES[name].create(admins[name], f"{own}_{secrets.token_hex(2)}")

    with ExitStack() as stack:
        for name in names:
            if name == "sqlite":
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{own}-"))
                urls[name] = f"sqlite:///{Path(folder) / 'timeoutmgr.db'}"
                continue
            service = catalog.SERVICES[name]
            admins[name] = _answering(service)
            stack.callback(service.sweep, admins[name], lambda name: name.startswith(own))
            urls[name] = make(name)
        settings = machine.described()
        if "postgres" in urls:
            settings |= machine.postgres(urls["postgres"])
        yield Servers(urls, settings, make)


def connect(url: str, **options: Any) -> "psycopg.Connection[Any]":
    """Return an autocommitting psycopg connection to the SQLAlchemy URL *url*."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True, **options)


def _answering(service: "Service") -> str:
    named = os.environ.get(VARIABLE.format(service.name.upper()))
    refusals = []
    for url in [named] if named else service.candidates():
        refusal = service.refusal(url)
        if refusal is None:
            return url
        refusals.append(refusal)
    raise SystemExit(f"no {service.title}: {refusals[0]}")
