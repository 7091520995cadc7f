"""Dead-letter queues: undeliverable messages, with the reason and the node."""

from timeoutmgr.contracts.dead_letters import (
    AcknowledgeLevel,
    DeliveryOptions,
    JournalLevel,
    MessageClass,
)
from timeoutmgr.deadletter.feature import DeadLetterQueues
from timeoutmgr.deadletter.name_parser import parse_format_name, parse_path_name
from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyQueue
from timeoutmgr.deadletter.service import AcceptedMessages, Rejected
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import NodeQueue, StoredCopy

__all__ = [
    "AcceptedMessages",
    "AcknowledgeLevel",
    "DeadLetterQueues",
    "DeadLetterStore",
    "DeliveryOptions",
    "JournalLevel",
    "MessageClass",
    "NodeQueue",
    "Rejected",
    "StoredCopy",
    "StoredCopyFilter",
    "StoredCopyQueue",
    "parse_format_name",
    "parse_path_name",
]
