"""A signal handler may send while its thread sends: no lock waits for its own thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from timeoutmgr.contracts import answers
from timeoutmgr.contracts.answers import Answers
from timeoutmgr.sender import sender
from timeoutmgr.sender.sender import SessionPool

GUARD = 60
"""Seconds after which a thread that waits for itself fails the test."""
INTERRUPTED = {answers.__file__, sender.__file__}


def interrupt_each_line(call: Callable[[], None], handler: Callable[[], None]) -> None:
    """Run *call*, and *handler* before each of its lines, as Python runs a signal handler."""
    errors: list[BaseException] = []

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in INTERRUPTED:
            return None
        if event == "line":
            handler()
        return trace

    def traced() -> None:
        sys.settrace(trace)
        try:
            call()
        except Exception as error:
            errors.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=traced, daemon=True)
    thread.start()
    thread.join(GUARD)
    assert (thread.is_alive(), errors) == (False, [])


class Broker:
    """A transport whose sessions do nothing."""

    def session(self) -> Broker:
        return self

    def close(self) -> None:
        """Do nothing."""


def use(pool: SessionPool) -> None:
    with pool.session():
        pass


def use_and_fail(pool: SessionPool) -> None:
    with pytest.raises(ValueError, match="seven"), pool.session():
        raise ValueError("seven")


@pytest.mark.parametrize("handler", [use, use_and_fail])
def test_a_signal_handler_uses_a_session_beside_its_thread(
    handler: Callable[[SessionPool], None],
) -> None:
    broker: Any = Broker()
    pool = SessionPool(broker)
    use(pool)

    interrupt_each_line(lambda: use(pool), lambda: handler(pool))


def test_a_signal_handler_waits_for_a_server_beside_its_thread() -> None:
    waiting = Answers()

    def ask() -> None:
        with waiting.waiting(None):
            assert waiting.silence() <= waiting.oldest()
            assert waiting.bound > 0

    interrupt_each_line(ask, ask)

    assert waiting.oldest() == 0
