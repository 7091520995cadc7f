"""MiB that a worker with 256 MiB for data needs to consume large bodies from a queue.

The worker is ``harness/bounded.py``. Bodies are sent slowly, so that the queue never holds more
than a few bodies besides those in the worker.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from harness.figures import say
from harness.report import Report, options, parsed
from harness.servers import servers

from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing

MIB = 1024 * 1024
SPARE = 256
"""MiB for data, above the worker's data at the start of consuming."""
BODY = 16 * MIB
WAITING = 20
"""Maximum bodies that are sent but not handled yet."""
FEWER = 10
"""Divisor of the count for the other transports."""
WORKER = Path(__file__).parent / "harness" / "bounded.py"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--on", nargs="+", default=["rabbitmq", "redis", "postgres", "sqlite"], help="transports"
    )
    given = parsed(parser, count=1_000, quick=60)
    with servers(*given.on) as around:
        report = Report("Bodies of 16 MiB in 256 MiB", around.settings)
        for name in given.on:
            count = given.count if name == "rabbitmq" else max(1, given.count // FEWER)
            peak, rss = handled(around[name], f"big-{name}", count)
            title = f"{name}: MiB for data at the peak, over those at the start"
            report.bar(title, peak, SPARE, at_most=True, beside=f"{count:,} bodies, all handled")
            report.fact(f"{name}: RSS at the peak, over that at the start", rss, " MiB")
            say(f"{name}: {count:,} bodies, {peak:.0f} MiB of data and {rss:.0f} MiB of RSS more")
    report.give(given)


def handled(url: str, name: str, count: int) -> tuple[float, float]:
    """Make a worker handle *count* bodies; return the growth of its data and its RSS in MiB.

    Data is the maximum while the worker handles a body.
    """
    with running(url, name) as lines, closing(accepting(url)) as transport:
        start = line = next_answer(lines)
        peak, done = start["data"], 0
        with closing(transport.session()) as session:
            for sent in range(1, count + 1):
                send(session, name, sent)
                while sent - done >= WAITING or (sent == count and done < count):
                    line = next_answer(lines)
                    done, peak = line["handled"], max(peak, line["data"])
    return peak - start["data"], line["peak_rss"] - start["peak_rss"]


def accepting(url: str) -> Any:
    return transport_from_url(url, accept_loss=True)


def send(session: TransportSession, queue: str, number: int) -> None:
    message = Message(
        id=f"b{number}",
        headers={headers.ENCLOSED_MESSAGE_TYPES: "Big", headers.MESSAGE_ID: f"b{number}"},
        body=bytes([number % 256]) * BODY,
        content_type="application/octet-stream",
    )
    assert session.send([Outgoing(queue, message)]) == [SendResult.CONFIRMED]


def next_answer(lines: IO[str]) -> dict[str, Any]:
    """Return the worker's next answer; no answer means that it died."""
    line = lines.readline()
    assert line, "the worker has died"
    found: dict[str, Any] = json.loads(line)
    return found


@contextmanager
def running(url: str, name: str) -> Iterator[IO[str]]:
    """Run a worker; yield its output."""
    command = [sys.executable, str(WORKER), url, name, str(SPARE)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            yield process.stdout
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
