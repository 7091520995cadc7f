"""Crash points: named places between two side effects at which a process can be told to die.

With the environment variable ``TIMEOUTMGR_CRASHPOINT=name:nth`` the process kills itself with
SIGKILL when it comes by the point *name* for the *nth* time (``:nth`` may be left out and is 1
then). The variable is read once, when this module is imported; without it ``reach`` is an empty
function.
"""

import itertools
import os
import signal
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from timeoutmgr.errors import ConfigurationError

VARIABLE: Final = "TIMEOUTMGR_CRASHPOINT"

POINTS: Final[Mapping[str, str]] = {
    # --- the pump, and the work on one batch
    "pump.received": "A batch is in the pump's hands; nothing was done with it.",
    "pump.handled": "The step has returned; its messages are not acknowledged.",
    "pump.acked": "The messages are acknowledged; an atomic mode has not committed that yet.",
    "pump.retry_sent": "The delayed retry is sent; the message that failed is still in its queue.",
    "pump.error_copy_sent": "The error queue has the copy; the message is still in its queue too.",
    "pump.replaced": "Retry or copy is sent and the message acknowledged; an atomic mode has not "
    "committed that yet.",
    "work.committed": "A batch is acknowledged and committed; the poller was not woken.",
    "handler.returned": "A handler has returned; what it sent is not sent, its message unsettled.",
    "handler.sent": "What a handler sent is sent; its message is not acknowledged.",
    # --- the satellite that stores
    "timeouts.stored": "A batch of timeouts is stored; sagas to clear are not cleared, nothing is "
    "acknowledged.",
    "timeouts.cleared": "The timeouts of a saga are cleared; its message is not acknowledged.",
    "storing.keys_inserted": "The keys of a batch are inserted; its rows are not.",
    "storing.key_inserted": "One key of a batch that was partly seen before; not its row.",
    "storing.rows_inserted": "Keys and rows are inserted; their history is not.",
    "storing.written": "A batch, or one of a batch that was partly seen before, is written; the "
    "commit is to come.",
    "storing.batch_undone": "Some ids were seen before, so the batch is undone; none is stored.",
    # --- the poller
    "poller.claimed": "A chunk is claimed; its ids are not sent.",
    "poller.sent": "The ids of a chunk are sent; an atomic mode has not committed the claim.",
    "poller.handed_on": "A chunk is claimed and sent; the next is not claimed.",
    "poller.not_sent": "A chunk is claimed and its ids could not be sent; it is not released.",
    "claiming.claim_ended": "What an ended claim may have sent is marked; it is still there.",
    "claiming.ended_dropped": "Claims that ended are dropped; the new one is not made.",
    "claiming.claim_added": "A claim is made; the commit is to come.",
    # --- the dispatcher
    "dispatch.taken": "The rows of a chunk are in hand; nothing is published.",
    "dispatch.confirmed": "All messages of a chunk are published and confirmed; no row is closed.",
    "dispatch.error_copy_confirmed": "The error queue has the copy of an undeliverable message; "
    "its row is not closed.",
    "dispatch.closed": "A chunk is closed; its control message is not acknowledged.",
    "taking.fence_raised": "A claim without row locks is made the dispatcher's; not committed.",
    "taking.claim_added": "A single timeout got a claim of its own; nothing is published.",
    "taking.marked": "What was taken and not closed is marked as maybe sent; its claim is there.",
    "closing.keys_closed": "The tombstones are set; the rows are still there.",
    "closing.rows_removed": "Tombstones are set and rows removed; the history is not written.",
    "closing.history_written": "Tombstones, rows and history of a chunk; its claim is there.",
    "closing.attempts_counted": "Failed attempts are counted; what may be sent is not marked.",
    "closing.retries_written": "Failed attempts are counted and marked; the claim is there.",
    "closing.claim_dropped": "All of a chunk is recorded; the commit is to come.",
    "window.burst_written": "A part of a chunk is on the wire to the broker.",
    "window.written": "All of a chunk is on the wire to the broker; no confirm was read.",
    # --- cancelling and rescheduling
    "changing.key_cancelled": "The tombstone of a cancelled timeout is set; its row is there.",
    "changing.row_cancelled": "Tombstone set and row removed; the history does not tell of it.",
    "changing.cancelled": "A timeout is cancelled and its history written; not committed.",
    "changing.key_moved": "The key of a timeout has the new due time; its row has not.",
    "changing.row_taken_out": "The row of a timeout that is moved is taken out, not put back.",
    "changing.row_put_back": "Key and row of a timeout are moved; the history does not tell of it.",
    # --- housekeeping
    "heartbeats.written": "The heartbeat is written; nothing old is removed.",
    "purging.tombstones_removed": "Old tombstones are removed; old history is not.",
    "purging.history_removed": "Old tombstones and history are removed; silent processes are not.",
    # --- the SQL queue
    "leases.written": "Messages are leased; the commit is to come.",
    "leases.committed": "Messages are leased and committed; the receiver does not have them.",
    "leases.settled": "Messages are deleted, or given back; the commit is to come.",
    "leases.renewed": "Some leases are moved on and committed; others may be not.",
    "leases.freed": "Messages of a dead owner are freed; the commit is to come.",
    "leases.gone_freed": "Messages of dead owners are freed and committed; none is leased anew.",
    "queues.inserted": "Messages are in a queue; listeners are not notified, nor is it committed.",
    "queues.sent": "Messages are in a queue and committed; receivers here are not woken.",
    "queues.deleted": "A queue is deleted; its bindings and messages are there.",
    "queues.bindings_deleted": "A queue and its bindings are deleted; its messages are there.",
    # --- installation
    "install.queue_tables": "The transport is installed; neither queues nor store are.",
    "install.store_tables": "Transport and store are installed; the queues are not there.",
    "install.error_queue": "The error queue is there; the endpoint's other queues are not.",
    "install.queues": "The queues are there; the store is not installed.",
    "upgrade.schema_created": "A schema is created; it has no tables.",
    "upgrade.table_created": "A table and its indexes are created; those after it are not.",
    "upgrade.index_created": "An index that a table lacked is created; those after it are not.",
    "upgrade.revisions_run": "All revisions have run; where DDL is transactional the commit is to "
    "come.",
}
"""Every point, with what has happened there and what has not."""


def _pass_by(_name: str) -> None:
    """Do nothing."""


def _armed(setting: str) -> Callable[[str], None]:
    """Return the ``reach`` that dies where *setting* says; ConfigurationError for nonsense."""
    doomed, _, number = setting.partition(":")
    if doomed not in POINTS:
        near = get_close_matches(doomed, POINTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(POINTS)}"
        raise ConfigurationError(f"{VARIABLE} names no crash point {doomed!r}; {hint}")
    if number and not (number.isascii() and number.isdigit() and int(number)):
        raise ConfigurationError(
            f"{VARIABLE} is name:nth with nth from 1, got {setting!r}; nth says at which hit to die"
        )
    nth = int(number or 1)
    hits = itertools.count(1)  # one step of it cannot be torn apart by another thread

    def reach(name: str) -> None:
        if name not in POINTS:
            raise ValueError(f"crash point {name!r} is not registered")
        if name == doomed and next(hits) == nth:
            os.write(2, f"dies at crash point {setting}\n".encode())  # not buffered: no flush comes
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


reach: Final[Callable[[str], None]] = (
    _armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _pass_by
)
"""Come by a point; a name in ``POINTS``."""
