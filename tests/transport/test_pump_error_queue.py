"""A message stays in its queue until the error queue has confirmed its copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from tests.support.unprintable import UNPRINTABLE
from tests.transport.pumping import BROKER_AWAY, SAFE, Mill
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.errors import MessageRejected, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import LONGEST_LINE
from timeoutmgr.resilience.error_copy import MOST_OF_A_LINE, MOST_SENTENCE
from timeoutmgr.transport.work import Work


@pytest.mark.behaviour(91)
@pytest.mark.parametrize(
    "answer", [SendResult.UNKNOWN, SendResult.UNROUTABLE, TransportUnavailable("gone")]
)
@pytest.mark.parametrize("mode", SAFE)
def test_a_message_stays_in_its_queue_until_the_error_queue_confirms_its_copy(
    mode: TransactionMode, answer: SendResult | Exception
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", answer)

    with pytest.raises(TransportUnavailable):
        mill.pump_once()

    assert (mill.held, mill.errors) == (["a"], [])


@pytest.mark.behaviour(65)
def test_a_refused_full_copy_is_replaced_by_a_minimal_copy() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED)

    mill.pump_once()

    [copy] = mill.transport.messages("error")
    assert headers.EXCEPTION_STACK not in copy.headers
    assert copy.headers[headers.FAILED_QUEUE] == "sales"
    assert mill.held == []


@pytest.mark.behaviour(91)
def test_a_message_stays_when_the_minimal_copy_is_refused_too() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", SendResult.REFUSED, SendResult.REFUSED)

    with pytest.raises(TransportUnavailable):
        mill.pump_once()

    assert mill.held == ["a"]


@pytest.mark.parametrize("mode", SAFE)
def test_a_message_whose_copy_failed_is_moved_by_a_later_pass_of_the_pump(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a")
    mill.transport.script("error", BROKER_AWAY)

    mill.pump.run()

    assert (mill.errors, mill.transport.ids("sales")) == (["a"], [])


@pytest.mark.parametrize("mode", [*SAFE, TransactionMode.NONE])
@pytest.mark.parametrize("kind", UNPRINTABLE)
def test_a_message_whose_error_has_no_text_is_moved(
    kind: type[Exception], mode: TransactionMode
) -> None:
    mill = Mill(mode)
    mill.put("a")
    mill.always_fails("a", kind())

    mill.pump_once()

    assert (mill.held, mill.errors) == ([], ["a"])


@pytest.mark.parametrize("mode", [*SAFE, TransactionMode.NONE])
def test_a_rejected_message_is_moved_and_the_rest_is_settled_once(mode: TransactionMode) -> None:
    mill = Mill(mode, batch=3)
    mill.put("a", "b", "c")

    def reject(batch: Sequence[Received], work: Work) -> None:
        work.fail(batch[1], MessageRejected("other content"))

    mill.before_step = reject

    mill.pump_once()

    assert mill.batches == [["a", "b", "c"]]
    assert (mill.held, mill.errors) == ([], ["b"])
    [copy] = mill.transport.messages("error")
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "other content"


@pytest.mark.parametrize("mode", SAFE)
def test_a_rejected_message_stays_until_the_error_queue_confirms_its_copy(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, batch=2)
    mill.put("a", "b")
    mill.before_step = lambda batch, work: work.fail(batch[0], MessageRejected("no"))
    mill.transport.script("error", BROKER_AWAY)

    with pytest.raises(TransportUnavailable):
        mill.pump_once()

    assert (mill.held, mill.errors) == (["a"], [])


def test_a_message_that_is_rejected_when_it_is_tried_again_is_moved() -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [RuntimeError("once"), MessageRejected("not reached")]
    turns = count()

    def reject_at_last(batch: Sequence[Received], work: Work) -> None:
        if next(turns) == 1:
            mill.failures.clear()
            work.fail(batch[0], MessageRejected("other content"))

    mill.before_step = reject_at_last

    mill.pump_once()

    [copy] = mill.transport.messages("error")
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "other content"
    assert mill.held == []


class Onlooker(logging.Handler):
    """Records the settled and the copied messages at each log line."""

    def __init__(self, mill: Mill) -> None:
        super().__init__()
        self.mill = mill
        self.seen: list[tuple[list[str], list[str]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((self.mill.held, self.mill.errors))


@pytest.fixture
def onlooker() -> Iterator[Onlooker]:
    """A handler of the pump's log."""
    made = Onlooker(Mill())
    logger = logging.getLogger("timeoutmgr.transport.pump")
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)


def test_a_message_is_copied_and_acknowledged_before_the_log_hears_of_it(
    onlooker: Onlooker,
) -> None:
    onlooker.mill.put("a")
    onlooker.mill.always_fails("a", MessageRejected("a is no timeout"))

    onlooker.mill.pump_once()

    # Lines at ERROR, and at INFO too if the logger is enabled for it.
    assert onlooker.seen
    assert all(seen == ([], ["a"]) for seen in onlooker.seen)


def test_a_log_line_shows_80_characters_of_an_id_and_512_of_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mill = Mill()
    mill.put("?" * 131_072)
    mill.always_fails("?" * 131_072, MessageRejected("#" * 131_072))

    mill.pump_once()

    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    line, *behind = record.getMessage().splitlines()
    assert (line.count("?"), line.count("#")) == (79, MOST_SENTENCE)
    assert len(line.encode()) <= LONGEST_LINE
    assert max(len(each) for each in behind) <= MOST_OF_A_LINE + 4
