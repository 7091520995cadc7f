"""Control messages to ``<endpoint>.TimeoutsDispatcher``: a versioned chunk, or a single id."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import Key
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.instants import EARLIEST, LATEST
from timeoutmgr.message.message import Message

VERSION: Final = "1"
MOST_KEYS: Final = 1000
"""Maximum keys of an order, as in the largest chunk: a longer order would delay due timeouts."""


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """The order to dispatch the keys of the claim *token*."""

    token: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class SingleOrder:
    """The order to dispatch one timeout: NServiceBus' form, without due time and claim."""

    timeout_id: str


def chunk_message(token: str, keys: Sequence[Key], message_id: str) -> Message:
    """Return the control message for a claimed chunk."""
    return Message(
        id=message_id,
        headers={
            headers.MESSAGE_ID: message_id,
            headers.CONTROL_MESSAGE: "True",
            headers.MESSAGE_INTENT: "Send",
            headers.CHUNK_VERSION: VERSION,
        },
        body=json.dumps({"token": token, "keys": keys}).encode(),
    )


def read_control(message: Message) -> ChunkOrder | SingleOrder:
    """Return the order in *message*; raise MessageRejected if it is not a control message."""
    version = message.headers.get(headers.CHUNK_VERSION)
    if version is None:
        timeout_id = message.headers.get(headers.TIMEOUT_ID)
        if not timeout_id:
            raise MessageRejected(
                f"message {message.id!r:.80} is not a control message; expected header "
                f"{headers.TIMEOUT_ID!r} or {headers.CHUNK_VERSION!r}"
            )
        return SingleOrder(_encodable(timeout_id, message))
    if version != VERSION:
        raise MessageRejected(
            f"chunk {message.id!r:.80} is of version {version!r:.40}, this process reads "
            f"{VERSION!r}; upgrade it, or wait for its claim to lapse"
        )
    try:
        content = json.loads(message.body)
        if len(content["keys"]) > MOST_KEYS:
            raise ValueError(f"it has {len(content['keys'])} keys, expected at most {MOST_KEYS}")
        keys = tuple(Key(_whole(due), _text(name)) for due, name in content["keys"])
        return ChunkOrder(_text(content["token"]), keys)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageRejected(f"chunk {message.id!r:.80} cannot be read: {error}") from error


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= LATEST:
        raise TypeError(f"a due time is a whole number in the years 1 to 9999, got {value!r:.40}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"an id is text, got {value!r:.40}")
    value.encode()  # a UnicodeEncodeError, which is a ValueError, for a lone surrogate
    return value


def _encodable(timeout_id: str, message: Message) -> str:
    try:
        return _text(timeout_id)
    except UnicodeEncodeError as error:
        raise MessageRejected(
            f"message {message.id!r:.80} names timeout {timeout_id!r:.80}, which has half a "
            "surrogate pair; no store has such an id"
        ) from error
