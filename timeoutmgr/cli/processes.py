"""The processes that live, by the heartbeats that they leave in the store."""

from typing import Any, Final

from timeoutmgr.cli.output import shown_time
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.contracts.reports import LIVE, SENDERS_AHEAD
from timeoutmgr.instants import Micros
from timeoutmgr.resilience.breakers import BreakerState

_BREAKER: Final = "breaker_"


def live_processes(store: TimeoutStore, now: Micros) -> list[dict[str, Any]]:
    """Return the processes of the endpoint that live, for JSON."""
    breaker_states = {state.value for state in BreakerState}
    return [
        {
            "host": each.host,
            "pid": each.pid,
            "started": shown_time(each.started),
            "heartbeat": shown_time(each.heartbeat),
            "breakers": {
                name.removeprefix(_BREAKER): value
                for name, value in each.state.items()
                if value in breaker_states
            },
            "senders_ahead": each.state.get(SENDERS_AHEAD),
        }
        for each in store.processes()
        if each.heartbeat >= now - LIVE
    ]
