"""The command: many seeds for a while, or one seed exactly."""

from __future__ import annotations

import argparse
import itertools
import json
import secrets
import sys
from collections.abc import Sequence

from .report import describe, play
from .run import TIMEOUTS, Run, line


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seconds", type=float, help="CPU seconds; without: one seed exactly")
    parser.add_argument("--seed", type=int, help="the (first) seed; without: a fresh one")
    parser.add_argument("--timeouts", type=int, default=TIMEOUTS, help="timeouts of one run")
    parser.add_argument("--json", action="store_true", help="print the sum as JSON")
    parser.add_argument("--log", action="store_true", help="print the event log of the one seed")
    options = parser.parse_args(given)
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    one = options.log or (options.seconds is None and options.seed is not None)
    seconds, said = options.seconds or 60.0, 0.0
    if options.log:
        for event in Run(seed, timeouts=options.timeouts).play().events:
            print(line(event))
    for total in play([seed] if one else itertools.count(seed), options.timeouts):
        if total.seconds >= said + 5:
            said = total.seconds
            print(total.sentence(), file=sys.stderr)
        if total.broken or total.seconds >= seconds:
            break
    for result in total.broken:
        print(describe(result), file=sys.stderr)
    print(json.dumps(total.as_json(), indent=2) if options.json else total.sentence())
    return 1 if total.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
