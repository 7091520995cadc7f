"""Rules of an endpoint: copies of a message, and messages that its queue accepts. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalingRules:
    """Copies that an endpoint requests for its messages.

    *dead_letter_when_expiring* is for messages with a time to be received, *dead_letter* for all
    other messages. *journal* adds a copy of delivered messages. *all_transactional* is MSMQ 1.0's
    rule: every transactional message has a dead letter, even if its level says otherwise.
    """

    dead_letter: bool = True
    dead_letter_when_expiring: bool = False
    journal: bool = False
    all_transactional: bool = False

    def level(
        self, own: JournalLevel | None, *, expires: bool, transactional: bool
    ) -> JournalLevel:
        """Return the level of a message of this endpoint: its *own*, if it has any.

        *expires*: the message has a time to be received.
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
    """Messages that an endpoint's queue accepts; in MSMQ, its creation settles that."""

    BOTH = "both"
    TRANSACTIONAL = "transactional"
    NONTRANSACTIONAL = "nontransactional"

    def refuses(self, *, transactional: bool) -> MessageClass | None:
        """Return the class of the dead letter, or None if the queue accepts the message."""
        if self is AcceptedMessages.TRANSACTIONAL and not transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_MSG
        if self is AcceptedMessages.NONTRANSACTIONAL and transactional:
            return MessageClass.NACK_NOT_TRANSACTIONAL_Q
        return None
