"""What is counted by destination, by reason and by class, and the families made of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.satellites import test_delayed, test_due
from tests.satellites.dispatching import DispatchHarness
from tests.satellites.test_timeouts import Counter
from tests.support.clock import FakeClock
from tests.support.dead_letter_node import DeadLetterNode, an_asking
from tests.support.makers import a_delayed, a_timeout
from timeoutmgr import EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.database.upgrade import current
from timeoutmgr.errors import Unroutable
from timeoutmgr.metrics.exposition import Exposition
from timeoutmgr.metrics.memory import DESTINATIONS, OTHER, QUEUE_CELLS, REASONS, CountMemory, State
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing import TimeoutKit


def labelled(counts: CountMemory, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of its labels, without the endpoint."""
    page = Exposition(counts, "shop").render("")[0].decode()
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "endpoint"): (
            sample.value
        )
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"timeoutmgr_{name}"
    }


def recorder() -> tuple[Recorder, CountMemory]:
    counts = CountMemory.create(1)
    return Recorder(counts, counts.sections[0], Counters()), counts


def fail(_message: Any, _context: Any) -> None:
    raise KeyError("customer")


def test_an_endpoint_counts_by_destination_result_and_reason() -> None:
    config = EndpointConfiguration("shop")
    config.telemetry, counts = recorder()
    config.recoverability = RecoverabilitySettings(immediate=1, delayed=1)
    config.enable_feature(TimeoutManager())
    config.add_handler("Note", lambda _message, _context: None)
    config.add_handler("Broken", fail)
    kit = TimeoutKit(config, raises=False)

    for destination, message_type in (("shop", "Note"), ("shop", "Broken"), ("billing", "Note")):
        kit.send(destination, message_type, 1, delay=1)
    kit.advance(minutes=1)

    assert labelled(counts, "timeouts_stored_total") == {("shop",): 3, ("billing",): 1}
    assert labelled(counts, "timeouts_closed_total") == {
        ("shop", "dispatched"): 3,
        ("billing", "dispatched"): 1,
    }
    assert labelled(counts, "handler_attempts_total") == {
        ("ok",): 1,
        ("retried",): 1,
        ("error_queue",): 1,
        ("dead_letter",): 0,
    }
    assert labelled(counts, "error_queue_messages_total") == {("KeyError",): 1}


def test_a_repeat_is_not_counted_for_its_destination() -> None:
    counter = Counter()
    telemetry, counts = recorder()
    counter.step = replace(counter.step, telemetry=telemetry)

    counter.receive(a_delayed("m1"), a_delayed("m2"))
    counter.receive(a_delayed("m2"), a_delayed("m3"))

    assert labelled(counts, "timeouts_stored_total") == {("billing",): 3}


def test_a_delayed_message_is_counted_for_its_destination() -> None:
    harness = test_delayed.DispatchHarness()
    telemetry, counts = recorder()
    harness.step = replace(harness.step, telemetry=telemetry)

    harness.receive(a_delayed("m1"))

    assert labelled(counts, "delayed_stored_total") == {("billing",): 1}


def test_a_timeout_without_its_queue_is_closed_as_failed_with_the_reason() -> None:
    harness = DispatchHarness()
    telemetry, counts = recorder()
    harness.step = replace(harness.step, telemetry=telemetry)
    harness.put(a_timeout("m1"), a_timeout("m2", destination="nowhere"))

    harness.order_due()

    assert labelled(counts, "timeouts_closed_total") == {
        ("billing", "dispatched"): 1,
        ("nowhere", "failed"): 1,
    }
    assert labelled(counts, "error_queue_messages_total") == {("Unroutable",): 1}


def test_a_delayed_message_without_its_queue_is_closed_as_failed() -> None:
    harness = test_due.DispatchHarness()
    telemetry, counts = recorder()
    harness.step = replace(harness.step, telemetry=telemetry)
    harness.put(a_timeout("m1", destination="nowhere"))

    harness.drain_step()

    assert labelled(counts, "timeouts_closed_total") == {("nowhere", "failed"): 1}


