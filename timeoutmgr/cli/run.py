"""``timeoutmgr run``: an endpoint in this process, or in several supervised processes."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.observation import MetricsAddress, Observation
from timeoutmgr.cli.options import FILE, Command, bundled, option
from timeoutmgr.cli.output import log_to_stderr, shown_time
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import require_writable
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.redaction import masked, on_one_line

if TYPE_CHECKING:
    from timeoutmgr.endpoint.endpoint import Endpoint
    from timeoutmgr.metrics.observer import FleetObserver

logger = logging.getLogger(__name__)

# --- one endpoint in this process: signals, health file, and the cause of its end -------------

UNOBSERVED: Final = Observation()
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(
    shared: Shared,
    health_file: Path | None,
    child: tuple[int, int] | None,
    purged: str | None = None,
    observation: Observation = UNOBSERVED,
) -> tuple[Exit, str | None]:
    """Run the endpoint until it is stopped; return the exit code and the last line to print.

    *child* is the number of this process under a supervisor, and the descriptor of a socket to
    it: when the supervisor ends, the socket closes, and this process stops. *purged* are the queues
    to purge first: ``input`` or ``all``.
    """
    from timeoutmgr.endpoint.endpoint import Endpoint, lasting_objects

    asked = threading.Event()
    with ExitStack() as stack:
        line: socket.socket | None = None
        if child is not None:
            line = stack.enter_context(socket.socket(fileno=child[1]))
            threading.Thread(target=_await_end, args=(line, asked), daemon=True).start()
        stack.enter_context(stop_signals(asked.set, ignore_interrupt=child is not None))
        config = shared.configuration()
        observation.prepare_log(config)
        observer = observation.of_process(None if child is None else child[0])
        if observer is not None:
            observer.prepare(config)
            stack.enter_context(observation.served(observer.memory, config.name))
        endpoint = Endpoint(config)
        if observer is not None:
            endpoint.on_watch(partial(observer.tick, endpoint))
        if health_file is not None:
            health = stack.enter_context(HealthFile(health_file))
            endpoint.on_watch(lambda: health.write(_health(endpoint)))
        if purged is not None:
            endpoint.purge(satellites=purged == "all")
        observed = nullcontext() if observer is None else observer.running(endpoint)
        with endpoint, lasting_objects(), observed:
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
    """Make SIGTERM and SIGINT call *action* once; a second signal ends the process at once."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_DFL)
        action()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    if ignore_interrupt:  # Ctrl-C also reaches the supervisor, which stops its children
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
    with suppress(OSError):  # closed at our own end: the process ends anyway
        while line.recv(1):
            pass
    asked.set()


def _health(endpoint: "Endpoint") -> dict[str, object]:
    return {"pid": os.getpid(), "endpoint": endpoint.name, "snapshot": endpoint.snapshot()}


class HealthFile:
    """Rewrites a file atomically: a reader sees either the old text or the new text.

    The file is removed at the end. An old ``time`` in it means that the process hangs or died.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{os.getpid()}")
        self._failed = False

    def write(self, document: Mapping[str, object]) -> None:
        """Write *document* with the time; a full disk must not stop the endpoint."""
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

    def __exit__(self, *_error: object) -> None:
        for path in (self._new, self._path):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a health file, if it exists; a read-only disk must not stop the endpoint."""
    with suppress(OSError):
        path.unlink()


# --- ``run --processes N``: the parent, which starts and supervises its children --------------

_POLL_INTERVAL: Final = 0.1
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 60.0
"""Seconds after which a child counts as stable: its next death counts as the first."""
_PATIENCE: Final = 90.0
"""Seconds that children get to stop cleanly, somewhat more than an endpoint ever takes."""
# A restart would end the same way.
_FINAL: Final = frozenset({Exit.USAGE, Exit.CONFIGURATION, Exit.CRITICAL})


def command_line(config: Path | None, app: str | None, *, verbose: bool) -> list[str]:
    """Return the command that runs this program again with the same settings."""
    command = [sys.executable, "-m", "timeoutmgr"]
    command += ["--config", str(config)] if config is not None else []
    command += ["--app", app] if app is not None else []
    return [*command, *(["--verbose"] if verbose else []), "run"]


