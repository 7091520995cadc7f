from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.support.forks import Forks
from timeoutmgr import CriticalAction, CriticalErrorContext
from timeoutmgr.resilience.critical import CriticalErrorHook, CriticalErrors

SENTENCE = "Repeated failures when fetching timeouts from storage, endpoint will be terminated."
CAUSE = RuntimeError("storage is away")
SOON = 10.0
"""Seconds that a thread may take on a machine that is busy; nothing waits this long."""


def nothing() -> None:
    """Stop nothing."""


def critical_errors(
    *hooks: CriticalErrorHook, action: CriticalAction = CriticalAction.STOP
) -> CriticalErrors:
    """Return critical errors with hooks, of an endpoint that runs."""
    critical = CriticalErrors(hooks, action)
    critical.started(nothing)
    return critical


@pytest.mark.behaviour(78)
def test_a_hook_gets_error_exception_and_stop() -> None:
    seen: list[CriticalErrorContext] = []
    critical = critical_errors(seen.append)

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert seen == [CriticalErrorContext(SENTENCE, CAUSE, nothing)]


def test_hooks_run_in_order_of_registration() -> None:
    ran: list[int] = []
    critical = critical_errors(
        *(lambda _, number=number: ran.append(number) for number in range(5))
    )

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert ran == [0, 1, 2, 3, 4]


def test_a_child_of_a_hook_runs_no_other_hook() -> None:
    forks = Forks()
    critical = critical_errors(lambda _: forks(), lambda _: forks.refuse_child())

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert forks.codes() == [0]


@pytest.mark.behaviour(82)
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_hook_that_raises_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def explode(_: CriticalErrorContext) -> None:
        raise kind("the first hook")

    ran = threading.Event()
    critical = critical_errors(explode, lambda _: ran.set())

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert ran.is_set()
    assert "the first hook" in caplog.text


@pytest.mark.behaviour(79)
def test_an_error_before_the_start_waits_for_it() -> None:
    seen: list[str] = []
    critical = CriticalErrors((lambda context: seen.append(context.error),))

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert seen == []


@pytest.mark.behaviour(79)
def test_each_error_before_the_start_reaches_the_hooks_once_after_it() -> None:
    seen: list[str] = []
    critical = CriticalErrors((lambda context: seen.append(context.error),))
    for error in ("one", "two", "three"):
        critical.raise_error(error, CAUSE)

    critical.started(nothing)
    critical.started(nothing)
    critical.join(SOON)

    assert sorted(seen) == ["one", "three", "two"]


@pytest.mark.behaviour(79)
def test_an_error_after_the_stop_waits_for_the_next_start() -> None:
    seen: list[str] = []
    critical = critical_errors(lambda context: seen.append(context.error))
    critical.stopped()

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)
    assert seen == []

    critical.started(nothing)
    critical.join(SOON)
    assert seen == [SENTENCE]


@pytest.mark.behaviour(80)
def test_hooks_run_off_the_thread_that_raises() -> None:
    threads: list[int] = []
    critical = critical_errors(lambda _: threads.append(threading.get_ident()))

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert threads != [threading.get_ident()]


@pytest.mark.behaviour(80)
def test_raising_returns_while_a_hook_still_runs() -> None:
    release, ended = threading.Event(), threading.Event()

    def wait(_: CriticalErrorContext) -> None:
        release.wait(SOON)
        ended.set()

    critical = critical_errors(wait)

    critical.raise_error(SENTENCE, CAUSE)

    assert not ended.is_set()
    release.set()
    critical.join(SOON)
    assert ended.is_set()


@pytest.mark.behaviour(80)
def test_a_hook_that_stops_its_endpoint_does_not_wait_for_itself() -> None:
    stopped = threading.Event()
    critical = CriticalErrors((lambda context: context.stop(),))

    def stop() -> None:
        critical.stopped()
        critical.join(SOON)
        stopped.set()

    critical.started(stop)
    critical.raise_error(SENTENCE, CAUSE)

    assert stopped.wait(SOON / 2)


@pytest.mark.behaviour(81)
def test_the_default_action_stops_so_that_the_sentence_is_true() -> None:
    stopped = threading.Event()
    critical = CriticalErrors()
    critical.started(stopped.set)

    critical.raise_error(SENTENCE, CAUSE)

    assert stopped.wait(SOON)


@pytest.mark.behaviour(81)
def test_the_action_log_says_that_the_endpoint_is_not_terminated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped = threading.Event()
    critical = CriticalErrors(action=CriticalAction.LOG)
    critical.started(stopped.set)

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert not stopped.is_set()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert lines[0].startswith(SENTENCE)
    assert "NOT terminated" in lines[1]


@pytest.mark.behaviour(81)
def test_a_hook_takes_the_place_of_the_default_action() -> None:
    stopped = threading.Event()
    critical = CriticalErrors((lambda _: None,))
    critical.started(stopped.set)

    critical.raise_error(SENTENCE, CAUSE)
    critical.join(SOON)

    assert not stopped.is_set()


def test_the_first_critical_error_is_kept_as_the_reason_of_the_end() -> None:
    critical = critical_errors(lambda _: None)

    critical.raise_error("first", CAUSE)
    critical.raise_error("second", CAUSE)
    critical.join(SOON)

    assert critical.raised == ("first", CAUSE)


def test_an_error_needs_a_sentence() -> None:
    with pytest.raises(ValueError, match="sentence"):
        critical_errors().raise_error("", CAUSE)
