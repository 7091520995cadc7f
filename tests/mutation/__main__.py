"""``make mutants``: break the source on purpose, and see that a named test notices each break."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.services import catalog, processes
from tests.services import run as runs
from tests.services.private import stop_all

from .copies import copy_to
from .mutant import Mutant, SourceMoved
from .mutants import MUTANTS
from .running import run_tests, try_out
from .verdicts import Judged, Verdict

SERVERS = ("postgres", "rabbitmq")


def main(arguments: Sequence[str]) -> int:
    """Try all mutants, or the named mutants; return 1 if a mutant was not noticed."""
    options = _parser().parse_args(arguments)
    chosen = [one for one in MUTANTS if not options.only or one.name in options.only]
    missing = set(options.only) - {one.name for one in chosen}
    if missing:
        return _refuse(f"no such mutant: {', '.join(sorted(missing))}")
    moved = list(_moved(chosen))
    if moved:
        return _refuse("\n".join(moved))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timeoutmgr-mutants-") as folder, _servers() as urls:
        clean = copy_to(Path(folder, "clean"))
        if not _all_pass(chosen, clean, urls, options.workers):
            return 1
        judged = _try_all(chosen, clean, urls, options.workers)
    order = {mutant.name: place for place, mutant in enumerate(chosen)}
    judged.sort(key=lambda one: order[one.mutant])
    if options.json:
        print(json.dumps([asdict(one) for one in judged], indent=2))
    else:
        _print_table(judged, time.monotonic() - began)
    return int(any(one.verdict in (Verdict.SURVIVED, Verdict.BROKEN) for one in judged))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", default=[])
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser


def _moved(mutants: Sequence[Mutant]) -> Iterator[str]:
    for mutant in mutants:
        try:
            mutant.source()
        except SourceMoved as error:
            yield str(error)


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Look for the servers once, or start them, for all runs; each run would do it again."""
    run = runs.begin()
    try:
        found = {name: catalog.find(run, name).url for name in SERVERS}
        yield {catalog.SERVICES[name].variable: url for name, url in found.items() if url}
    finally:
        stop_all(run.folder)
        for left in processes.left_behind(run.folder):
            _say(f"left behind: {left}")
        runs.remove(run.folder)


def _all_pass(
    mutants: Sequence[Mutant], clean: Path, servers: Mapping[str, str], workers: int
) -> bool:
    """Return whether every named test passes without a mutant; they compile the copy too."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    _say(f"{len(mutants)} mutants; first their {len(tests)} tests without one")
    code, _, output = run_tests(clean, tests, servers, f"--numprocesses={workers}")
    _say("they pass" if code == 0 else f"{output}\nthey must pass before they can tell anything")
    return code == 0


def _try_all(
    mutants: Sequence[Mutant], clean: Path, servers: Mapping[str, str], workers: int
) -> list[Judged]:
    judged: list[Judged] = []
    with ThreadPoolExecutor(workers) as pool:
        folders = (clean.with_name(f"mutant-{number}") for number in range(len(mutants)))
        trials = [
            pool.submit(try_out, mutant, clean, folder, servers)
            for mutant, folder in zip(mutants, folders, strict=True)
        ]
        try:
            for trial in as_completed(trials):
                one = trial.result()
                judged.append(one)
                _say(f"[{len(judged):>2}/{len(mutants)}] {one.verdict:<8} {one.mutant}")
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for running trials only
    return judged


def _say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def _print_table(judged: Sequence[Judged], seconds: float) -> None:
    width = max(len(one.mutant) for one in judged)
    print(f"\n{'mutant':<{width}}  killed by, seconds")
    for one in judged:
        by = (
            one.by.rpartition("/")[2]
            if one.verdict is Verdict.KILLED
            else f"{one.verdict}! {one.by}"
        )
        print(f"{one.mutant:<{width}}  {by}, {one.seconds:.1f}")
    killed = sum(one.verdict is Verdict.KILLED for one in judged)
    print(f"\n{killed} of {len(judged)} mutants killed in {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
