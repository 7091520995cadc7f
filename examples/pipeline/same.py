"""Run jobs of the pipeline here, on a cluster, and through Spark Connect, and compare the results.

same.py SETTINGS MASTER REMOTE JOB ...: each JOB is its name and its options, in quotes. In them
{place} stands for here, cluster and connect, so that a job that changes data can use other data in
each place. A job that needs no Spark runs only here.

Prints each output, each difference from the first, and a table. Name and time of a run may differ,
and the names of the stores between which it moves timeouts.
Exit code: 1 if a job failed or results differ; otherwise the first exit code that is not 0.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

OWN: Final = ("run_id", "run", "at", "as_of", "cutoff", "source", "target")
CORES: Final = 2
"""Cores of the cluster that a job uses: the server of Spark Connect has the others."""


class Ended(NamedTuple):
    """The output of a job in a place, its exit code, and its duration."""

    said: str
    code: int
    seconds: float


def differences(one: Any, other: Any) -> list[str]:
    """Return a line for each value that differs between the two documents."""
    ones, others = dict(_values(one)), dict(_values(other))
    return [
        f"{name}: {ones.get(name, 'nothing')} and {others.get(name, 'nothing')}"
        for name in {**ones, **others}
        if ones.get(name, "nothing") != others.get(name, "nothing")
    ]


def _values(document: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        parts = [(key, value) for key, value in document.items() if key not in OWN]
    elif isinstance(document, list):
        parts = list(enumerate(document))
    else:
        yield name, json.dumps(document)
        return
    for key, value in parts:
        yield from _values(value, f"{name}.{key}" if name else str(key))


def problems(ended: Mapping[str, Ended]) -> list[str]:
    """Return the problems of a job that ran in several places."""
    silent = [place for place, one in ended.items() if not one.said.strip()]
    if silent:
        return [f"{place} found nothing: its job failed" for place in silent]
    (first, found), *others = [(place, json.loads(one.said)) for place, one in ended.items()]
    return [
        f"{first} and {place} differ in {line}"
        for place, other in others
        for line in differences(found, other)
    ]


def run(job: str, settings: str, places: Mapping[str, Sequence[str]]) -> dict[str, Ended]:
    """Run *job* in each of *places*, or only in the first if it has no options for Spark."""
    name = shlex.split(job)[0]
    pipeline = [sys.executable, "-m", "timeoutmgr", "pipeline", name, "--help"]
    is_on_spark = "--remote" in subprocess.run(pipeline, stdout=subprocess.PIPE, text=True).stdout
    ended = {}
    for place, where in places.items():
        print(f"# {name} in {place}", flush=True)
        python = os.environ.get("CLIENT", sys.executable) if place == "connect" else sys.executable
        words = shlex.split(job.replace("{place}", place))
        command = [python, "-m", "timeoutmgr", "--config", settings, "--json", "pipeline", *words]
        began = time.monotonic()
        done = subprocess.run([*command, *where], stdout=subprocess.PIPE, text=True)
        ended[place] = Ended(done.stdout, done.returncode, time.monotonic() - began)
        print(done.stdout, end="", flush=True)
        if not is_on_spark:
            break
    return ended


def table(outcomes: Mapping[str, tuple[dict[str, Ended], list[str]]]) -> str:
    """Return a line for each job: its exit code and seconds in each place, and the outcome."""
    lines = [f"{'job':<12}{'here':<14}{'cluster':<14}{'connect':<14}outcome"]
    for job, (ended, wrong) in outcomes.items():
        cells = [f"{one.code} in {one.seconds:.0f} s" for one in ended.values()]
        cells += [""] * (3 - len(cells))
        ran = f"the same {len(ended)} times" if len(ended) > 1 else "ran, needs no Spark"
        name = shlex.split(job)[0]
        lines.append(f"{name:<12}{''.join(f'{one:<14}' for one in cells)}{'; '.join(wrong) or ran}")
    return "\n".join(lines)


def main(settings: str, master: str, remote: str, *jobs: str) -> int:
    cluster = ["--master", master, "--conf", f"spark.cores.max={CORES}"]
    places = {"here": [], "cluster": cluster, "connect": ["--remote", remote]}
    outcomes = {}
    for job in jobs:
        ended = run(job, settings, places)
        outcomes[job] = ended, problems(ended)
    print(table(outcomes))
    if any(wrong for _, wrong in outcomes.values()):
        return 1
    codes = [one.code for ended, _ in outcomes.values() for one in ended.values()]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
