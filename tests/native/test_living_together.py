"""Native delays beside a timeout manager: new delays in the broker, stored timeouts on time."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.acceptance.place import PROMPT
from tests.native.fleet import Fleet
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import CanUninstall
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.endpoint.installation import uninstall_timeout_manager
from timeoutmgr.errors import ConfigurationError, FeatureRefused, SchemaMissing
from timeoutmgr.features.leftovers import advice, find_leftovers, stored_of
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox

FAR = 3600


def stored_before(fleet: Fleet, name: str, *delays: float) -> list[str]:
    """Have a timeout manager store messages for *name*, then stop; return their ids."""
    config = fleet.configure(name, TimeoutManager())
    config.add_handler("*", Inbox())
    with Endpoint(config) as endpoint:
        ids = [endpoint.send_local("Old", {}, delay=delay).message_id for delay in delays]
        with closing(persistence_from_url(fleet.store)) as persistence:
            store = persistence.timeouts(name, config.clock)
            eventually(lambda: store.statistics().pending == len(delays), "all are stored")
    return ids


@pytest.mark.behaviour(4, 119)
def test_stored_timeouts_are_sent_on_time_and_new_delays_are_native(fleet: Fleet) -> None:
    name = f"{fleet.stem}.sales"
    [old] = stored_before(fleet, name, 3)

    both, inbox = fleet.with_inbox(fleet.native(name, TimeoutManager()))
    new = both.send_local("New", {}, delay=1)

    assert new.id is None
    arrived = inbox.wait_for(2)
    assert {one.id for one in arrived} == {old, new.message_id}
    assert all(0 <= one.lateness < PROMPT for one in arrived)
    assert [one.id for one in arrived if "TimeoutManager.DispatchedAt" in one.headers] == [old]


@pytest.mark.behaviour(119)
def test_endpoints_of_both_kinds_send_delays_to_each_other(fleet: Fleet) -> None:
    native, of_native = fleet.with_inbox(fleet.native(f"{fleet.stem}.native"))
    classic, of_classic = fleet.with_inbox(
        fleet.configure(f"{fleet.stem}.classic", TimeoutManager())
    )

    to_native = classic.send(f"{fleet.stem}.native", "Remind", {}, delay=1)
    to_classic = native.send(f"{fleet.stem}.classic", "Remind", {}, delay=1)

    assert [one.id for one in of_native.wait_for(1)] == [to_native.message_id]
    assert [one.id for one in of_classic.wait_for(1)] == [to_classic.message_id]
    assert of_native.arrived[0].lateness >= 0
    assert of_classic.arrived[0].lateness >= 0


def test_with_fallback_the_store_gets_delays_beyond_the_levels(fleet: Fleet) -> None:
    config = fleet.native(f"{fleet.stem}.sales", TimeoutManager(), fallback_to_store=True)
    both, inbox = fleet.with_inbox(config)

    short = both.send_local("Short", {}, delay=0.3)
    beyond = both.send_local("Beyond", {}, delay=2**28 + 10)
    kept = both.send_local("Kept", {}, delay=FAR, cancellable=True)
    native = both.send_local("Native", {}, delay=1.5)

    assert native.id is None
    assert None not in (short.id, beyond.id, kept.id)
    arrived = [inbox.wait_for_id(one.message_id) for one in (short, native)]
    assert ["TimeoutManager.DispatchedAt" in one.headers for one in arrived] == [True, False]
    assert both.timeouts.cancel(kept.id or "").value == "cancelled"
    assert [one.id for one in both.timeouts.list()] == [beyond.id]
    settings = config.settings()
    assert "will not drain" in advice(settings, find_leftovers(settings), falls_back=True)


# --- the end of a timeout manager -------------------------------------------------------------


def without_manager(fleet: Fleet, *, force: bool | None = None) -> EndpointConfiguration:
    config = fleet.native(f"{fleet.stem}.sales")
    config.use_persistence(fleet.store)
    if force is not None:
        config.disable_timeout_manager(force=force)
    return config


def test_a_start_that_would_leave_stored_messages_behind_is_refused(fleet: Fleet) -> None:
    stored_before(fleet, f"{fleet.stem}.sales", FAR)

    with pytest.raises(FeatureRefused, match=r"has run as .*1 in its store.*Enable TimeoutManager"):
        fleet.start(without_manager(fleet))
    with pytest.raises(FeatureRefused, match=r"disabled and still has messages.*1 in its store"):
        fleet.start(without_manager(fleet, force=False))

    fleet.start(without_manager(fleet, force=True))


def test_without_a_store_the_advice_does_not_call_it_empty(fleet: Fleet) -> None:
    stored_before(fleet, f"{fleet.stem}.sales", FAR)
    config = fleet.native(f"{fleet.stem}.sales")  # its persistence went with the feature
    config.disable_timeout_manager()
    settings = config.settings()

    assert "cannot be seen" in advice(settings, find_leftovers(settings), falls_back=False)
    with pytest.raises(FeatureRefused, match="name the store in `persistence` until"):
        fleet.start(config)
    with pytest.raises(FeatureRefused, match="name the store in `persistence` until"):
        uninstall_timeout_manager(settings)

    uninstall_timeout_manager(settings, force=True)
    fleet.start(config)


def test_once_drained_it_can_be_disabled_and_its_queues_and_tables_removed(fleet: Fleet) -> None:
    stored_before(fleet, f"{fleet.stem}.sales")
    with pytest.raises(FeatureRefused, match="timeoutmgr uninstall timeout-manager"):
        fleet.start(without_manager(fleet))
    config = without_manager(fleet, force=False)
    settings = config.settings()
    assert "can go" in advice(settings, find_leftovers(settings), falls_back=False)

    done = uninstall_timeout_manager(settings)

    assert set(done.queues) == {
        f"{fleet.stem}.sales.Timeouts",
        f"{fleet.stem}.sales.TimeoutsDispatcher",
    }
    assert done.tables == "the tables are removed"
    assert settings.persistence is not None
    with pytest.raises(SchemaMissing):
        settings.persistence.check()
    assert find_leftovers(settings).queues == {}
    fleet.start(without_manager(fleet, force=False))
    assert uninstall_timeout_manager(settings).tables == "there were no tables"


def test_while_a_process_of_it_runs_nothing_is_removed(fleet: Fleet) -> None:
    fleet.start(fleet.configure(f"{fleet.stem}.sales", TimeoutManager()))
    settings = without_manager(fleet, force=False).settings()
    store = stored_of(settings)
    assert store is not None
    eventually(store.processes, "its heartbeat is there")

    with pytest.raises(FeatureRefused, match="restart them without it first"):
        uninstall_timeout_manager(settings)

    assert len(find_leftovers(settings).queues) == 2


def test_while_anything_is_pending_nothing_is_removed(fleet: Fleet) -> None:
    stored_before(fleet, f"{fleet.stem}.sales", FAR)
    settings = without_manager(fleet, force=False).settings()

    with pytest.raises(FeatureRefused, match=r"still has messages.*1 in its store"):
        uninstall_timeout_manager(settings)
    assert isinstance(settings.persistence, CanUninstall)
    with pytest.raises(FeatureRefused, match=r"1 timeouts of .* are pending"):
        settings.persistence.uninstall(settings.name)
    running = fleet.native(f"{fleet.stem}.sales", TimeoutManager()).settings()
    with pytest.raises(FeatureRefused, match="restart every process"):
        uninstall_timeout_manager(running)

    assert uninstall_timeout_manager(settings, dry_run=True, force=True).queues
    assert find_leftovers(settings).stored == 1
    uninstall_timeout_manager(settings, force=True)
    assert find_leftovers(settings).stored is None


def test_the_tables_stay_while_another_endpoint_is_in_them(fleet: Fleet) -> None:
    stored_before(fleet, f"{fleet.stem}.sales")
    stored_before(fleet, f"{fleet.stem}.other", FAR)

    done = uninstall_timeout_manager(without_manager(fleet, force=False).settings())

    assert "other endpoints use the tables" in done.tables
    with closing(persistence_from_url(fleet.store)) as persistence:
        persistence.check()


def test_disabled_and_enabled_at_once_is_refused(fleet: Fleet) -> None:
    config = without_manager(fleet, force=False)
    config.enable_feature(TimeoutManager())

    with pytest.raises(ConfigurationError, match="both disabled and enabled"):
        config.settings()


def test_it_is_disabled_beside_native_delays_only(fleet: Fleet) -> None:
    config = fleet.configure(f"{fleet.stem}.sales")
    config.disable_timeout_manager()

    with pytest.raises(ConfigurationError, match=r"enable NativeDelayedDelivery"):
        config.settings()


def test_once_uninstalled_its_database_need_not_be_there(fleet: Fleet) -> None:
    config = without_manager(fleet, force=False)
    config.use_persistence("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")

    fleet.start(config)
