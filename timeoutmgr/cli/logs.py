"""Log lines of a command: to standard error, in UTC, secrets masked."""

import logging
import time

from timeoutmgr.cli.output import masked


class MaskingFormatter(logging.Formatter):
    """Masks the secrets of URLs, also in tracebacks."""

    @staticmethod
    def converter(seconds: float | None = None) -> time.struct_time:
        """Return the time in UTC."""
        return time.gmtime(seconds)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return masked(super().format(record))


def log_to_stderr(level: int, who: str = "") -> None:
    """Have log lines of *level* and above written to standard error; *who* begins the text."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        MaskingFormatter(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {who}%(name)s: %(message)s",
            "%Y-%m-%dT%H:%M:%S",
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("timeoutmgr").setLevel(level)
