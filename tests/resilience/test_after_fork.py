"""Properties of one process while it forks."""

from __future__ import annotations

import os
import threading

from tests.support.forks import ended_in_a_child
from timeoutmgr.resilience.after_fork import cached_property


class Slow:
    """Computes a property once *go* is set, and at once in a child."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.begun, self.go = threading.Event(), threading.Event()
        self.computed = 0

    @cached_property
    def answer(self) -> int:
        self.begun.set()
        if os.getpid() == self.process:
            self.go.wait()
        self.computed += 1
        return 42


def test_a_property_is_computed_once() -> None:
    slow = Slow()
    slow.go.set()

    assert (slow.answer, slow.answer, slow.computed) == (42, 42, 1)


def test_a_child_computes_a_property_that_a_thread_of_its_parent_computes_now() -> None:
    slow, other = Slow(), Slow()
    thread = threading.Thread(target=lambda: slow.answer)
    thread.start()
    slow.begun.wait()

    try:
        assert ended_in_a_child(lambda: int(other.answer != 42)) == 0
    finally:
        slow.go.set()
        thread.join()
