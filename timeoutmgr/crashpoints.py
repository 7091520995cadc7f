"""Crash points: named places between two side effects, where a test can kill the process.

Only a program that calls ``arm`` is killed, such as ``chaos/crash_command.py``. No setting and no
environment variable arms a process that a user runs.
"""

import itertools
import os
import signal
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from timeoutmgr.errors import ConfigurationError

POINTS: Final[Mapping[str, str]] = {
    # --- the pump, and the work on one batch
    "pump.received": "A batch is in the pump's hands; nothing was done with it.",
    "pump.handled": "The step has returned; its messages are not acknowledged.",
    "pump.acked": "The messages are acknowledged; an atomic mode has not committed that yet.",
    "pump.retry_sent": "The delayed retry is sent; the message that failed is still in its queue.",
    "pump.error_copy_sent": "The error queue has the copy; the message is still in its queue too.",
    "pump.buried": "A message is in the dead-letter queue; it is still in its own queue too.",
    "pump.source_told": "The source of a dead message is notified; its admin queue is not.",
    "pump.told": "The admin queue of a dead message is notified; the message is still queued.",
    "pump.replaced": "Retry or copy is sent and the message acknowledged; an atomic mode has not "
    "committed that yet.",
    "work.committed": "A batch is acknowledged and committed; the poller was not woken.",
    "handler.kept": "A handler's effects stand in the transaction of its batch; nothing is sent.",
    "handler.returned": "A handler has returned; its messages are not sent, its own is unsettled.",
    "handler.sent": "A handler's messages are sent; its own message is not acknowledged.",
    # --- the satellite that stores
    "timeouts.stored": "A batch of timeouts is stored; sagas to clear are not cleared, nothing is "
    "acknowledged.",
    "timeouts.cleared": "The timeouts of a saga are cleared; its message is not acknowledged.",
    "storing.keys_inserted": "The keys of a batch are inserted; its rows are not.",
    "storing.key_inserted": "One key of a batch that was partly seen before; not its row.",
    "storing.rows_inserted": "Keys and rows are inserted; their history is not.",
    "storing.written": "A batch, or one of a batch that was partly seen before, is written; the "
    "commit is to come.",
    "storing.repeat_settled": "A message under a used id is settled; the rest of its batch is not.",
    "repeats.arrival_noted": "The tombstone of an early cancel has its message's content; the "
    "history does not tell of it.",
    "storing.batch_undone": "Some ids were seen before, so the batch is undone; none is stored.",
    # --- the poller
    "poller.claimed": "A chunk is claimed; its ids are not sent.",
    "poller.sent": "The ids of a chunk are sent; an atomic mode has not committed the claim.",
    "poller.handed_on": "A chunk is claimed and sent; the next is not received.",
    "poller.not_sent": "A chunk is claimed and its ids could not be sent; it is not released.",
    "poller.released": "A chunk that could not be sent is released; others may still be claimed.",
    "claiming.claim_ended": "Rows of an ended claim are marked as maybe sent; the claim is there.",
    "claiming.ended_dropped": "Claims that ended are dropped; the new claim is not made.",
    "claiming.claim_added": "A claim is made; the commit is to come.",
    # --- the dispatcher
    "dispatch.moved": "All rows that the database can move are moved; the rest is not locked.",
    "dispatch.taken": "The rows of a chunk are locked; nothing is published.",
    "dispatch.confirmed": "All messages of a chunk are published and confirmed; no row is closed.",
    "dispatch.error_copy_confirmed": "The error queue has the copy of an undeliverable message; "
    "its row is not closed.",
    "dispatch.closed": "A chunk is closed; its control message is not acknowledged.",
    "taking.fence_raised": "A claim without row locks is made the dispatcher's; not committed.",
    "taking.claim_added": "A single timeout got a claim of its own; nothing is published.",
    "taking.marked": "Unclosed rows of a claim are marked as maybe sent; the claim is still there.",
    "closing.at_once": "A chunk that was sent whole: all of it, by one statement.",
    "moving.locked": "The rows of a chunk are locked, to go to queues of the same database.",
    "moving.moved": "Rows are moved into queues of the same database; the commit is to come.",
    "closing.keys_closed": "The tombstones are set; the rows are still there.",
    "closing.rows_removed": "Tombstones are set and rows removed; the history is not written.",
    "closing.history_written": "Tombstones, rows and history of a chunk; its claim is there.",
    "closing.retries_marked": "Maybe sent rows are marked; failed attempts are not counted.",
    "closing.attempts_counted": "Failed attempts are counted and moved; their keys are not.",
    "closing.retries_written": "Failed attempts are counted and moved; the claim is there.",
    "closing.claim_dropped": "All of a chunk is recorded; the commit is to come.",
    "window.burst_written": "A part of a chunk is on the wire to the broker.",
    "window.written": "All of a chunk is on the wire to the broker; no confirm was read.",
    # --- dead letters
    "deadletters.kept": "A message that is about to be sent is kept; the commit is to come.",
    "deadletters.arrived": "It is noted that a kept message has arrived; the commit is to come.",
    "deadletters.attempt_noted": "The first attempt of a message is noted; the commit is to come.",
    "deadletters.settled": "A kept message is taken out by its acknowledgement; it is nowhere else "
    "yet.",
    "deadletters.late": "A late acknowledgement is noted; the commit is to come.",
    "deadletters.deleted": "A dead letter or journal copy is deleted; the commit is to come.",
    "deadletters.taken_out": "The old copy on a node is deleted; the new copy is not inserted.",
    "deadletters.placed": "A dead letter is placed; the commit is to come.",
    "deadletters.journal_taken_out": "The old journal entry is deleted; the new is not inserted.",
    "deadletters.journaled": "A journal copy is made; the commit is to come.",
    "dispatch.arrivals_noted": "Arrivals of messages are noted; admin queues are not notified.",
    "dispatch.dead_letter_placed": "A dead letter of a chunk is placed; its source is not told.",
    "dispatch.source_told": "The source of a dead message is notified; its admin queue is not.",
    "dispatch.buried": "One undeliverable message of a chunk is a dead letter; no row is closed.",
    "handler.source_keeps": "The source has copies of a handler's messages; they are not sent.",
    "handler.arrivals_noted": "Arrivals of a handler's messages are noted; none is acknowledged.",
    "handler.finished": "A handler's messages are sent; the source of its own is not notified.",
    "sending.source_keeps": "The source has copies of messages; they are not sent.",
    "sending.sent": "Messages with a copy are sent; their arrival is not noted.",
    "sending.arrivals_noted": "Arrivals of messages are noted; no acknowledgement is sent.",
    "deadletters.forgotten": "The copy of a settled message is deleted; the commit is to come.",
    "deadletters.buried": "A dead letter is placed; its message is not settled.",
    "deadletters.acknowledged": "A kept message is settled; its acknowledgement is still queued.",
    "deadletters.source_keeps": "A message is kept by its source and is not sent.",
    "deadletters.source_told": "The arrival of a sent message is noted; the next message's is not.",
    "deadletters.source_journaled": "A sent message is journaled; the next message is not.",
    "deadletters.target_journaled": "A received message is journaled; its source is not notified.",
    "deadletters.source_settled": "A received message is settled at its source, not in its queue.",
    # --- the delayed message store
    "delayed.set_up": "The table of a delayed message store is there; it is not initialized.",
    "delayed.stored_one": "One message of a batch is stored, the rest is not.",
    "delayed.stored": "Messages due later are stored; messages due already are not sent.",
    "delayed.sent": "What is due already is sent; what cannot be delivered is not in the error "
    "queue.",
    "delayed.sent_on": "What is due already is sent, or in the error queue; what neither took is "
    "not stored.",
    "due.fetched": "A batch is fetched under a lock; nothing is sent.",
    "due.confirmed": "All messages of a batch are sent and confirmed; no row is removed.",
    "due.error_copy_confirmed": "The error queue has the copy of an undeliverable message; its "
    "row is not removed.",
    "due.removed_one": "One row of a batch is removed, the rest is not.",
    "due.removed": "The rows of a batch are removed; the commit is to come.",
    "due.committed": "A batch is sent and removed; failed attempts are not counted.",
    "due.given_up": "A message that was tried often enough is in the error queue and removed; "
    "that may not be committed.",
    "due.counted": "A failed attempt is counted; others of the batch may be not.",
    "fencing.freed": "Rows of dead processes are free; no row is reserved anew, nor committed.",
    "fencing.held": "Due rows are marked as held; the commit is to come.",
    # --- native delayed delivery
    "unroutable.sent_on": "What came out of the delay levels unbound is sent on where its queue "
    "exists; the rest is neither buried nor in the error queue.",
    "unroutable.error_copies_confirmed": "The error queue has the copies of unroutable messages; "
    "they are still in their queue too.",
    # --- cancelling and rescheduling
    "changing.key_cancelled": "The tombstones of cancelled timeouts are set; their rows are there.",
    "changing.row_cancelled": "Tombstones set and rows removed; the history does not tell of it.",
    "changing.cancelled": "Timeouts are cancelled and their history written; not committed.",
    "changing.cancel_remembered": "Timeouts of a label or a saga are cancelled and the cancel is "
    "remembered; the commit is to come.",
    "changing.clear_remembered": "A clear of a saga is carried out and remembered; not committed.",
    "changing.rerouted": "Timeouts have another destination; the history does not tell of it.",
    "changing.key_moved": "The key of a timeout has the new due time; its row has not.",
    "changing.row_taken_out": "The row of a timeout that is moved is taken out, not put back.",
    "changing.row_put_back": "Key and row of a timeout are moved; the history does not tell of it.",
    "audit.written": "A change is done and the audit tells of it; the commit is to come.",
    # --- pauses of dispatch
    "pausing.former_ended": "The pause in force of a destination holds no more; the new pause is "
    "not written.",
    "pausing.written": "A pause is written; the audit does not tell of it.",
    "pausing.parked": "Due timeouts that a pause holds are parked; the commit is to come.",
    "pausing.returned": "Some parked timeouts are at their place again; the commit is to come.",
    "pausing.forgotten": "A pause has ended and its row is deleted; the commit is to come.",
    # --- bulk runs
    "bulk.planning": "The row of a run is there; none of its timeouts is selected.",
    "bulk.keys_kept": "A page of keys is selected; its batches are not written.",
    "bulk.exported": "The selected timeouts are exported; the run cannot be applied yet.",
    "bulk.planned": "All keys are selected and the run is planned; the audit does not tell of it.",
    "bulk.begun": "A run has begun; the audit does not tell of it.",
    "bulk.locked": "The timeouts of a batch are locked; none is changed.",
    "bulk.rows_moved": "Rows stand at new places; their keys do not say so.",
    "bulk.keys_cancelled": "The tombstones of a batch are set; its rows are there.",
    "bulk.rows_cancelled": "Tombstones set and rows removed; the history does not tell of it.",
    "bulk.changed": "A batch is changed; its row does not say so.",
    "bulk.left_noted": "A batch is changed and what was left is noted; its row does not say so.",
    "bulk.batch_closed": "A batch is changed and its row says so; the commit is to come.",
    "bulk.ended": "No batch is left and the run is over; the audit does not tell of it.",
    # --- background counts by bucket
    "load.tiles_written": "The tiles of a slice are written; the pass is where it was.",
    "load.slice_counted": "A slice is counted and its pass is behind it; the commit is to come.",
    # --- recurring timeouts
    "recurring.row_inserted": "The row of a new schedule is there; no run is stored.",
    "recurring.run_stored": "A run of a schedule is stored; others may follow, and its row names "
    "the run before.",
    "recurring.run_cancelled": "The run of a schedule is cancelled; its row still names the run.",
    "recurring.record_written": "The row of a schedule names its next run; the commit is to come.",
    "recurring.changed": "All of a change of a schedule is done; the commit is to come.",
    "recurring.committed": "The next run of a schedule is stored; the poller is not woken.",
    # --- housekeeping
    "heartbeats.written": "The heartbeat is written; nothing old is removed.",
    "purging.rows_removed": "Old rows of one table are removed; rows of the next are not.",
    "partitions.replaced": "Partitions that hold little are replaced; the commit is to come.",
    "partitions.prepared": "Tables for copies of a partition are made, and what keeps them up; "
    "the commit is to come.",
    "partitions.copied": "A chunk of a partition is copied; the commit is to come.",
    "partitions.analyzed": "The copies of a partition are all there; they are not in its place.",
    "partitions.swapped": "The copies are in the place of their partition; the commit is to come.",
    "partitions.discarded": "Unneeded copies are removed; the commit is to come.",
    "forgetting.rows_deleted": "An endpoint's rows are deleted from one table; not committed.",
    "forgetting.table_dropped": "A table of a part that is removed is dropped; others are there.",
    "uninstall.queues_deleted": "The queues of a timeout manager are deleted; its tables hold it.",
    "uninstall.broker_unmarked": "Queues and the broker's marker are gone; the store has its own.",
    "uninstall.rows_deleted": "An endpoint is gone from the tables; they are there, and empty.",
    # --- the SQL queue
    "split.sent_there": "A broker beside the database has the foreign messages of a chunk; our own "
    "queues do not have the other messages.",
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
    "queues.messages_deleted": "A queue is deleted with its messages; its owners are there.",
    "expiry.placed": "An expired message is a dead letter here; it is still queued.",
    "expiry.source_told": "The source of an expired message is notified; its admin queue is not.",
    "expiry.settled_one": "One expired message is settled; the next is not, all are still queued.",
    "owned_queues.deleting": "Part of an owned queue is deleted; the rest is not yet.",
    "owned_queues.removed": "Dead owners are removed, and the queues that went with them.",
    "owned_queues.discarded": "Messages whose time is over are deleted; more are left.",
    "expiry.settled": "Expired messages are dead letters, or on their way; they are still queued.",
    "expiry.deleted": "Expired messages are settled and deleted; the commit is to come.",
    # --- migrations: the run
    "migration.planned": "Run and plan are in the ledger; source and target know of nothing.",
    "migration.taken_over": "An open run has a new runner; nothing of it was gone on with.",
    "migration.prepared": "The source can hide rows; the target does not know of the run.",
    "migration.opened": "The target lets the run deliver; the ledger has it as planned only.",
    "migration.claimed": "A batch is claimed; no step of it is begun.",
    "migration.hidden": "A batch is hidden in the source; nothing of it was read or sent.",
    "migration.sending": "The ledger says that a batch may be at the target; nothing was sent.",
    "migration.delivered": "A batch is at the target; it is hidden in the source as well.",
    "migration.removed": "A batch is at the target and not in the source any more; the next waits.",
    "migration.shut": "All is moved, the run is shut at the target, and runs in the ledger.",
    "migration.completed": "The run is complete and its report saved; the caller does not know.",
    "migration.aborting": "The run is being aborted, says the ledger; the target still takes it.",
    "migration.finished": "A batch that may have been sent is sent to its end; others are open.",
    "migration.shut_for_good": "The target takes nothing more of the run; nothing was put back.",
    "migration.found_hidden": "A batch that a crash has left hidden is in the ledger as that; it "
    "is not put back.",
    "migration.returned": "A batch is put back, but for rows at the target; others are open.",
    "migration.aborted": "The run is aborted and its report saved; the caller does not know.",
    # --- migrations from another product's table
    "foreign.copied": "Rows are in the other table too; the commit is to come.",
    "foreign.shifted": "Rows are in the other table and not in the first; the commit is to come.",
    "foreign.moved_aside": "A batch is aside and committed; the ledger does not say so.",
    "foreign.moved_back": "A batch is back, but for rows at the target; not so in the ledger.",
    # --- migrations out of delay levels
    "draining.begun": "The ledger has a level as being drained; nothing of it was taken.",
    "draining.delivered": "A chunk of a level is at the target; it is not acknowledged.",
    "draining.acked": "A chunk is at the target and out of its level; it is not counted.",
    "draining.counted": "A chunk is moved and counted; the next is not received.",
    "draining.drained": "A level is drained, and the ledger says so; the next is not begun.",
    "draining.shut": "All levels are drained and the run shut at the target; it runs, says the "
    "ledger.",
    "draining.completed": "The run is complete and its report saved; the caller does not know.",
    "draining.aborting": "The run is being aborted, says the ledger; the target still takes it.",
    "draining.shut_for_good": "The target takes nothing more of the run; the levels are unswept.",
    "draining.swept": "A level is free of the target's messages; the ledger does not say so.",
    "draining.returned": "A level is given up in the ledger; others are not.",
    "draining.aborted": "The run is aborted and its report saved; the caller does not know.",
    # --- migrations: ledger, source and target in SQL
    "ledger.run_written": "A run is written; its plan is not.",
    "ledger.batches_written": "Run and a part of its plan, or all, are written; no commit yet.",
    "leaving.hidden": "A batch is hidden; the ledger does not say so, nor is it committed.",
    "leaving.rows_removed": "A batch's rows are removed; their keys say they are pending, but for "
    "PostgreSQL, where one statement does both and tells of it.",
    "leaving.keys_closed": "A batch's rows are removed and its keys closed; no history.",
    "leaving.history_written": "A batch is removed, closed and told of; not in the ledger.",
    "leaving.some_removed": "A batch's rows at the target are removed here; their keys are open.",
    "leaving.restored": "A batch is put back; the ledger does not say so, nor is it committed.",
    "arriving.fence_stands": "The fence of a run is there for sure, and not shut yet.",
    "arriving.keys_inserted": "The new keys of a batch are inserted; no others, and no rows.",
    "arriving.keys_revived": "All keys of a batch are there; its rows are not.",
    "arriving.rows_inserted": "Keys and rows of a batch are there; no history, and no commit yet.",
    "arriving.history_written": "A batch is there with its history; the commit is to come.",
    # --- installation
    "install.queue_tables": "The transport is installed; neither queues nor store are.",
    "install.store_tables": "Transport and store are installed; the queues are not there.",
    "install.queue_declared": "A queue is declared at the broker; the next queue is not.",
    "install.feature": "The tables of a feature are installed; the next feature's are not.",
    "install.error_queue": "The error queue is there; the endpoint's other queues are not.",
    "install.marker_kept": "The store has a marker; the broker does not bear it.",
    "install.broker_marked": "The broker bears the store's marker; the store does not know it.",
    "install.queues": "The queues are there; features are not installed, nor perhaps the store.",
    "topology.exchange_declared": "An exchange of the delay levels is declared; those after it are "
    "not.",
    "topology.queue_declared": "A queue of the delay levels is declared; the next queue is not.",
    "topology.bound": "One part of the delay levels is bound to the next; more may be unbound.",
    "topology.queue_bound": "A queue is bound to the delivery exchange; nothing is sent to it.",
    "upgrade.schema_created": "A schema is created; it has no tables.",
    "upgrade.table_created": "A table and its indexes are created; the next table is not.",
    "upgrade.index_created": "A missing index is created; the next index is not.",
    "upgrade.revisions_run": "All revisions have run; where DDL is transactional the commit is to "
    "come.",
}
"""Every crash point: the side effect that has happened, and the next side effect, which has not."""


