"""A process is killed at each point between two side effects, and another one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import ON_THE_WAY, SAMPLED, Case, matrix, pairs_of, sample
from tests.crash.ledger import Ledger
from tests.crash.site import Site
from tests.crash.workload import Workload


@pytest.fixture
def site(
    case: Case,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    unique: str,
    fork_server: ForkServer,
) -> Iterator[Site]:
    """The case's queue and store."""
    urls = {"sqlite": f"sqlite:///{tmp_path / 'timeoutmgr.db'}"}
    for server in {case.pair.queue, case.pair.store, case.pair.destinations} - {"sqlite", ""}:
        urls[server] = request.getfixturevalue(f"{server}_url")
    made = Site(case.pair, urls, unique, tmp_path, fork_server, fresh=case.fresh)
    with made.closing:
        made.closing.callback(made.clean_up)
        yield made


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.id)
def test_each_point_once(case: Case, site: Site) -> None:
    _kill_and_continue(case, site)


@pytest.mark.crash_full
@pytest.mark.parametrize("case", matrix(), ids=lambda case: case.id)
def test_each_point_at_its_first_and_second_hit_on_each_pair(case: Case, site: Site) -> None:
    _kill_and_continue(case, site)


def test_every_point_is_in_the_sample_and_in_the_matrix() -> None:
    for cases, points in ((sample(), SAMPLED), (matrix(), ON_THE_WAY)):
        assert {crash.point for case in cases for crash in case.crashes} == set(points)
    assert all(pairs_of(point) for point in ON_THE_WAY)


def _kill_and_continue(case: Case, site: Site) -> None:
    """Let each of the case's processes die while there is work, then one finish it all."""
    ledger = Ledger(site)
    if not case.fresh:
        site.install()
        ledger.open()
    if case.crashes[0].point == "upgrade.index_created":
        site.unlearn()
    for number, crash in enumerate(case.crashes):
        if case.fresh:
            doomed = site.worker(crash)
            doomed.wait_until_it_ends()
        else:
            if crash.point.startswith("partitions."):
                site.coarsen(crash.point)
            ledger.begin(Workload(site, number, crash.point))
            doomed = site.worker(crash)
            ledger.send_until_ended(doomed, f"{crash} is not reached")
        assert doomed.was_killed, doomed.said

    last = site.worker(None)
    last.wait_until_it_runs()
    assert not last.ended, last.said
    if case.fresh:
        ledger.open()
        ledger.rounds.append(one := Workload(site, 0, ""))
        one.send()
    for token in [token for one in ledger.rounds for token in one.living]:
        site.store(site.own).release(token)
    ledger.read_until(lambda: not ledger.wanting() and not site.left(), "something is lost")
    assert last.terminate() == 0, last.said
    ledger.read(0.05)

    repeats = ledger.check(0 if case.pair.exactly_once else len(case.crashes))
    assert site.left() == {}
    print(f"{case.id}: repeated under the same id {repeats}")
