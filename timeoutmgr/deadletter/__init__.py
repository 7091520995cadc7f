"""Dead-letter queues: what could not be delivered, why, and on which node."""

from timeoutmgr.contracts.delivery_options import Delivery
from timeoutmgr.contracts.message_classes import AcknowledgeLevel, JournalLevel, MessageClass
from timeoutmgr.deadletter.failures import Rejected
from timeoutmgr.deadletter.feature import DeadLetterQueues
from timeoutmgr.deadletter.levels import Takes
from timeoutmgr.deadletter.name_parser import parse_format_name, parse_path_name
from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyQueue
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import Box, StoredCopy

__all__ = [
    "AcknowledgeLevel",
    "Box",
    "DeadLetterQueues",
    "DeadLetterStore",
    "Delivery",
    "JournalLevel",
    "MessageClass",
    "Rejected",
    "StoredCopy",
    "StoredCopyFilter",
    "StoredCopyQueue",
    "Takes",
    "parse_format_name",
    "parse_path_name",
]
