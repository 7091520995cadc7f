"""A system without threads: a start says so, and a stop after it has nothing to join."""

from __future__ import annotations

import asyncio
import threading

import pytest

from timeoutmgr.endpoint.event_loop import ProcessLoop
from timeoutmgr.resilience.thread_task import ThreadTask


class Waits(ThreadTask):
    thread_name = "waits"

    def _run(self) -> None:
        self._stop.wait()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def test_a_task_whose_thread_does_not_start_can_be_stopped_and_started(
    no_threads: pytest.MonkeyPatch,
) -> None:
    task = Waits()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        task.start()
    task.stop()
    no_threads.undo()

    task.start()
    task.stop()


def test_an_event_loop_whose_thread_does_not_start_is_closed_and_made_anew(
    no_threads: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asyncio.new_event_loop()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: first)
    loop = ProcessLoop()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        loop.acquire()
    no_threads.undo()

    made = loop.acquire()
    running = made.is_running
    loop.release()

    assert first.is_closed()
    assert not running()
