"""Rate at which pending timeouts move from store to store, and from a store into delay levels.

Each is compared with the minimal work of any mover: copying the rows from one database into the
other, or publishing as many messages into the levels with confirms, without hiding, verifying or
removing rows.
"""

import io
from collections.abc import Callable
from contextlib import closing
from functools import partial

from harness import pending
from harness.bare import in_a_process
from harness.figures import Sample, Watch, interleave, say
from harness.levels import WINDOW, emptied, levels, published
from harness.messages import create_queues
from harness.report import Report, options, parsed
from harness.servers import connect, servers

from timeoutmgr.clock import SystemClock
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import Participants, Target, Terms
from timeoutmgr.migration.levels.target import LevelsTarget
from timeoutmgr.migration.run import move_all
from timeoutmgr.native.names import OURS
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport

ENDPOINT = "moving"
QUEUE = f"{ENDPOINT}.destination"
CLOCK = SystemClock()
BATCH = 5_000


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--into-levels", type=int, help="messages (100,000; quick 2,000)")
    given = parsed(parser, count=1_000_000, quick=5_000)
    few = given.into_levels or (2_000 if given.quick else 100_000)
    with servers("postgres", "rabbitmq") as running:
        settings = {"timeouts": given.count, "into levels": few, "body": "512 B", "batch": BATCH}
        report = Report("Migration", {**settings, **running.settings})
        first, second = running["postgres"], running.another("postgres")
        for url in (first, second):
            with closing(SqlPersistence(url)) as persistence:
                persistence.install()
        samples = interleave(
            {
                "COPY out and in, rows alone": partial(filled, first, second, given.count, copied),
                "store to store": partial(filled, first, second, given.count, moved),
            },
            given.rounds,
        )
        report.runs(samples)
        bare, ours = samples.values()
        report.faster("store to store ÷ COPY of the rows", ours, bare, 0.05)

        broker = running["rabbitmq"]
        create_queues(broker, QUEUE)
        levels(broker, QUEUE).install()
        samples = interleave(
            {
                f"published into the levels, window of {WINDOW}": partial(
                    in_a_process, published, broker, QUEUE, few
                ),
                "store to levels": partial(filled, first, broker, few, moved_into_levels),
            },
            given.rounds,
        )
        report.runs(samples)
        bare, ours = samples.values()
        report.faster("store to levels ÷ publishing alone", ours, bare, 0.3)
    report.give(given)


def filled(first: str, second: str, count: int, move: Callable[[str, str, int], Sample]) -> Sample:
    """Load *count* timeouts into the first store, and measure *move* in a separate process."""
    for url in {first, second}:
        if url.startswith("postgresql"):
            pending.clear(url)
    pending.load(first, pending.far_future(ENDPOINT, count))
    say(f"{count:,} are stored")
    return in_a_process(move, first, second, count)


# --- ours -------------------------------------------------------------------------------------


def moved(first: str, second: str, count: int) -> Sample:
    """Move all timeouts with the runner of ``timeoutmgr migrate``."""
    with closing(SqlPersistence(second)) as persistence:
        return _measured(first, persistence.migration_target(ENDPOINT, CLOCK), count)


def moved_into_levels(first: str, broker: str, count: int) -> Sample:
    """Move all timeouts into our levels."""
    with closing(KombuTransport(broker)) as transport, emptied(broker, QUEUE):
        return _measured(first, LevelsTarget(transport, OURS, Limits(), CLOCK), count)


def _measured(first: str, target: Target, count: int) -> Sample:
    with closing(SqlPersistence(first)) as persistence:
        parts = Participants(
            source=persistence.migration_source(ENDPOINT, CLOCK),
            target=target,
            ledger=persistence.migration_ledger(ENDPOINT, CLOCK),
            runner="benchmark",
        )
        terms = Terms(
            endpoint=ENDPOINT,
            source=parts.source.describe(),
            target=parts.target.describe(),
            batch=BATCH,
        )
        watch = Watch()
        report = move_all(parts, terms)
        sample = watch.sample(count)
        parts.close()
    assert report.new == count, report
    assert report.verified, report
    return sample


# --- the least --------------------------------------------------------------------------------


def copied(first: str, second: str, count: int) -> Sample:
    """Copy the rows in binary form through this process."""
    rows = f"(SELECT * FROM {pending.PREFIX}timeouts WHERE endpoint = '{ENDPOINT}')"
    with connect(first) as source, connect(second) as target:
        watch = Watch()
        into = f"COPY {pending.PREFIX}timeouts FROM STDIN (FORMAT BINARY)"
        with (
            source.cursor().copy(f"COPY {rows} TO STDOUT (FORMAT BINARY)") as out,
            target.cursor().copy(into) as copy,
        ):
            buffer = io.BytesIO()
            for block in out:
                buffer.write(block)
                if buffer.tell() > 1 << 20:
                    copy.write(buffer.getvalue())
                    buffer = io.BytesIO()
            copy.write(buffer.getvalue())
        return watch.sample(count)


if __name__ == "__main__":
    main()
