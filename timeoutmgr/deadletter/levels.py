"""Which copies a message gets, and which messages a queue takes: the endpoint's rules. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts.message_classes import JournalLevel, MessageClass


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalingRules:
    """What an endpoint asks for on what it sends.

    *dead_letter* is for all but those with a time to be received, for which
    *dead_letter_when_expiring* is. *journal* adds a copy of what was delivered.
    *all_transactional* is MSMQ 1.0's rule: every transactional message has a dead letter,
    whatever it says itself.
    """

    dead_letter: bool = True
    dead_letter_when_expiring: bool = False
    journal: bool = False
    all_transactional: bool = False

    def level(
        self, own: JournalLevel | None, *, expires: bool, transactional: bool
    ) -> JournalLevel:
        """Return the level of a message that this endpoint sends; its *own* wins.

        *expires* says that it has a time to be received.
        """
        level = own
        if level is None:
            dead_letter = self.dead_letter_when_expiring if expires else self.dead_letter
            level = JournalLevel.DEADLETTER if dead_letter else JournalLevel.NONE
            if self.journal:
                level |= JournalLevel.JOURNAL
        if transactional and self.all_transactional:
            level |= JournalLevel.DEADLETTER
        return level


class AcceptedMessages(StrEnum):
    """Which messages an endpoint's queue is for; in MSMQ that is settled when it is created."""

    BOTH = "both"
    TRANSACTIONAL = "transactional"
    NONTRANSACTIONAL = "nontransactional"

    def refuses(self, *, transactional: bool) -> MessageClass | None:
        """Return the class of which a message dies here, None where it is taken."""
        if self is AcceptedMessages.TRANSACTIONAL and not transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_MSG
        if self is AcceptedMessages.NONTRANSACTIONAL and transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_Q
        return None
