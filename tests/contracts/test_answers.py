from __future__ import annotations

import socket
import threading

import pytest

from timeoutmgr.contracts import answers as module
from timeoutmgr.contracts.answers import LONGEST, SHORTEST, Answers


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "time", made)
    return made


def test_a_server_that_is_not_asked_is_not_silent(time: Time) -> None:
    answers = Answers()
    time.at += 100

    assert answers.silence() == 0


def test_silence_counts_from_the_oldest_call_that_waits(time: Time) -> None:
    answers = Answers()
    time.at += 50
    with answers.waiting(None):
        time.at += 3
        with answers.waiting(None):
            time.at += 4
            silence = answers.silence()

    assert silence == 7
    assert answers.silence() == 0


def test_a_sign_on_any_connection_ends_the_silence(time: Time) -> None:
    answers = Answers()
    with answers.waiting(None):
        time.at += 10
        answers.sign()
        time.at += 1

        assert answers.silence() == 1


def test_a_sign_does_not_shorten_the_wait_of_the_oldest_call(time: Time) -> None:
    answers = Answers()
    waits = [answers.oldest()]
    with answers.waiting(None):
        time.at += 10
        with answers.waiting(None):
            answers.sign()
            time.at += 1
            waits.append(answers.oldest())
    waits.append(answers.oldest())

    assert waits == [0, 11, 0]


def test_the_shortest_bound_counts_between_the_least_and_the_most() -> None:
    answers = Answers()
    bounds = [answers.bound]
    for user, seconds in (("a", 30.0), ("b", 0.1), ("c", 600.0)):
        answers.within(user, seconds)
        bounds.append(answers.bound)
    for user in "bac":
        answers.any_time(user)
        bounds.append(answers.bound)

    assert bounds == [LONGEST, 30.0, SHORTEST, SHORTEST, 30.0, LONGEST, LONGEST]


def test_a_call_that_is_given_up_sees_the_end_of_the_stream() -> None:
    answers = Answers()
    mine, theirs = socket.socketpair()
    waits = threading.Event()
    read: list[bytes] = []

    def call() -> None:
        with answers.waiting(mine.fileno()):
            waits.set()
            read.append(mine.recv(1))

    thread = threading.Thread(target=call)
    with mine, theirs:
        thread.start()
        waits.wait()
        answers.give_up()
        thread.join()

    assert read == [b""]
    assert answers.is_given_up
    answers.resume()
    assert not answers.is_given_up
