"""One endpoint in this process: signals, health file, and why it ended."""

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.health import HealthFile
from timeoutmgr.cli.output import masked
from timeoutmgr.cli.shared import Shared
from timeoutmgr.redaction import on_one_line

if TYPE_CHECKING:
    from timeoutmgr.endpoint import Endpoint

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(
    shared: Shared, health_file: Path | None, child: tuple[int, int] | None
) -> tuple[Exit, str | None]:
    """Run the endpoint until it is stopped; return the exit code and the last line to print.

    *child* is the number of this process under a supervisor, and the descriptor of a socket to
    it: its end is the supervisor's, and tells to stop.
    """
    from timeoutmgr.endpoint import Endpoint

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
            # Woken now and then: a signal handler runs only between two waits.
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
    if ignore_interrupt:  # Ctrl-C reaches the supervisor too, which then says what to do
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(line: socket.socket, how: dict[str, object]) -> None:
    try:
        line.sendall(json.dumps(how).encode())
    except OSError as error:  # the supervisor was killed: nobody is there to be told
        logger.warning("cannot report to the supervisor: %s", on_one_line(error))


def _await_end(line: socket.socket, asked: threading.Event) -> None:
    try:
        while line.recv(1):
            pass
    except OSError:
        pass  # closed at our own end: the process ends anyway
    asked.set()


def _health(endpoint: "Endpoint") -> dict[str, object]:
    return {"pid": os.getpid(), "endpoint": endpoint.name, "snapshot": endpoint.snapshot()}