def test_a_delayed_message_that_is_given_up_alone_is_closed_as_failed() -> None:
    harness = test_due.DispatchHarness()
    telemetry, counts = recorder()
    harness.step = replace(harness.step, telemetry=telemetry)
    harness.transport.script("billing", RuntimeError("no name"))
    harness.put(a_timeout("m1"))

    harness.drain_step()

    assert labelled(counts, "timeouts_closed_total") == {("billing", "failed"): 1}
    assert labelled(counts, "error_queue_messages_total") == {("DeliveryFailed",): 1}


def test_a_dead_letter_is_counted_by_its_class(sqlite_url: str) -> None:
    telemetry, counts = recorder()
    with closing(DeadLetterNode(sqlite_url, FakeClock())) as node:
        service = replace(node.service, telemetry=telemetry)
        message = an_asking("m1", "nowhere").message

        service.dead_letter(message, Unroutable("nowhere"), queue="nowhere")

    assert labelled(counts, "dead_letters_total") == {("NACK_BAD_DST_Q",): 1}


def test_reasons_beyond_the_table_are_counted_together() -> None:
    telemetry, counts = recorder()

    for number in range(REASONS + 2):
        telemetry.count_each("error_queue_messages", [f"Error{number}"])

    shown = labelled(counts, "error_queue_messages_total")
    assert len(shown) == REASONS + 1
    assert shown["other",] == 2


def test_a_destination_called_other_keeps_its_counts_beyond_the_table() -> None:
    telemetry, counts = recorder()
    telemetry.late(1_000_000, [(OTHER, 900_000)] * 100)
    telemetry.count_each("closed_failed", [OTHER] * 10)

    for number in range(DESTINATIONS):
        telemetry.late(1_000_000, [(f"queue-{number}", 900_000)])
    telemetry.late(1_000_000, [("late", 1_500_000), ("later", 900_000)])
    telemetry.count_each("closed_failed", ["late", "later"])

    closed = labelled(counts, "timeouts_closed_total")
    assert (closed[OTHER, "dispatched"], closed[OTHER, "failed"]) == (103, 12)
    assert labelled(counts, "lateness_seconds_count")[OTHER,] == 103
    assert labelled(counts, "timeouts_early_total")[OTHER,] == 1


def test_no_series_is_twice_on_a_page_if_a_name_in_the_table_is_other() -> None:
    telemetry, counts = recorder()
    counts.sections[0].set_state(State.TICK, 1.0)
    for number in range(DESTINATIONS):
        telemetry.late(1_000_000, [(f"queue-{number}" if number else OTHER, 900_000)])
    telemetry.late(1_000_000, [("late", 900_000)])

    page = Exposition(counts, "shop").render("")[0].decode()

    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
    assert [one for one in series if series.count(one) > 1] == []


def test_the_gauge_of_a_queue_called_other_is_not_lost_to_queues_beyond_the_table() -> None:
    _, counts = recorder()
    section = counts.sections[0]
    section.set_state(State.TICK, 1.0)
    at = QUEUE_CELLS + counts.queues.number(OTHER)

    section.numbers[at] = 7.0

    assert labelled(counts, "queue_messages") == {(OTHER,): 7}


def test_the_telemetry_of_the_user_counts_by_label_also_what_the_catalogue_lacks() -> None:
    class Theirs(Counters):
        def count_each(self, event: str, values: Iterable[str]) -> None:
            seen.append((event, *values))

    seen: list[tuple[str, ...]] = []
    counts = CountMemory.create(1)
    telemetry = Recorder(counts, counts.sections[0], Theirs())

    telemetry.count_each("timeouts_stored", iter(["billing", "billing"]))
    telemetry.count_each("an event of a plugin", iter(["x"]))

    assert seen == [("timeouts_stored", "billing", "billing"), ("an event of a plugin", "x")]
    assert labelled(counts, "timeouts_stored_total") == {("billing",): 2}


def test_the_page_names_the_revision_that_the_tables_have_once_installed(sqlite_url: str) -> None:
    _, counts = recorder()
    with closing(SqlPersistence(sqlite_url)) as persistence:
        persistence.install()
        installed = current(persistence.database, "timeoutmgr_timeouts_version", None)

    [(_python, revision, _version)] = labelled(counts, "build_info")
    assert revision == installed
