"""History tables of every format, on disk and on a server that speaks S3, and their events."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from threading import Thread
from typing import Any, Final
from urllib.request import Request, urlopen

from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.table import ANYTHING, HistoryTable, Where, read_history

ON_S3: Final = ("delta-s3", "iceberg-s3")
S3_TOO: Final = ("delta", "iceberg", "parquet", *ON_S3)
"""All kinds of places."""
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
_ORDER: Final = "/kill/"
_REFUSAL: Final = "/refuse/"
_DENIED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_CHANGING: Final = ("PUT", "POST", "DELETE")


class Killer:
    """Counts the requests that change something, each before and after; kills a client at one."""

    def __init__(self) -> None:
        self._process = 0
        self._left = 0
        self._refuses = False

    def order(self, process: int, step: int) -> None:
        """Have *process* killed at that step from now on."""
        self._process, self._left = process, step

    def step(self) -> None:
        self._left -= 1
        if self._process and self._left == 0:
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)

    def middleware(self, app: Any) -> Callable[[Any, Any], Iterable[bytes]]:
        def call(environ: Any, start: Any) -> Iterable[bytes]:
            orders = environ["PATH_INFO"].removeprefix(_ORDER).split("-")
            if environ["PATH_INFO"].startswith(_ORDER):
                self.order(*map(int, orders))
                start("200 OK", [])
                return []
            if environ["PATH_INFO"].startswith(_REFUSAL):
                self._refuses = environ["PATH_INFO"].endswith("all")
                start("200 OK", [])
                return []
            if self._refuses:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [_DENIED]
            if environ["REQUEST_METHOD"] not in _CHANGING:
                return list(app(environ, start))
            self.step()
            answer = [*app(environ, start)]
            self.step()
            return answer

        return call


@dataclass(frozen=True)
class S3:
    """A server of its own process on *url*: delta-rs waits for it without letting Python go on."""

    url: str

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables by which clients find it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def bucket(self, name: str) -> str:
        """Create a bucket."""
        urlopen(Request(f"{self.url}/{name}", method="PUT")).close()
        return f"s3://{name}"

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse every request in the block, as a service does without valid credentials."""
        urlopen(f"{self.url}{_REFUSAL}all").close()
        try:
            yield
        finally:
            urlopen(f"{self.url}{_REFUSAL}none").close()

    def kill(self, process: int, step: int) -> None:
        """Have *process* killed at a step of a commit: before or after a request that changes."""
        urlopen(f"{self.url}{_ORDER}{process}-{step}").close()


@contextmanager
def serving() -> Iterator[S3]:
    """Run a server for the time of the block."""
    command = [sys.executable, "-m", __name__, "serve"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield S3(process.stdout.readline().strip())
        process.communicate("")


def _serve() -> None:
    """Serve until the input ends."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class KeptConnection(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # else each request has a connection and a thread of its own

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    # Not moto's dispatcher of services: it lists moto's folders at each request.
    app = Killer().middleware(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=KeptConnection)
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


def catalog_variables(folder: Path, warehouse: str, s3: S3 | None) -> dict[str, str]:
    """Return the variables that name an Iceberg catalog ``main`` to pyiceberg."""
    prefix = "PYICEBERG_CATALOG__MAIN__"
    found = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": warehouse}
    if s3 is not None:
        found |= {
            "S3__ENDPOINT": s3.url,
            "S3__ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
            "S3__SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
            "S3__REGION": KEYS["AWS_REGION"],
        }
    return {f"{prefix}{name}": value for name, value in found.items()}


def made_place(kind: str, folder: Path, bucket: str, s3: S3 | None) -> tuple[str, dict[str, str]]:
    """Return the place of a table of a *kind*, and the variables that its clients need.

    A place of no server needs no *s3*.
    """
    if kind == "delta":
        return f"delta:{folder}/history", {}
    if kind == "parquet":
        return f"{folder}/history", {}
    if kind == "iceberg":
        return "iceberg:main.timeouts.history", catalog_variables(folder, f"file://{folder}", None)
    assert s3 is not None, kind
    root = s3.bucket(bucket)
    if kind == "delta-s3":
        return f"delta:{root}/history", dict(s3.environ)
    assert kind == "iceberg-s3", kind
    variables = catalog_variables(folder, f"{root}/warehouse", s3) | dict(s3.environ)
    return "iceberg:main.timeouts.history", variables


def ids_in(table: HistoryTable | str, where: Where = ANYTHING) -> list[str]:
    """Return the ids of all events of a table, with repeats."""
    opened = open_table(table) if isinstance(table, str) else table
    found: list[str] = read_history(opened, ["id"], where)["id"].to_pylist()
    return sorted(found)


class Watcher:
    """A process that reads tables: delta-rs cannot while this one gives it rows to write."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=PIPE, stdout=PIPE, text=True
        )

    def report(self, place: str) -> tuple[list[str], int | None]:
        """Return the events of a table, and the batch of the store ``east``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([place, dict(os.environ)]), file=self._process.stdin, flush=True)
        ids, batch = json.loads(self._process.stdout.readline())
        return ids, batch

    def close(self) -> None:
        self._process.communicate("")


def _answer() -> None:
    for line in sys.stdin:
        place, variables = json.loads(line)
        os.environ.update(variables)
        table = open_table(place)
        print(json.dumps([ids_in(table), table.marks("east").get("batch")]), flush=True)


if __name__ == "__main__":
    _serve() if sys.argv[1:] else _answer()
