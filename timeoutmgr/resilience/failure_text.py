"""Text of an error for the log: class and message on one line, or with the traceback."""

import traceback
from typing import Final

from timeoutmgr.redaction import on_one_line

MOST_SENTENCE: Final = 512
"""Characters of an error's message on a log line."""
MOST_LINES: Final = 40
"""Lines of a traceback in the log: its end, where the error is."""
MOST_OF_A_LINE: Final = 240
"""Characters of each of these lines."""
_EDGE: Final = "  | "


def class_and_message(error: BaseException) -> str:
    """Return the class of *error* and its message on one line: ``KeyError: 'customer'``."""
    name, message = type(error).__qualname__, on_one_line(error)[:MOST_SENTENCE]
    return f"{name}: {message}" if message else name


def with_traceback(error: BaseException) -> str:
    """Return class, message and traceback of *error*, its causes included.

    Each line of the traceback begins with an edge: a sender's text in the message of an error
    must not look like a line of the log.
    """
    told = "".join(traceback.format_exception(error)).splitlines()[-MOST_LINES:]
    lines = [_EDGE + on_one_line(line)[:MOST_OF_A_LINE] for line in told]
    return "\n".join([class_and_message(error), *lines])
