"""A process may be killed at any moment: nothing is lost, and a repeat has the same id."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta

import pytest

from chaos.forkserver_client import ForkServer
from tests.acceptance.matrix import REPRESENTATIVE, SCOPE, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from tests.acceptance.process import Child
from tests.support.waiting import eventually

CHUNK = 10


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(48, 62, 63)
def test_a_killed_process_beside_another_loses_no_message(
    place: Place, fork_server: ForkServer
) -> None:
    party = Party(place)
    party.endpoint.install()
    target = place.queue(f"{place.name}-target")

    with ExitStack() as stack:
        doomed, other = (
            stack.enter_context(Child(fork_server, place, chunk=CHUNK)) for _ in range(2)
        )
        doomed.running()
        other.running()
        sent = [
            party.endpoint.send(target, "Ping", n, delay=1 + n / 150).message_id for n in range(300)
        ]
        received = place.received(target)
        received.wait_for(60)
        doomed.kill()

        eventually(lambda: {m.id for m in received.poll()} == set(sent), "all arrive", 60)
        eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
        got = Counter(message.id for message in received.poll())
        repeated = sum(got.values()) - len(got)
        one_transaction = "one_transaction" in place.pair.capabilities
        assert repeated <= (0 if one_transaction else CHUNK), (repeated, SCOPE)
        assert other.terminate() == 0


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(49, 141)
def test_the_next_start_delivers_messages_that_became_due_during_a_pause(
    place: Place, fork_server: ForkServer
) -> None:
    party = Party(place)
    party.endpoint.install()
    with Child(fork_server, place).running() as only:
        sent = party.endpoint.send_local("Ping", 1, delay=timedelta(seconds=1))
        kept = party.endpoint.send_local("Ping", 2, delay=LATER)
        party.wait_until_stored(sent.id, kept.id)
        only.kill()
    queued = party.endpoint.send_local("Ping", 3, delay=SOON)
    eventually(lambda: _is_due(party, sent.id), "it is overdue")

    party.start()

    assert party.inbox.wait_for_id(sent.message_id).lateness >= 0
    party.inbox.wait_for_id(queued.message_id)
    assert len(party.inbox.arrived) == 2


@matrix(pairs=REPRESENTATIVE)
def test_sigterm_ends_a_process_cleanly(place: Place, fork_server: ForkServer) -> None:
    party = Party(place)
    party.endpoint.install()
    with Child(fork_server, place).running() as child:
        sent = party.endpoint.send_local("Ping", 1, delay=LATER)
        party.wait_until_stored(sent.id)

        assert child.terminate() == 0

        assert child.said[-1] == "ended\n"
        assert not [line for line in child.said if "Traceback" in line or "rror" in line]
    assert party.endpoint.timeouts.count() == 1


def _is_due(party: Party, timeout_id: str | None) -> bool:
    from timeoutmgr.clock import SystemClock

    found = party.endpoint.timeouts.show(timeout_id or "")
    assert found is not None
    return found[1] is not None and found[1].due < SystemClock().now()
