"""Error copies: the whole message for the error queue, with the reason for its failure."""

import hashlib
import json
import platform
import traceback
from collections.abc import Mapping
from functools import cache
from typing import Final

from timeoutmgr.errors import text_of
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, with_headers
from timeoutmgr.message.redaction import on_one_line

MOST_MESSAGE: Final = 16_384
"""Maximum characters of the exception's text."""
MOST_STACK: Final = 8_192
"""Maximum characters of the stack trace; the end is kept, with the place of the error."""
MOST_SENTENCE: Final = 512
"""Maximum characters of an error's message in a log line, and in a pending retry."""
_MOST_HEADERS: Final = 65_536


def error_copy(
    message: Message, error: BaseException, *, queue: str, endpoint: str, at: Micros
) -> Message:
    """Return *message* with the headers of behaviour 65.

    *queue* is the address where it failed; a retry sends the message back there.
    """
    kept = _without(message.headers, headers.FAILURE_HEADERS | {headers.RETRIES})
    cause = error.__context__ if error.__cause__ is None else error.__cause__
    added = {
        headers.FAILED_QUEUE: queue,
        headers.TIME_OF_FAILURE: to_wire(at),
        headers.PROCESSING_MACHINE: platform.node(),
        headers.PROCESSING_ENDPOINT: endpoint,
        headers.EXCEPTION_TYPE: _type_name(error),
        headers.EXCEPTION_MESSAGE: _clean(text_of(error))[:MOST_MESSAGE],
        headers.EXCEPTION_SOURCE: str(type(error).__module__),
        headers.EXCEPTION_STACK: _clean(traceback_of(error))[-MOST_STACK:],
        headers.HOST_ID: host_id(),
        headers.HOST_NAME: platform.node(),
    }
    if cause is not None:
        added[headers.INNER_EXCEPTION_TYPE] = _type_name(cause)
    return with_headers(message, kept | added)


def minimal_error_copy(message: Message, *, queue: str, reason: str) -> Message:
    """Return *message* with only queue and reason, for a broker that refuses the full copy."""
    kept = _without(message.headers, headers.FAILURE_HEADERS)
    why = {headers.FAILED_QUEUE: queue, headers.EXCEPTION_MESSAGE: _clean(reason)[:512]}
    return with_headers(message, kept | why)


def bare_error_copy(message: Message, *, queue: str, reason: str) -> Message:
    """Return a message with the body of *message*, and all its headers as the text of one header.

    This is the last resort, for headers that were received but cannot be sent.
    """
    kept = json.dumps(dict(message.headers), ensure_ascii=True)
    return Message(
        id=hashlib.sha256(message.id.encode("utf-8", "surrogatepass")).hexdigest(),
        headers={
            headers.FAILED_QUEUE: queue,
            headers.EXCEPTION_MESSAGE: _clean(reason)[:512],
            headers.ORIGINAL_ID: json.dumps(message.id)[:512],
            headers.ORIGINAL_HEADERS: kept[:_MOST_HEADERS],
        },
        body=message.body,
        content_type="application/octet-stream",
    )


def with_last_failure(message: Message, error: BaseException) -> Message:
    """Return *message* with the class and shortened text of *error*, to be kept until a retry."""
    why = {
        headers.EXCEPTION_TYPE: _type_name(error),
        headers.EXCEPTION_MESSAGE: _clean(text_of(error))[:MOST_SENTENCE],
    }
    return with_headers(message, {**message.headers, **why})


def without_failure(message: Message) -> Message:
    """Return *message* as it was before it failed, to be retried from the error queue."""
    return with_headers(message, _without(message.headers, headers.FAILURE_HEADERS))


@cache
def host_id() -> str:
    """Return a stable id of this host."""
    return hashlib.md5(platform.node().encode(), usedforsecurity=False).hexdigest()


def _without(given: Mapping[str, str], names: frozenset[str] | set[str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in names}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


def traceback_of(error: BaseException | None) -> str:
    """Return the traceback of *error*; a substitute if the traceback cannot be written.

    Groups that are nested too deeply cannot be written, nor a SyntaxError whose line is not a text.
    """
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:
        return f"{type(error).__name__}: its traceback raised {type(failure).__name__}\n"


def _clean(text: str) -> str:
    # Lone surrogates, as in file names, cannot be encoded: the error copy itself would fail.
    return text.encode("utf-8", "backslashreplace").decode()


MOST_LINES: Final = 40
"""Maximum lines of a traceback in the log; the end is kept, with the place of the error."""
MOST_OF_A_LINE: Final = 240
"""Maximum characters of each of these lines."""
_EDGE: Final = "  | "


def class_and_message(error: BaseException) -> str:
    """Return the class of *error* and its message on one line: ``KeyError: 'customer'``."""
    name, message = type(error).__qualname__, on_one_line(error)[:MOST_SENTENCE]
    return f"{name}: {message}" if message else name


def with_traceback(error: BaseException) -> str:
    """Return class, message and traceback of *error*, its causes included.

    Each line of the traceback begins with a margin, so that a sender's text in an error's message
    does not look like a line of the log.
    """
    whole = traceback_of(error).splitlines()
    trace = whole[-MOST_LINES:]
    if len(whole) > MOST_LINES:
        trace[0] = f"[{len(whole) - MOST_LINES + 1} lines before]"
    lines = [_EDGE + on_one_line(line)[:MOST_OF_A_LINE] for line in trace]
    return "\n".join([class_and_message(error), *lines])
