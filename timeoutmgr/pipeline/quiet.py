"""Standard error held back while the JVM starts: it always says the same four lines."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back what this process and its children write to standard error; tell it on failure.

    What is started inside goes on writing there. Of the JVM and its workers that is what they
    also tell by exceptions; ``SessionOptions.verbose`` shows it.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            _give_back(kept)
            held.seek(0)
            os.write(2, held.read())
            raise
        _give_back(kept)


def _give_back(kept: int) -> None:
    sys.stderr.flush()
    os.dup2(kept, 2)
    os.close(kept)
