"""Log lines of a command: to standard error, in UTC, secrets masked, each of a bounded length."""

import logging
import time

from timeoutmgr.cli.output import masked
from timeoutmgr.redaction import cut_line


class MaskingFormatter(logging.Formatter):
    """Masks the secrets of URLs and cuts long lines, also in tracebacks."""

    @staticmethod
    def converter(seconds: float | None = None) -> time.struct_time:
        """Return the time in UTC."""
        return time.gmtime(seconds)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        # Masked first: half a URL would not be recognised.
        return "\n".join(cut_line(line) for line in masked(super().format(record)).split("\n"))


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
