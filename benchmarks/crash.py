"""Cost of a kill -9 in the middle of a drain: nothing lost, few repeats, a short pause."""

import random
import time

from harness import pending
from harness.destination import Destination
from harness.figures import say
from harness.messages import SECOND, micros
from harness.report import Report, options, parsed
from harness.runs import dispatched, load_due
from harness.servers import servers
from harness.workers import Spec, Worker, installed, usual

DISPATCHERS = 1


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, help="how often (10; quick 1)")
    given = parsed(parser, count=10_000, quick=3_000)
    kills = given.kills or (1 if given.quick else 10)
    bound = usual("chunk") * DISPATCHERS
    lost, repeats, pauses = 0, [], []
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Killed in the middle of a drain", {**running.settings, "kills": kills})
        sample = dispatched(spec, given.count)
        for number in range(kills):
            found = killed(spec, given.count, random.uniform(0.1, 0.6) * sample.seconds)
            lost += found[0]
            repeats.append(found[1])
            pauses.append(found[2])
            say(f"kill {number + 1}: {found[0]} lost, {found[1]} repeats, {found[2]:.1f} s")
    report.bar(f"lost in {kills} kills", lost, 0, at_most=True)
    most = f"most repeats of a kill; bound: chunk {usual('chunk')}, {DISPATCHERS} dispatcher"
    report.bar(most, max(repeats), bound, at_most=True, beside=f"each: {repeats}")
    title = "longest time from the restart until the drain goes on"
    report.bar(title, max(pauses), 5, at_most=True, unit=" s")
    report.give(given)


def killed(spec: Spec, count: int, seconds: float) -> tuple[int, int, float]:
    """Kill a worker *seconds* into a drain; return lost, repeats, and the pause in seconds."""
    pending.clear(spec.persistence)
    with Destination(spec.transport, spec.destination, count, linger=3) as destination:
        load_due(spec, count)
        with Worker(spec) as worker:
            time.sleep(seconds)
            worker.kill()
        time.sleep(0.5)  # messages under way arrive meanwhile
        restarted = micros()
        with Worker(spec):
            arrivals = destination.arrivals()
    after = [stamp for stamp in arrivals.stamps if stamp > restarted]
    assert after, "the drain was over before the kill"
    return count - len(set(arrivals.ids)), arrivals.repeats, (min(after) - restarted) / SECOND


if __name__ == "__main__":
    main()