_armed: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Mark crash point *name*, a key of ``POINTS``. If the process is not armed, do nothing."""
    if _armed is not None:
        _armed(name)


def arm(setting: str) -> None:
    """Arm this process to kill itself with SIGKILL at *setting*, ``name:nth``.

    The process dies when it reaches the point *name* for the *nth* time; without ``:nth``, for the
    first time. Raises ConfigurationError for an unknown name or number.
    """
    global _armed
    _armed = _dying_at(setting)


def _dying_at(setting: str) -> Callable[[str], None]:
    doomed, _, number = setting.partition(":")
    if doomed not in POINTS:
        near = get_close_matches(doomed, POINTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(POINTS)}"
        raise ConfigurationError(f"there is no crash point {doomed!r:.80}; {hint}")
    if number and not (number.isascii() and number.isdigit() and int(number)):
        raise ConfigurationError(
            f"a crash point is name:nth with nth from 1, got {setting!r:.80}; nth says at which "
            "hit to die"
        )
    nth = int(number or 1)
    hits = itertools.count(1)  # atomic: two threads never get the same number

    def come_by(name: str) -> None:
        if name not in POINTS:
            raise ValueError(f"crash point {name!r} is not registered")
        if name == doomed and next(hits) == nth:
            os.write(2, f"dies at crash point {setting}\n".encode())  # unbuffered: needs no flush
            os.kill(os.getpid(), signal.SIGKILL)

    return come_by
