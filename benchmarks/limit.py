"""How close each satellite comes to a bare loop of the same steps, without a framework.

The store path moves messages from ``<endpoint>.Timeouts`` into PostgreSQL; the dispatch path moves
due timeouts through both satellites to their destination, confirmed, with tombstones and history.
Each run has empty tables and a fresh process, and is measured from its first batch to its last.
A drain is a dispatch beside a consumer of the destination, measured at that consumer.
"""

from collections.abc import Callable
from functools import partial

from harness import bare, pending
from harness.destination import Destination
from harness.figures import Sample, interleave
from harness.messages import DAY, SECOND, delayed, fill, micros
from harness.report import Report, options, parsed
from harness.runs import dispatched, load_due
from harness.servers import servers
from harness.workers import Spec, Worker, installed, usual

LARGE = 500
"""A size measured beside the default size of batch and chunk; not with --quick."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=["store", "dispatch", "drain"], help="one path")
    parser.add_argument("--skip-portable", action="store_true", help="PostgreSQL's own path only")
    given = parsed(parser, count=20_000, quick=4_000)
    with servers("postgres", "rabbitmq") as running:
        settings = {"messages": given.count, "body": "512 B", **running.settings}
        report = Report("The satellites against a bare loop", settings)
        make = partial(installed, running["rabbitmq"], running["postgres"], profile=given.profile)

        batches = {usual("store_batch")} if given.quick else {usual("store_batch"), LARGE}
        for batch in sorted(batches) if given.only in (None, "store") else ():
            with make(store_batch=batch) as ours, make(store_batch=batch, portable=True) as plain:
                cases = {
                    f"store, batch {batch}: bare": partial(bare_store, ours, given.count, batch),
                    f"store, batch {batch}: ours": partial(store, ours, given.count),
                    f"store, batch {batch}: portable": partial(store, plain, given.count),
                }
                if given.skip_portable:
                    cases.popitem()
                samples = interleave(cases, given.rounds)
            report.runs(samples)
            limit, *stored = samples.values()
            report.faster(f"store path ÷ bare, batch {batch}", stored[0], limit, 0.85)
            if not given.skip_portable:
                report.faster(f"portable store path ÷ bare, batch {batch}", stored[1], limit, 0.65)

        chunks = {usual("chunk"): 0.75} if given.quick else {usual("chunk"): 0.75, LARGE: 0.85}
        for chunk, bar in chunks.items() if given.only in (None, "dispatch") else ():
            with make(chunk=chunk) as ours:
                samples = interleave(
                    {
                        f"dispatch, chunk {chunk}: bare": partial(
                            bare_dispatch, ours, given.count, chunk
                        ),
                        f"dispatch, chunk {chunk}: ours": partial(dispatched, ours, given.count),
                    },
                    given.rounds,
                )
            report.runs(samples)
            limit, sent = samples.values()
            report.faster(f"dispatch path ÷ bare, chunk {chunk}", sent, limit, bar)

        if given.only in (None, "drain"):
            chunk = usual("chunk")
            with make() as ours:
                samples = interleave(
                    {
                        f"drain, chunk {chunk}: bare": partial(
                            consumed, ours, given.count, partial(bare_dispatch, chunk=chunk)
                        ),
                        f"drain, chunk {chunk}: ours": partial(
                            consumed, ours, given.count, dispatched
                        ),
                    },
                    given.rounds,
                )
            report.runs(samples)
            limit, sent = samples.values()
            report.faster(f"drain to a consumer ÷ bare, chunk {chunk}", sent, limit, 0.85)
    report.give(given)


def consumed(spec: Spec, count: int, drain: Callable[[Spec, int], Sample]) -> Sample:
    """Measure *drain* by the messages that reach a consumer, from the first to the last one."""
    with Destination(spec.transport, spec.destination, count) as destination:
        cpu = drain(spec, count).cpu
        stamps = destination.arrivals().stamps
    return Sample(count, (max(stamps) - min(stamps)) / SECOND, cpu)


def store(spec: Spec, count: int) -> Sample:
    fill_store_queue(spec, count)
    with Worker(spec) as worker:
        return worker.measure("timeouts_stored", count)


def bare_store(spec: Spec, count: int, batch: int) -> Sample:
    fill_store_queue(spec, count)
    where = (spec.transport, spec.persistence, spec.name)
    return bare.in_a_process(bare.store, *where, count, batch)


def fill_store_queue(spec: Spec, count: int) -> None:
    pending.clear(spec.persistence)
    due = micros() + DAY
    fill(spec.transport, [delayed(spec.name, spec.destination, due + n) for n in range(count)])


def bare_dispatch(spec: Spec, count: int, chunk: int) -> Sample:
    pending.clear(spec.persistence)
    load_due(spec, count)
    where = (spec.transport, spec.persistence, spec.name)
    return bare.in_a_process(bare.dispatch, *where, count, chunk)


if __name__ == "__main__":
    main()
