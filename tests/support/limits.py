"""A process that has no file descriptor, thread or room for a file left for a while."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def no_descriptor(*, but: int = 0) -> Iterator[None]:
    """Have the process open no file meanwhile, *but* this number."""
    (soft, hard), opened = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + but, hard))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(but):
            os.close(opened.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in opened:
            os.close(each)


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Have the process write no file of more than *size* bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_thread() -> Iterator[None]:
    """Have the process start no thread meanwhile: there is memory, but not for a thread's stack."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    stack = threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        threading.stack_size(stack)
