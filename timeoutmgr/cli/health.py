"""The health file: what a process last said of itself, whole at every moment."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from timeoutmgr.cli.output import shown_time
from timeoutmgr.clock import SystemClock
from timeoutmgr.redaction import on_one_line

logger = logging.getLogger(__name__)


class HealthFile:
    """Rewrites a file; a reader sees the old text or the new one, never a half.

    It is removed at the end. A process that hangs or was killed is known by the file's ``time``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{os.getpid()}")
        self._failed = False

    def write(self, document: Mapping[str, object]) -> None:
        """Write *document* with the time; a disk that is full must not stop an endpoint."""
        text = json.dumps({"time": shown_time(SystemClock().now()), **document})
        try:
            self._new.write_text(f"{text}\n")
            os.replace(self._new, self._path)
        except OSError as error:
            if not self._failed:
                logger.error("cannot write the health file %s: %s", self._path, on_one_line(error))
            self._failed = True
        else:
            self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for path in (self._new, self._path):
            path.unlink(missing_ok=True)
