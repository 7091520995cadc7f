"""One endpoint in this process: signals, health file, and the cause of its end."""

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.output import shown_time
from timeoutmgr.cli.shared import Shared
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.redaction import masked, on_one_line

if TYPE_CHECKING:
    from timeoutmgr.endpoint.endpoint import Endpoint


logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(
    shared: Shared, health_file: Path | None, child: tuple[int, int] | None
) -> tuple[Exit, str | None]:
    """Run the endpoint until it is stopped; return the exit code and the last line to print.

    *child* is the number of this process under a supervisor, and the descriptor of a socket to
    it: when the supervisor ends, the socket closes, and this process stops.
    """
    from timeoutmgr.endpoint.endpoint import Endpoint

    asked = threading.Event()
    with ExitStack() as stack:
        line: socket.socket | None = None
        if child is not None:
            line = stack.enter_context(socket.socket(fileno=child[1]))
            threading.Thread(target=_await_end, args=(line, asked), daemon=True).start()
        stack.enter_context(stop_signals(asked.set, ignore_interrupt=child is not None))
        endpoint = Endpoint(shared.configuration())
        if health_file is not None:
            health = stack.enter_context(HealthFile(health_file))
            endpoint.on_watch(lambda: health.write(_health(endpoint)))
        with endpoint:
            # Wait in short steps: a signal handler runs only between two waits.
            while not endpoint.wait(0.2) and not asked.is_set():
                pass
            by_itself = not asked.is_set()
        critical = endpoint.critical_error if by_itself else None
        sentence = None if critical is None else masked(critical[0])
        if line is not None:
            _report(line, {"by_itself": by_itself, "critical": sentence})
    return (Exit.OK, None) if sentence is None else (Exit.CRITICAL, sentence)


@contextmanager
def stop_signals(action: Callable[[], None], *, ignore_interrupt: bool = False) -> Iterator[None]:
    """Have SIGTERM and SIGINT call *action* once; a second signal ends the process at once."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_DFL)
        action()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    if ignore_interrupt:  # Ctrl-C reaches the supervisor too, which stops its children
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(line: socket.socket, how: dict[str, object]) -> None:
    try:
        line.sendall(json.dumps(how).encode())
    except OSError as error:  # the supervisor was killed
        logger.warning(
            "process could not report its end to the supervisor: %s",
            on_one_line(error),
            extra={"event": "end_not_reported"},
        )


def _await_end(line: socket.socket, asked: threading.Event) -> None:
    try:
        while line.recv(1):
            pass
    except OSError:
        pass  # closed at our own end: the process ends anyway
    asked.set()


def _health(endpoint: "Endpoint") -> dict[str, object]:
    return {"pid": os.getpid(), "endpoint": endpoint.name, "snapshot": endpoint.snapshot()}


class HealthFile:
    """Rewrites a file; a reader sees the old text or the new text, never a part.

    The file is removed at the end. Its ``time`` shows a process that hangs or was killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{os.getpid()}")
        self._failed = False

    def write(self, document: Mapping[str, object]) -> None:
        """Write *document* with the time; a full disk must not stop an endpoint."""
        text = json.dumps({"time": shown_time(SystemClock().now()), **document})
        try:
            self._new.write_text(f"{text}\n")
            os.replace(self._new, self._path)
        except OSError as error:
            if not self._failed:
                logger.error(
                    "process could not write the health file %s: %s",
                    self._path,
                    on_one_line(error),
                    extra={"event": "health_not_written"},
                )
            self._failed = True
        else:
            self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for path in (self._new, self._path):
            path.unlink(missing_ok=True)