class Supervisor:
    """Starts children, restarts them when they die, and stops all of them together.

    A child is a fresh process: threads and connections do not survive a fork. It holds the end
    of a socket, so that it stops when this process ends, however it ended.
    """

    def __init__(
        self,
        command: list[str],
        count: int,
        health_file: Path | None,
        observer: "FleetObserver | None" = None,
    ) -> None:
        self._children = [
            Child(number, command, _numbered(health_file, number), observer)
            for number in range(1, count + 1)
        ]
        self._observer = observer
        self._health_file = health_file
        self._asked = threading.Event()

    def run(self) -> tuple[Exit, str | None]:
        """Run until a signal, or a child's end that ends the run; return code and last line."""
        health = None if self._health_file is None else HealthFile(self._health_file)
        ended: Exit | None = None
        try:
            with stop_signals(self._asked.set):
                next_health = 0.0
                while not self._asked.is_set() and ended is None:
                    ended = self._step()
                    if self._observer is not None:
                        self._observer.tick()
                    if health is not None and time.monotonic() >= next_health:
                        health.write(self._health())
                        next_health = time.monotonic() + 1.0
                    self._asked.wait(_POLL_INTERVAL)
        finally:
            killed = self._stop_all()
            if health is not None:
                health.__exit__(None, None, None)
        for child in self._children:
            if child.critical is not None:
                return Exit.CRITICAL, child.critical
        return (Exit.FAILED if killed else Exit.OK) if ended is None else ended, None

    def _step(self) -> Exit | None:
        """Start due children; return the exit code if the end of a child ends the run."""
        for child in self._children:
            if not child.is_running:
                child.start_when_due()
                continue
            code = child.ended()
            if code is None:
                continue
            if code in _FINAL:
                return Exit(code)
            if code == Exit.OK and child.by_itself:
                logger.info(
                    "endpoint of process %d stopped itself; supervisor stops all processes",
                    child.number,
                    extra={"event": "endpoint_stopped"},
                )
                return Exit.OK
            how = f"ended by signal {-code}" if code < 0 else f"exited with {code}"
            child.wait_before_next(how)
        return None

    def _stop_all(self) -> bool:
        """Stop every child; return whether any child had to be killed."""
        if self._observer is not None:
            self._observer.stopping()
        running = [child for child in self._children if child.is_running]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + _PATIENCE
        killed = False
        for child in running:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                logger.error(
                    "supervisor kills process %d, which did not stop in time",
                    child.number,
                    extra={"event": "process_killed"},
                )
                child.kill()
                killed = True
        return killed

    def _health(self) -> dict[str, object]:
        return {"pid": os.getpid(), "processes": [child.health() for child in self._children]}


class Child:
    """A numbered slot for a process, and the process that runs in it."""

    def __init__(
        self,
        number: int,
        command: list[str],
        health_file: Path | None,
        observer: "FleetObserver | None" = None,
    ) -> None:
        self.number = number
        self._observer = observer
        self.critical: str | None = None
        self.by_itself = False
        self._command = command
        self._health_file = health_file
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._restarts = -1
        self._pause = 0.0
        self._started = 0.0
        self._due = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a process occupies the slot, as last seen."""
        return self._process is not None

    def start_when_due(self) -> None:
        """Start a process, unless a wait lasts after the last death; if that fails, wait again."""
        if time.monotonic() < self._due:
            return
        self._started = time.monotonic()
        try:
            self._start()
        except OSError as error:  # no memory, process or descriptor is free: the others go on
            self.wait_before_next(f"cannot be started: {on_one_line(error)}")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            own = ["--child", str(self.number), str(theirs.fileno())]
            health = [] if self._health_file is None else ["--health-file", str(self._health_file)]
            passed = [theirs.fileno()]
            if self._observer is not None:
                passed.append(self._observer.memory.descriptor)
                own += ["--counts", str(passed[-1])]
            try:
                self._process = subprocess.Popen(
                    [*self._command, *own, *health], stdin=subprocess.DEVNULL, pass_fds=passed
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._line = ours
        self._restarts += 1
        fields = {"event": "process_started"}
        logger.info(
            "supervisor started process %d (pid %d)", self.number, self._process.pid, extra=fields
        )

    def ended(self) -> int | None:
        """Return the exit code of the process if it ended; None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._forget()
        return code

    def wait_before_next(self, how: str) -> None:
        """Set when the next process is to be started: 1, 2, 4 … 30 s after the death."""
        steady = time.monotonic() - self._started > _STEADY
        self._pause = (
            _FIRST_PAUSE if steady or not self._pause else min(2 * self._pause, _LONGEST_PAUSE)
        )
        self._due = time.monotonic() + self._pause
        logger.error(
            "supervisor restarts process %d in %g s: %s",
            self.number,
            self._pause,
            how,
            extra={"event": "process_ended"},
        )

    def terminate(self) -> None:
        """Ask the process to stop cleanly."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the process; return whether it ended."""
        assert self._process is not None
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._forget()
        return True

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        """Forget the process; remove its health file, which a killed process leaves."""
        self._read_report()
        self._process = None
        if self._observer is not None:
            self._observer.ended(self.number)
        if self._health_file is not None:
            _remove(self._health_file)

    def health(self) -> dict[str, object]:
        """Return the state of the process, for the health file."""
        said: object = None
        if self._health_file is not None:
            with suppress(OSError, ValueError):  # the process has not written it yet, or died
                said = json.loads(self._health_file.read_text())
        pid = None if self._process is None else self._process.pid
        return {
            "number": self.number,
            "pid": pid,
            "restarts": max(0, self._restarts),
            "health": said,
        }

    def _read_report(self) -> None:
        if self._line is None:
            return
        line, self._line = self._line, None
        report: dict[str, str] = {}
        with line, suppress(OSError, ValueError):  # the process was killed, before it wrote or then
            report = json.loads(line.recv(65_536))
        self.by_itself = bool(report.get("by_itself"))
        self.critical = report.get("critical") or self.critical


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_name(f"{path.name}.{number}")


