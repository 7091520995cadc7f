"""Samples for both kinds of store: a clock, timeouts, messages and names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from timeoutmgr.contracts import Timeout
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.message.message import Message, with_headers

Opened = TypeVar("Opened")

# --- repeated simultaneous calls --------------------------------------------------------------

_PATIENCE: Final = 60.0


class Track:
    """Threads that start simultaneously; one track serves many races."""

    def __init__(self, lanes: int) -> None:
        self._start = threading.Barrier(lanes)
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="race")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._start.abort()
        self._pool.shutdown()

    def race(self, *runners: Callable[[], Any]) -> list[Any]:
        """Call *runners* simultaneously, each in a thread; return the results or raise an error."""

        def run(runner: Callable[[], Any]) -> Any:
            self._start.wait(_PATIENCE)
            return runner()

        running = [self._pool.submit(run, runner) for runner in runners]
        return [one.result(_PATIENCE) for one in running]


def race(*runners: Callable[[], Any]) -> list[Any]:
    """Call *runners* simultaneously once; return their results."""
    with Track(len(runners)) as track:
        return track.race(*runners)


SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
NOW: Final[Micros] = 1_900_000_000_000_000

INSTANTS: Final = [0, 1, -1, 2**31, 2**53 + 1, LATEST]
"""Due times that some database, or a float, would round by a microsecond."""

NAMES: Final = [("a", "A"), ("a", "a "), ("a", "ä"), ("ss", "ß"), ("é", "e\u0301"), ("\u0131", "i")]
"""Pairs of different names that some database considers equal."""

MESSAGES: Final = {
    "plain": Message(id="M", headers={"A": "B", "a": "b"}, body=b"{}"),
    "empty": Message(id="m"),
    "unicode": Message(
        id="ünï \U0001f600", headers={"ключ": "значение \U0001f600", "é": "e\u0301"}
    ),
    "all bytes": Message(id="m", body=bytes(range(256)) * 4),
    "quotes": Message(id="o'clock", headers={"a'; --": '"\\%_'}, body=b"'\\\"%_\x00"),
    "white space": Message(id=" m ", headers={" a ": " \t\r\n "}, body=b"\r\n"),
    "other types": Message(id="m", content_type="text/x; q=1 ", content_encoding="binary"),
    "many headers": Message(id="m", headers={f"name {n}": f"value {n}" for n in range(300)}),
    "long header": Message(id="m", headers={"long": "x" * 50_000}),
    "big": Message(id="m", body=b"\x00\xff\\'" * 500_000),
}


class SetClock:
    """A clock that shows the instant that a case sets."""

    def __init__(self, at: Micros = NOW) -> None:
        self.at = at

    def now(self) -> Micros:
        """Return the instant that was set."""
        return self.at

    def monotonic(self) -> float:
        """Return the same instant in seconds."""
        return self.at / SECOND


class Undone(Exception):
    """Raised by a case to abort a transaction or a dispatch."""


@contextmanager
def undone(transaction: AbstractContextManager[Opened]) -> Iterator[Opened]:
    """Open *transaction*, and roll it back at the end."""
    with suppress(Undone), transaction as opened:
        yield opened
        raise Undone


def timeout(
    name: str,
    due: Micros,
    *,
    saga: str | None = None,
    destination: str = "billing",
    body: bytes = b"body",
) -> Timeout:
    """Return a timeout; its message's id and header contain *name*."""
    return Timeout(
        id=name,
        due=due,
        destination=destination,
        saga_id=saga,
        created=due - SECOND,
        message=Message(id=f"message {name}"[:200], headers={"name": name}, body=body),
    )


def having(one: Timeout, more: Mapping[str, str]) -> Timeout:
    """Return *one* with additional headers."""
    return replace(one, message=with_headers(one.message, {**one.message.headers, **more}))


UNSTORABLE: Final = {
    "long id": timeout("x" * 256, 0),
    "long saga": timeout("a", 0, saga="s" * 256),
    "long destination": timeout("a", 0, destination="d" * 256),
    "NUL": timeout("a\0", 0),
    "half a character": timeout("half \ud800", 0),
}
"""Timeouts with a text that no column accepts."""
