"""Installers make the needs of the enabled features once, also beside other installers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from chaos.forkserver_client import ForkServer
from tests.acceptance.matrix import EACH_ONCE, REPRESENTATIVE, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from tests.acceptance.process import Child
from timeoutmgr import Endpoint
from timeoutmgr.errors import QueueMissing, SchemaMissing

pytestmark = pytest.mark.installs


def queues_of(name: str) -> set[str]:
    """Return all queues that an endpoint could have."""
    return {name, f"{name}.Timeouts", f"{name}.TimeoutsDispatcher", f"{name}.error"}


@matrix(pairs=EACH_ONCE, installed=False)
@pytest.mark.behaviour(122)
def test_installing_twice_changes_nothing(place: Place) -> None:
    party = Party(place)

    first = party.endpoint.install()
    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    second = party.endpoint.install()

    assert set(first) == set(second) == queues_of(party.name)
    assert place.session.missing_queues(first) == []
    party.start()
    party.inbox.wait_for_id(sent.message_id)


@matrix(pairs=REPRESENTATIVE, installed=False)
@pytest.mark.behaviour(122)
def test_four_processes_install_at_the_same_moment(place: Place, fork_server: ForkServer) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(fork_server, place, do="install")) for _ in range(4)]
        for child in children:
            child.wait_for_line("ready")
        for child in children:
            child.go()

        ends = [child.wait() for child in children]
        assert ends == [0] * 4, [child.said for child in children]
        for child in children:
            child.wait_for_line(f"installed {place.name}")

    party = Party(place, install=False).start()
    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(sent.message_id)


@matrix(pairs=EACH_ONCE, installed=False)
def test_only_the_queues_that_are_needed_are_made(place: Place) -> None:
    plain = place.made(place.plain(place.name, handler=lambda body, context: None))
    sender = place.plain(f"{place.name}-sender")
    sender.send_only()

    assert set(plain.install()) == {place.name, f"{place.name}.error"}
    assert place.made(sender).install() == []

    every = queues_of(place.name) | queues_of(sender.name)
    missing = place.session.missing_queues(every)
    assert set(missing) == every - {place.name, f"{place.name}.error"}


@matrix(pairs=EACH_ONCE, installed=False)
def test_a_start_without_a_needed_queue_names_it(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()
    needed = f"{party.name}.TimeoutsDispatcher"
    place.session.delete_queues([needed])
    config = place.configuration()
    config.install = False

    with pytest.raises(QueueMissing, match=needed) as refused:
        place.made(config).start()

    assert refused.value.queues == [needed]
    assert "timeoutmgr install" in str(refused.value)


@matrix(pairs=REPRESENTATIVE, needs={"sql_store"}, installed=False)
def test_a_start_without_tables_says_which_command_makes_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeoutmgr.persistence import SqlPersistence

    empty = SqlPersistence(place.store_url, prefix=f"{place.name}_")
    config = place.configuration(persistence=empty)
    place.made(place.plain(place.name)).install()
    Party(place).endpoint.install()
    config.install = False

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        place.made(config).start()


@matrix(pairs=REPRESENTATIVE, installed=False)
@pytest.mark.behaviour(126)
def test_endpoints_on_a_shared_store_see_only_their_own_timeouts(place: Place) -> None:
    one, other = Party(place).start(), place.run(place.configuration(f"{place.name}-b"))

    sent = one.endpoint.send_local("Ping", 1, delay=LATER, saga_id="same")
    one.wait_until_stored(sent.id)

    assert sent.id is not None
    assert other.timeouts.count() == 0
    assert other.timeouts.show(sent.id) is None
    assert other.timeouts.cancel_saga("same") == []
    assert one.endpoint.timeouts.count() == 1


@matrix(pairs=EACH_ONCE, installed=False)
def test_queue_names_are_compared_by_bytes(place: Place) -> None:
    party = Party(place)
    lower = Party(place)
    config = place.configuration(f"{place.name}.TIMEOUTS", handler=lower.inbox)
    upper = place.configuration(place.name.upper(), handler=lower.inbox)
    party.start()
    place.run(config)
    place.run(upper)

    quiet = party.endpoint.send(config.name, "Ping", "lower", delay=SOON)
    loud = party.endpoint.send(upper.name, "Ping", "upper", delay=SOON)
    own = party.endpoint.send_local("Ping", "own", delay=SOON)

    assert lower.inbox.wait_for_id(quiet.message_id).body == "lower"
    assert lower.inbox.wait_for_id(loud.message_id).body == "upper"
    assert party.inbox.wait_for_id(own.message_id).body == "own"
    assert len(party.inbox.arrived) == 1


@matrix(pairs=REPRESENTATIVE, installed=False)
def test_start_and_stop_may_be_called_twice_and_again(place: Place) -> None:
    party = Party(place)
    endpoint: Endpoint = party.endpoint
    endpoint.stop()
    for number in range(2):
        endpoint.start()
        endpoint.start()
        sent = endpoint.send_local("Ping", number, delay=SOON)
        party.inbox.wait_for_id(sent.message_id)
        endpoint.stop()
        endpoint.stop()

    assert len(party.inbox.arrived) == 2
