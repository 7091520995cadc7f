"""Probes: whether the processes of an endpoint are alive, ready, and started."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from timeoutmgr.metrics.memory import Section, State

TICK: Final = 5.0
"""Seconds without a tick of the watchdog after which a process counts as hanging."""
ANSWER: Final = 10.0
"""Seconds for which an answer of the store or the broker is valid."""

Probe: TypeAlias = Callable[[Sequence[Section], float], list[str]]
"""Returns the reasons why the processes of some sections fail at a monotonic instant."""


def not_alive(sections: Sequence[Section], now: float) -> list[str]:
    """Return the processes that hang or lack a pump, unless they start, stop or have ended."""
    found = []
    for number, section in enumerate(sections, 1):
        if not section.has(State.TICK) or section.has(State.DRAINING):
            continue
        since = now - section.state(State.TICK)
        if since > TICK:
            found.append(f"process {number}: its watchdog last ran {since:.0f} s ago")
        ended = section.state(State.PUMPS_ENDED)
        if ended > 0:  # false for NaN: the watchdog has not run yet
            found.append(f"process {number}: {ended:.0f} of its pumps ended, and none starts again")
    return found


def not_started(sections: Sequence[Section], _now: float) -> list[str]:
    """Return the processes that have not started."""
    return [
        f"process {number}: not started"
        for number, section in enumerate(sections, 1)
        if not section.has(State.STARTED)
    ]


def not_ready(sections: Sequence[Section], now: float) -> list[str]:
    """Return why a process does not consume: not started, stopping, no store, or no broker."""
    found = [*not_started(sections, now), *not_alive(sections, now)]
    for number, section in enumerate(sections, 1):
        if section.has(State.DRAINING):
            found.append(f"process {number}: stopping")
        for what, state in (("store", State.STORE_ANSWERED), ("broker", State.BROKER_ANSWERED)):
            # Also true for NaN: there was no answer yet.
            if not now - section.state(state) <= ANSWER:
                found.append(f"process {number}: the {what} has not answered for {ANSWER:.0f} s")
    return found


PROBES: Final[Mapping[str, Probe]] = MappingProxyType(
    {"/livez": not_alive, "/readyz": not_ready, "/startupz": not_started}
)
"""Each probe by its path."""
