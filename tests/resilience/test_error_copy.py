from __future__ import annotations

import platform
import re

import pytest

from tests.support.clock import START
from tests.support.makers import a_message
from tests.support.unprintable import UNPRINTABLE, without_traceback
from timeoutmgr.errors import HandlerFailed
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.resilience.error_copy import (
    MOST_LINES,
    class_and_message,
    error_copy,
    host_id,
    minimal_error_copy,
    with_last_failure,
    with_traceback,
    without_failure,
)


def failed(error: BaseException, message: Message | None = None) -> Message:
    return error_copy(
        message or a_message(), error, queue="sales.Timeouts", endpoint="sales", at=START
    )


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.behaviour(65)
def test_a_copy_says_where_when_and_why() -> None:
    copied = failed(raised(ValueError("bad due time"), KeyError("due"))).headers

    assert copied["NServiceBus.FailedQ"] == "sales.Timeouts"
    assert copied["NServiceBus.TimeOfFailure"] == to_wire(START)
    assert copied["NServiceBus.ProcessingEndpoint"] == "sales"
    assert copied["NServiceBus.ProcessingMachine"] == platform.node()
    assert copied["NServiceBus.ExceptionInfo.ExceptionType"] == "builtins.ValueError"
    assert copied["NServiceBus.ExceptionInfo.InnerExceptionType"] == "builtins.KeyError"
    assert copied["NServiceBus.ExceptionInfo.Message"] == "bad due time"
    assert copied["$.diagnostics.hostid"] == host_id()
    assert copied["$.diagnostics.hostdisplayname"] == platform.node()


@pytest.mark.behaviour(65)
def test_a_copy_carries_the_stack_trace_down_to_the_failing_function() -> None:
    assert "in raised" in failed(raised(ValueError("x"))).headers[headers.EXCEPTION_STACK]


@pytest.mark.behaviour(65)
@pytest.mark.parametrize(("length", "kept"), [(16_384, 16_384), (16_385, 16_384)])
def test_the_text_of_the_exception_is_kept_up_to_16384_characters(length: int, kept: int) -> None:
    assert len(failed(ValueError("x" * length)).headers[headers.EXCEPTION_MESSAGE]) == kept


def test_the_end_of_a_long_stack_trace_is_kept() -> None:
    stack = failed(raised(ValueError("y" * 20_000 + "the end"))).headers[headers.EXCEPTION_STACK]

    assert stack.rstrip().endswith("the end")
    assert len(stack) <= 8192


@pytest.mark.behaviour(32)
def test_a_copy_is_the_whole_message() -> None:
    message = Message(
        id="m1",
        headers={"a": "1"},
        body=bytes(range(256)),
        content_type="text/x",
        content_encoding="latin-1",
    )

    copied = failed(ValueError("x"), message)

    assert (copied.id, copied.body) == (message.id, message.body)
    assert (copied.content_type, copied.content_encoding) == ("text/x", "latin-1")
    assert copied.headers["a"] == "1"


@pytest.mark.behaviour(65)
def test_a_retry_removes_the_count_of_delayed_retries() -> None:
    assert headers.RETRIES not in failed(ValueError("x"), a_message(retries="3")).headers


def test_a_second_failure_is_not_mixed_with_the_first() -> None:
    first = failed(raised(ValueError("first"), KeyError("cause")))

    second = failed(RuntimeError("second"), first)

    assert headers.INNER_EXCEPTION_TYPE not in second.headers


@pytest.mark.parametrize("text", ["lone \ud800 surrogate", "\udcff"])
def test_every_header_of_a_copy_can_be_encoded(text: str) -> None:
    for name, value in failed(raised(ValueError(text))).headers.items():
        assert (name + value).encode()


@pytest.mark.parametrize("text", ["lone \ud800 surrogate", "\udcff"])
def test_every_header_of_a_minimal_copy_can_be_encoded(text: str) -> None:
    copied = minimal_error_copy(a_message(), queue="sales", reason=text)

    for name, value in copied.headers.items():
        assert (name + value).encode()


@pytest.mark.behaviour(65)
def test_a_minimal_copy_says_just_where_and_why() -> None:
    before = a_message(saga_id="s1")
    whole = failed(ValueError("x"), before)

    copied = minimal_error_copy(whole, queue="sales", reason="r" * 5000)

    assert set(copied.headers) - set(before.headers) == {
        headers.FAILED_QUEUE,
        headers.EXCEPTION_MESSAGE,
    }
    assert copied.headers[headers.EXCEPTION_MESSAGE] == "r" * 512


def test_a_minimal_copy_is_the_whole_body() -> None:
    copied = minimal_error_copy(a_message("m1", bytes(1000)), queue="sales", reason="x")

    assert copied.body == bytes(1000)


@pytest.mark.behaviour(32)
def test_a_retry_removes_the_headers_that_the_failure_added() -> None:
    message = a_message(saga_id="s1")

    assert without_failure(failed(raised(ValueError("x"), KeyError("y")), message)) == message


@pytest.mark.parametrize("kind", UNPRINTABLE)
def test_an_error_without_a_text_is_copied_and_logged_with_a_substitute(
    kind: type[Exception],
) -> None:
    error, text = raised(kind("x"), kind("y")), UNPRINTABLE[kind]

    assert failed(error).headers[headers.EXCEPTION_MESSAGE] == text
    assert with_last_failure(a_message(), error).headers[headers.EXCEPTION_MESSAGE] == text
    assert class_and_message(error) == f"{kind.__qualname__}: {text}"
    assert with_traceback(error).startswith(f"{kind.__qualname__}: {text}\n")
    assert str(HandlerFailed(error)) == f"the handler failed with {kind.__name__}: {text}"


def test_an_error_whose_traceback_cannot_be_written_is_copied_and_logged_without_it() -> None:
    error = raised(without_traceback())
    substitute = "SyntaxError: its traceback raised AttributeError"

    assert failed(error).headers[headers.EXCEPTION_STACK].rstrip() == substitute
    assert with_traceback(error).endswith(substitute)


def deep(calls: int) -> None:
    if not calls:
        raise ValueError("deep")
    # Every other call from another line: equal lines in a row are counted, not repeated.
    if calls % 2:
        deep(calls - 1)
    else:
        deep(calls - 1)


def test_a_traceback_that_is_cut_says_so() -> None:
    with pytest.raises(ValueError, match="deep") as raised_here:
        deep(60)

    lines = with_traceback(raised_here.value).splitlines()
    assert len(lines) == 1 + MOST_LINES
    assert re.fullmatch(r"  \| \[\d+ lines before\]", lines[1])
    assert lines[-1] == "  | ValueError: deep"


class Untrue(Exception):
    """An error that is false, of a class that has no module."""

    def __bool__(self) -> bool:
        raise RuntimeError("it is neither")


Untrue.__module__ = None  # type: ignore[assignment]  # as a class that was made by C code


def test_an_odd_class_of_error_and_cause_is_copied() -> None:
    copied = failed(raised(Untrue("x"), Untrue("y"))).headers

    assert copied[headers.EXCEPTION_SOURCE] == "None"
    assert copied[headers.INNER_EXCEPTION_TYPE] == "None.Untrue"