@click.command(cls=Command)
@option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    help="Number of processes, which compete for queues and timeouts.",
)
@option(
    "--health-file",
    type=FILE,
    help="File that the process rewrites every second while it is healthy, and removes at the end.",
)
@click.option(
    "--purge",
    "purged",
    type=click.Choice(["input", "all"]),
    allow_from_autoenv=False,
    help="Queues whose messages are removed for good before the start: the input queue, or also "
    "the queues of the satellites. Refused while a process of the endpoint is alive.",
)
@bundled(
    "observation",
    Observation,
    option(
        "--metrics-address",
        type=MetricsAddress(),
        help="Address and port of metrics for Prometheus and of the probes: 127.0.0.1:9464. Needs "
        "the extra timeoutmgr[metrics].",
    ),
    option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Format of the log lines: text for people, or one JSON document per line, with the "
        "ids of the message as fields.",
    ),
    click.option("--counts", type=int, hidden=True, allow_from_autoenv=False),
)
@click.option("--child", type=int, nargs=2, hidden=True, allow_from_autoenv=False)
def run(
    shared: Shared,
    processes: int,
    health_file: Path | None,
    purged: str | None,
    child: tuple[int, int] | None,
    observation: Observation,
) -> Exit:
    """Run the endpoint until SIGTERM or SIGINT, which stop it cleanly: exit code 0.

    A second signal ends the process at once; no message is lost: unfinished messages come back.

    If a critical error stops the endpoint, the exit code is 70, and the error's text is the last
    line on standard error. With --processes the first process is a supervisor: it restarts a
    process that dies, and a critical error in any process stops all of them.

    Examples:
      timeoutmgr --config sales.toml run
      timeoutmgr run --app shop.messaging:config --processes 4 --health-file /run/sales.json
    """
    if purged is not None and processes > 1:
        raise click.UsageError("--purge is for a single process; start the others without it")
    require_writable("--health-file", health_file)
    number = child[0] if child else None
    log_to_stderr(shared.log_level(logging.INFO), observation.formatter(number))
    if processes > 1 and child is None:
        # Refuse wrong settings once, before any process is started.
        name = shared.configuration().settings().name
        command = command_line(shared.config, shared.app, verbose=shared.verbose)
        command += ["--log-format", observation.log_format]
        observer = observation.of_fleet(processes)
        with nullcontext() if observer is None else observation.served(observer.memory, name):
            code, last = Supervisor(command, processes, health_file, observer).run()
    else:
        code, last = serve(shared, health_file, child, purged, observation)
    if last is not None:
        logging.disable(logging.CRITICAL)  # nothing may follow the last line
        sys.stdout.flush()
        click.echo(last, err=True)
    return code
