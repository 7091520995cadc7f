"""Dead-letter queues: what could not be delivered, why, and on which node."""

from timeoutmgr.deadletter.classes import AcknowledgeLevel, JournalLevel, MessageClass
from timeoutmgr.deadletter.delivery import Delivery
from timeoutmgr.deadletter.failures import Died
from timeoutmgr.deadletter.feature import DeadLetterQueues
from timeoutmgr.deadletter.letters import Box, Letter
from timeoutmgr.deadletter.levels import Takes
from timeoutmgr.deadletter.parsing import parse_format_name, parse_path_name
from timeoutmgr.deadletter.queues import LetterFilter, LetterQueue
from timeoutmgr.deadletter.store import DeadLetterStore

__all__ = [
    "AcknowledgeLevel",
    "Box",
    "DeadLetterQueues",
    "DeadLetterStore",
    "Delivery",
    "Died",
    "JournalLevel",
    "Letter",
    "LetterFilter",
    "LetterQueue",
    "MessageClass",
    "Takes",
    "parse_format_name",
    "parse_path_name",
]
