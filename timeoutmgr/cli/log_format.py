"""Log lines as JSON documents, one per line, with the ids of the message as fields."""

import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.contracts.callables import is_coroutine_function
from timeoutmgr.errors import text_of
from timeoutmgr.message import headers
from timeoutmgr.message.redaction import cut_line, masked
from timeoutmgr.resilience.error_copy import traceback_of

if TYPE_CHECKING:
    from timeoutmgr.endpoint.configuration import EndpointConfiguration
    from timeoutmgr.endpoint.handlers import HandlerContext

_OF_EVERY_RECORD: Final = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName")
)
_TRACE: Final = "traceparent"
_HANDLED: ContextVar[Mapping[str, str] | None] = ContextVar("timeoutmgr_handled", default=None)
"""The ids of the message that this thread or task handles."""


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, text and fields; masks the secrets of URLs in all of them."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        given = {
            name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD
        }
        document = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "text": _text(record),
            **self._process,
            **(_HANDLED.get() or {}),
            **given,
        }
        if record.exc_info:
            document["exception"] = traceback_of(record.exc_info[1]).rstrip("\n")
        if record.stack_info:
            document["stack"] = record.stack_info
        return json.dumps({name: _shown(value) for name, value in document.items()})


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # logging would print the arguments, including secrets
        said = f"{text_of(record.msg)} (wrong arguments {text_of(record.args)}: "
        return f"{said}{type(error).__name__}: {text_of(error)})"


def _shown(value: object) -> object:
    if value is None or (isinstance(value, bool | int | float) and value - value == 0):
        return value  # JSON has no infinity and no NaN, of which the difference is NaN
    # Masked first: half a URL would not be recognised.
    return "\n".join(cut_line(line) for line in masked(text_of(value)).split("\n"))


def note_handled(config: "EndpointConfiguration") -> None:
    """Add the message's ids to log lines of *config*'s handlers.

    Handlers of lists have no single message, and the two kinds of handlers no common middleware.
    """
    settings = config.settings()
    handlers = [each for found in settings.handlers.values() for each in found]
    awaited = [is_coroutine_function(each) for each in handlers]
    if settings.handled_in_lists or not handlers or (any(awaited) and not all(awaited)):
        return
    config.add_middleware(_awaited_with_ids if all(awaited) else _with_ids)


def _with_ids(context: "HandlerContext", call_next: Callable[[], None]) -> None:
    token = _HANDLED.set(_ids(context))
    try:
        call_next()
    finally:
        _HANDLED.reset(token)


async def _awaited_with_ids(
    context: "HandlerContext", call_next: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    token = _HANDLED.set(_ids(context))
    try:
        await call_next()
    finally:
        _HANDLED.reset(token)


def _ids(context: "HandlerContext") -> dict[str, str]:
    given = context.headers
    found = {
        "message_id": context.message_id,
        "timeout_id": given.get(headers.RELATED_TO_TIMEOUT),
        "saga_id": context.saga_id,
        "trace_id": _trace_id(given.get(_TRACE)),
    }
    return {name: value for name, value in found.items() if value}


def _trace_id(traceparent: str | None) -> str | None:
    """Return the trace id, the second part of a W3C Trace Context header."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
