"""What a dispatcher tells the dead-letter queues: what arrived, and what is dead.

Neither may raise where messages are sent and not yet closed: they would be sent again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from timeoutmgr.contracts import DeadLetters, SendResult
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MessageRejected, NodeFull, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.work import IsolatedSends, send_each

from .undeliverable import Undeliverable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetterResult:
    """What became of undeliverable timeouts."""

    dead: list[Undeliverable] = field(default_factory=list)
    """Placed, or known to be dead by the source that keeps them."""
    later: list[Undeliverable] = field(default_factory=list)
    """The store of the dead letters is away or full: to be tried again."""
    others: list[Undeliverable] = field(default_factory=list)
    """They leave no dead letter: for the error queue."""


def note_confirmed(
    dead_letters: DeadLetters, sent: Sequence[Outgoing], work: IsolatedSends
) -> None:
    """Note that *sent* has reached its queues, and tell who asked for it."""
    try:
        told = dead_letters.after_sending(sent, work.scope)
        reach("dispatch.arrivals_noted")
        work.notify(told, isolated=True)
    except (StorageUnavailable, TransportUnavailable) as error:
        if work.scope is not None:
            raise  # all of it is undone together
        logger.warning(
            "dispatcher could not record the arrival of %d messages: %s",
            len(sent),
            on_one_line(error),
        )


def dead_letter_each(
    dead_letters: DeadLetters, failed: Sequence[Undeliverable], work: IsolatedSends
) -> DeadLetterResult:
    """Have each placed that leaves a dead letter."""
    found = DeadLetterResult()
    for one in failed:
        try:
            is_dead = _bury(dead_letters, one, work)
        except MessageRejected as error:
            logger.warning(
                "dispatcher keeps no dead letter of timeout %.80r: %s",
                one.timeout.id,
                on_one_line(error),
            )
            found.others.append(one)
        except (StorageUnavailable, TransportUnavailable) as error:
            # A full node has changed nothing, and others must not wait for somebody to empty it.
            if work.scope is not None and not isinstance(error, NodeFull):
                raise
            logger.error(
                "timeout %.80r stays stored, the node has no room for its dead letter: %s",
                one.timeout.id,
                on_one_line(error),
            )
            found.later.append(one)
        else:
            (found.dead if is_dead else found.others).append(one)
            reach("dispatch.buried")
    return found


def _bury(dead_letters: DeadLetters, one: Undeliverable, work: IsolatedSends) -> bool:
    burial = dead_letters.dead_letter(
        one.message,
        one.error,
        queue=one.timeout.destination,
        attempts=one.timeout.attempts + 1,
        transaction=work.scope,
    )
    if burial is None:
        return False
    reach("dispatch.dead_letter_placed")
    if set(send_each(burial.needed, work)) - {SendResult.CONFIRMED}:
        return False
    reach("dispatch.source_told")
    work.notify(burial.notifications, isolated=True)
    if burial.report:
        logger.error("%s", burial.report)
    return True
