"""Lateness of messages: at a trickle, and at half of the maximum rate."""

import random
from statistics import median

from harness import pending
from harness.destination import WARM, Destination
from harness.figures import say
from harness.messages import SECOND, delayed, fill, micros
from harness.report import Report, options, parsed
from harness.runs import dispatched
from harness.servers import servers
from harness.workers import Spec, Worker, installed


def main() -> None:
    parser = options(__doc__)
    given = parsed(parser, count=1_000, quick=150)
    seconds = 3 if given.quick else 20
    with servers("postgres", "rabbitmq") as running:
        settings = {"messages": given.count, **running.settings}
        report = Report("Lateness", settings)
        with installed(running["rabbitmq"], running["postgres"], profile=given.profile) as spec:
            most = median(dispatched(spec, 20 * given.count).rate for _ in range(given.rounds))
            trickle, half = [], []
            for number in range(given.rounds):
                trickle.append(spread_out(spec, given.count, seconds))
                half.append(at_rate(spec, most / 2, seconds / 2))
                say(f"round {number + 1}: {described(trickle[-1])}")
                say(f"round {number + 1}, {most / 2:,.0f}/s: {described(half[-1])}")
        p50, p99 = (median(at(one, part) for one in trickle) for part in (0.5, 0.99))
        report.bar(f"p50, {given.count:,} over {seconds} s", p50, 4, at_most=True, unit=" ms")
        report.bar("p99", p99, 12, at_most=True, unit=" ms")
        report.bar("earliest", min(one[0] for one in trickle + half), 0, unit=" ms")
        busy = median(at(one, 0.99) for one in half)
        rate = f"at {most / 2:,.0f}/s, half of the most that was dispatched"
        report.bar(f"p99 {rate}", busy, 250, at_most=True, unit=" ms")
        worst = max(one[-1] for one in trickle)
        report.notes.append(f"The latest of all that trickled: {worst:.1f} ms.")
    report.give(given)


def spread_out(spec: Spec, count: int, seconds: int) -> list[float]:
    """Return the latenesses of *count* messages that are due over *seconds*, sent beforehand."""
    pending.clear(spec.persistence)
    warm = WARM * count // seconds
    with Worker(spec), Destination(spec.transport, spec.destination, warm + count) as destination:
        first, span = micros() + lead(seconds) + WARM * SECOND, seconds * SECOND
        dues = [first + round(span * number / count) for number in range(-warm, count)]
        random.shuffle(dues)
        fill(spec.transport, [delayed(spec.name, spec.destination, due) for due in dues])
        return destination.arrivals().lateness(since=first)


def at_rate(spec: Spec, rate: float, seconds: float) -> list[float]:
    """Return the latenesses at *rate* a second, of messages that wait in the store."""
    count = round(rate * (WARM + seconds))
    pending.clear(spec.persistence)
    with Worker(spec), Destination(spec.transport, spec.destination, count + 1) as destination:
        due, span = micros() + 2 * lead(seconds), round((WARM + seconds) * SECOND)
        waiting = pending.Pending(
            endpoint=spec.name, destination=spec.destination, count=count, due=due, over=span
        )
        pending.load(spec.persistence, waiting)
        # Timeouts were stored without the queue: this message wakes the poller.
        fill(spec.transport, [delayed(spec.name, spec.destination, due)])
        return destination.arrivals().lateness(since=due + WARM * SECOND)


def lead(seconds: float) -> int:
    """Return the time between the last store and the first due time; shorter for few messages."""
    return min(3 * SECOND, round(seconds * SECOND / 2))


def at(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(int(len(sorted_values) * part), len(sorted_values) - 1)]


def described(lateness: list[float]) -> str:
    parts = ", ".join(f"p{part * 100:.0f} {at(lateness, part):.1f}" for part in (0.5, 0.99))
    return f"{parts}, max {lateness[-1]:.1f}, min {lateness[0]:.1f} ms"


if __name__ == "__main__":
    main()
