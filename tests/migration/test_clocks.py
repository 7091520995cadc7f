"""Every delay that is left is counted by the clock that owns the due time, not by the host's."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import amqp
import pytest

from tests.migration.conftest import Move, pending, some
from tests.migration.levels import queues_of
from tests.migration.place import HOUR, Broker, Place
from tests.persistence.making import SECOND, SetClock
from tests.support.clock import START, FakeClock
from timeoutmgr.cli.migrate.shared import PlacesOpener
from timeoutmgr.cli.shared import Shared
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration import BatchState, Participants, preview
from timeoutmgr.migration import places as named
from timeoutmgr.migration.batch_step import hide
from timeoutmgr.migration.clocks import OriginClock
from timeoutmgr.migration.levels.drain import DrainParticipants
from timeoutmgr.migration.movers import move_next
from timeoutmgr.migration.places import MigrationContext, MigrationRequest
from timeoutmgr.migration.run import give_up, move_all
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.levels import read_routing_key
from timeoutmgr.native.names import CELERY, NameSet
from timeoutmgr.settings.file import configuration_from

AHEAD: Final = 20 * SECOND
FAR_AHEAD: Final = 600 * SECOND
SETTINGS: Final = """
endpoint = "{name}"
transport = "{broker}"
persistence = "{database}"
features = ["timeout-manager"]
"""


class HostClock(SystemClock):
    """The clock of a host that is set ahead."""

    def __init__(self, ahead: Micros) -> None:
        self._ahead = ahead

    def now(self) -> Micros:
        return super().now() + self._ahead


class Stand:
    """A store in PostgreSQL and levels of two names, named by a settings file."""

    def __init__(self, place: Place, file: Path, broker: str, onward: NameSet) -> None:
        self.place = place
        self.file = file
        self.levels = named.LocationSpec(
            url=broker, names="celery", names_prefix=_prefix(place.celerys)
        )
        self.onward = named.LocationSpec(url=broker, names="celery", names_prefix=_prefix(onward))
        self.names_onward = onward

    @contextmanager
    def parts(
        self, asked: MigrationRequest, ahead: Micros
    ) -> Iterator[tuple[MigrationContext, Participants | DrainParticipants]]:
        """Open a migration like the command, on a host whose clock is *ahead*."""
        settings = replace(configuration_from(self.file).settings(), clock=HostClock(ahead))
        site = MigrationContext(settings, asked, self.place.name)
        parts = site.parts()
        try:
            yield site, parts
        finally:
            parts.close()
            site.close()
            settings.transport.close()

    def run(self, asked: MigrationRequest, ahead: Micros) -> None:
        """Move all, as the command does on such a host."""
        with self.parts(asked, ahead) as (site, parts):
            move_all(parts, site.terms(parts))

    def store_now(self) -> Micros:
        """The time by which the store dispatches."""
        return self.place.persistence.migration_source(self.place.name, self.place.clock).now()

    def left(self, channel: amqp.Channel, names: NameSet, amount: int) -> list[Micros]:
        """Return how long the levels keep each message, once they have *amount*."""
        self.place.wait_for_levels(names, amount)
        found = []
        for queue in queues_of(names):
            while (message := channel.basic_get(queue, no_ack=False)) is not None:
                key = read_routing_key(message.delivery_info["routing_key"])
                assert key is not None
                found.append(key[0] * SECOND)
                channel.basic_reject(message.delivery_tag, requeue=True)
                if len(found) == amount:
                    return found
        return found


def _prefix(names: NameSet) -> str:
    return names.delivery.removesuffix(f"_{CELERY.delivery}")


@pytest.fixture
def stand(
    broker: Broker,
    postgres_url: str,
    rabbitmq_url: str,
    unique: str,
    tmp_path: Path,
    raw_channel: amqp.Channel,
) -> Iterator[Stand]:
    """A store that has a clock of its own, and empty levels."""
    onward = CELERY.prefixed(f"{unique}on")
    broker.declare()
    broker.session.declare(delay_topology(onward, "classic"))
    for name in queues_of(broker.celerys):
        raw_channel.queue_purge(name)
    file = tmp_path / "sales.toml"
    file.write_text(SETTINGS.format(name=unique, broker=rabbitmq_url, database=postgres_url))
    with closing(Place(broker, postgres_url, unique)) as place:
        yield Stand(place, file, rabbitmq_url, onward)
    broker.session.remove(delay_topology(onward, "classic"))


def stored(stand: Stand, amount: int = 2) -> list[Timeout]:
    given = stand.place.some(amount)
    stand.place.store.store_many(given)
    return given


def assert_not_early(stand: Stand, left: list[Micros], given: list[Timeout]) -> None:
    now = stand.store_now()
    assert len(left) == len(given)
    # They fall due one microsecond after the other.
    assert all(one >= given[0].due - now for one in left)


def test_a_host_that_is_ahead_moves_nothing_early_into_levels(
    stand: Stand, raw_channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    given = stored(stand)

    with caplog.at_level(logging.WARNING):
        stand.run(MigrationRequest(target=stand.levels), AHEAD)

    assert pending(stand.place.store) == []
    assert_not_early(stand, stand.left(raw_channel, stand.place.celerys, 2), given)
    [warned] = [one for one in caplog.messages if "its clock is" in one]
    assert re.search(r"this host: its clock is (20|19\.9)\S* s ahead of that of postgres", warned)


def test_a_host_that_is_ahead_drains_nothing_early(stand: Stand, raw_channel: amqp.Channel) -> None:
    given = stored(stand)
    stand.run(MigrationRequest(target=stand.levels), 0)
    stand.place.wait_for_levels(stand.place.celerys, 2)

    stand.run(MigrationRequest(source=stand.levels, target=stand.onward, all_senders=True), AHEAD)

    assert_not_early(stand, stand.left(raw_channel, stand.names_onward, 2), given)


def test_a_mover_on_a_host_that_is_ahead_moves_nothing_early(
    stand: Stand, raw_channel: amqp.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = stored(stand)
    asked = MigrationRequest(target=stand.levels)
    opener = PlacesOpener(Shared(config=stand.file), asked, stand.place.name)
    with stand.parts(asked, 0) as (_site, parts):
        assert isinstance(parts, Participants)
        run = stand.place.begin(parts)
        monkeypatch.setattr(
            "timeoutmgr.endpoint.configuration.SystemClock", lambda: HostClock(FAR_AHEAD)
        )
        with opener() as ahead:
            assert ahead.clock.now() > parts.clock.now() + FAR_AHEAD // 2
            moved = [*iter(lambda: move_next(ahead, run), None)]

    assert sum(batch.collected for batch in moved) == 2
    assert_not_early(stand, stand.left(raw_channel, stand.place.celerys, 2), given)


def test_a_host_that_is_far_ahead_moves_nothing(stand: Stand) -> None:
    given = stored(stand)
    asked = MigrationRequest(target=stand.levels)

    with pytest.raises(MigrationRefused) as refused:
        stand.run(asked, FAR_AHEAD)

    [reason] = refused.value.reasons
    assert "this host: its clock is 600." in reason or "this host: its clock is 599.9" in reason
    assert "at most 30 s are accepted); set both clocks" in reason
    assert pending(stand.place.store) == given


def test_a_run_on_a_host_that_is_far_ahead_does_not_continue_but_can_be_aborted(
    stand: Stand, raw_channel: amqp.Channel
) -> None:
    given = stored(stand)
    asked = MigrationRequest(target=stand.levels)
    with stand.parts(asked, 0) as (site, parts):
        assert isinstance(parts, Participants)
        run = stand.place.begin(parts)
        [batch] = parts.ledger.batches(run.id)
        sending = replace(hide(parts, run, batch), state=BatchState.SENDING)
        parts.ledger.move_batch(run.id, sending)

    with stand.parts(asked, FAR_AHEAD) as (site, parts):
        terms = replace(site.terms(parts), window=run.terms.window, batch=run.terms.batch)
        with pytest.raises(MigrationRefused, match="nothing was moved"):
            move_all(parts, terms)
        report = give_up(parts)  # sends the batch to its end

    assert report is not None
    assert_not_early(stand, stand.left(raw_channel, stand.place.celerys, 2), given)


@pytest.mark.parametrize(
    ("ahead", "warned", "refused"),
    [(SECOND, 0, 0), (SECOND + 1, 1, 0), (-30 * SECOND, 1, 0), (30 * SECOND + 1, 0, 1)],
)
def test_a_target_whose_clock_differs_is_warned_of_and_then_refused(
    move: Move, ahead: Micros, warned: int, refused: int
) -> None:
    move.source.store_many(some(3, ahead=4 * HOUR))
    clock = SetClock(move.clock.at + ahead)
    target = move.target_persistence.migration_target(move.endpoint, clock)
    parts = replace(move.parts(), target=target)

    found = preview(parts, move.terms(parts))

    assert (len(found.warnings), len(found.problems)) == (warned, refused)


def test_a_place_is_asked_once_a_second_and_counted_on_in_between() -> None:
    host, answers = FakeClock(), iter([100 * SECOND, 250 * SECOND])
    clock = OriginClock(lambda: next(answers), host)

    first = clock.now()
    host.advance(0.75)
    second = clock.now()
    host.advance(0.25)

    assert (first, second, clock.now()) == (100 * SECOND, 100_750_000, 250 * SECOND)
    assert (clock.monotonic(), host.now()) == (host.monotonic(), START + SECOND)


def test_the_time_that_an_answer_takes_makes_a_delay_longer_never_shorter() -> None:
    host = FakeClock()

    def slow() -> Micros:
        answer = host.now()
        host.advance(0.5)
        return answer

    assert OriginClock(slow, host).now() == host.now() - SECOND // 2
