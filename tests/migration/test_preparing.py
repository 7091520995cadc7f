"""A run is looked at before it is begun, and begun or gone on with where nothing is in its way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from tests.migration.conftest import HOUR, Move, pending, some
from tests.persistence.making import NOW, SetClock, timeout
from timeoutmgr.errors import MigrationRefused, StorageUnavailable
from timeoutmgr.migration import Window, begin, preview
from timeoutmgr.persistence import SqlPersistence


@pytest.mark.behaviour(130)
def test_a_preview_tells_all_and_changes_nothing(moves: Move) -> None:
    moves.source.store_many([*some(4), timeout("other", NOW + 9 * HOUR, destination="stock")])
    moves.source.store_many([timeout("soon", NOW + 1)])
    parts = moves.parts()

    found = preview(parts, moves.terms(parts))

    assert (found.survey.count, found.survey.left) == (5, 1)
    assert found.survey.earliest == NOW + HOUR
    assert found.survey.latest == NOW + 9 * HOUR
    assert found.survey.destinations == {"billing": 4, "stock": 1}
    assert found.problems == ()
    assert ["less than 4 hours" in warning for warning in found.warnings] == [True]
    assert len(pending(moves.source)) == 6
    assert parts.ledger.runs() == []


def test_a_timeout_due_in_four_hours_is_not_warned_of(move: Move) -> None:
    move.source.store_many(some(1, ahead=4 * HOUR))
    parts = move.parts()

    assert preview(parts, move.terms(parts)).warnings == ()


@pytest.mark.behaviour(133)
@pytest.mark.parametrize(
    ("more", "difference"),
    [
        ({"batch": 4}, "batch was 3 and is 4"),
        (
            {"window": Window(cutoff=NOW + 1)},
            f"cutoff was {NOW} and is {NOW + 1}",
        ),
        ({"others": {"rename": "a=b"}}, "others was {} and is {'rename': 'a=b'}"),
    ],
)
def test_a_run_is_resumed_on_its_own_terms_only(
    move: Move, more: dict[str, object], difference: str
) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    move.begin(parts, window=Window(cutoff=NOW))
    parts.close()

    with pytest.raises(MigrationRefused) as refused:
        move.run(**{"window": Window(cutoff=NOW), **more})

    assert refused.value.reasons == [difference]
    assert move.run(window=Window(cutoff=NOW)).collected == 3


def test_a_run_that_another_process_works_at_is_left_alone(moves: Move) -> None:
    moves.source.store_many(some(3))
    busy = moves.parts()
    run = moves.begin(busy)
    late = moves.parts()

    with pytest.raises(MigrationRefused, match="another process is at work"):
        moves.begin(late)
    busy.close()

    assert moves.begin(late).id == run.id
    late.close()


@pytest.mark.behaviour(135)
def test_no_secret_is_stored(postgres_url: str, unique: str) -> None:
    url = make_url(postgres_url).set(password="s3cret").update_query_dict({"sslpassword": "s3cr3t"})
    persistence = SqlPersistence(url.render_as_string(hide_password=False), schema=unique)

    described = persistence.migration_source("e", SetClock()).describe()

    assert "s3cr" not in described
    assert described.endswith(f" {unique}.timeoutmgr_")
    persistence.close()


def test_terms_survive_being_written_down(move: Move) -> None:
    terms = move.terms(move.parts(), window=Window(cutoff=NOW + 1, until=NOW + 2, safety=3))

    assert type(terms).from_json(terms.to_json()) == terms
    assert json.loads(terms.to_json())["cutoff"] == NOW + 1  # to the microsecond


def test_one_store_under_two_names_is_noticed_before_anything_is_lost(moves: Move) -> None:
    given = some(3)
    moves.source.store_many(given)
    same = Move((moves.source_persistence, moves.source_persistence), moves.endpoint)
    parts = same.parts()
    terms = replace(same.terms(parts), target="by another name")

    with pytest.raises(MigrationRefused, match="are the same tables"):
        begin(parts, terms, lambda: f"{moves.endpoint}r")

    parts.close()
    assert pending(moves.source) == given
    assert parts.ledger.open_run() is None


def test_both_ends_are_closed_if_the_run_cannot_be_released(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, closed = move.parts(), list[object]()
    for end in (parts.source, parts.target):
        monkeypatch.setattr(type(end), "close", lambda self: closed.append(self))

    def refuse(*_given: object) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(type(parts.ledger), "release", refuse)

    with pytest.raises(StorageUnavailable, match="away"):
        parts.close()

    assert closed == [parts.source, parts.target]


@pytest.mark.behaviour(131)
def test_from_a_store_into_which_a_run_is_open_nothing_is_moved(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    parts.close()
    back = Move((moves.target_persistence, moves.source_persistence), moves.endpoint)

    with pytest.raises(MigrationRefused, match="nothing was moved") as refused:
        back.run()

    assert f"run {run.id} into it is open" in refused.value.reasons[0]
    assert f"run {run.id} out of it is open" in refused.value.reasons[1]
    moves.run()
    assert back.run().new == 3
