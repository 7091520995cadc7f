"""PostgreSQL can be written to as every other database is; headers are written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from tests.persistence.making import NOW, SetClock, dispatch, ids, timeout
from timeoutmgr.contracts import TimeoutState
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.rows import to_json
from timeoutmgr.settings.schema import arguments

Made = Callable[..., SqlPersistence]


@pytest.mark.parametrize("copy", [True, False])
def test_only_without_copy_postgresql_gets_its_rows_by_insert(
    postgres_url: str, unique: str, persistence_of: Made, copy: bool
) -> None:
    settings = SqlSettings(clock="host", copy=copy)
    persistence = persistence_of(postgres_url, prefix=f"{unique}_", settings=settings)
    persistence.install()
    inserted: list[str] = []

    def note(_c: Any, _u: Any, statement: str, _p: Any, _x: Any, many: bool) -> None:
        if many and statement.startswith("INSERT"):
            inserted.append(statement.split()[2].removeprefix(f"{unique}_"))

    store = persistence.timeouts("e", SetClock())
    event.listen(persistence.database.engine, "before_cursor_execute", note)
    store.store_many([timeout(f"{n}") for n in range(9)])
    dispatch(store, store.claim(NOW, 9, "o"))

    assert inserted == ([] if copy else ["timeout_keys", "timeouts", "timeout_history"])


def test_without_copy_a_batch_is_stored_once_and_dispatched(
    postgres_url: str, unique: str, persistence_of: Made
) -> None:
    settings = SqlSettings(clock="host", copy=False)
    persistence = persistence_of(postgres_url, prefix=f"{unique}_", settings=settings)
    persistence.install()
    store = persistence.timeouts("e", SetClock())
    names = [f"{n}" for n in range(9)]

    store.store_many([timeout(name) for name in names])
    store.store_many([timeout(name) for name in [*names, "new"]])
    chunk = store.claim(NOW, 20, "o")

    assert ids(chunk) == [*names, "new"]
    assert dispatch(store, chunk) == [*names, "new"]
    assert store.find("3") == (TimeoutState.DISPATCHED, None)
    store.store_many([timeout("3")])
    assert store.claim(NOW, 20, "o").keys == ()


def test_a_settings_file_can_disable_copy() -> None:
    assert arguments(SqlPersistence, {"copy": False}) == {"settings": SqlSettings(copy=False)}


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_headers_are_spelt_as_json_spells_them(headers: dict[str, str]) -> None:
    # Halves of surrogate pairs too: a store may hold what it was given before they were refused.
    assert to_json(headers) == json.dumps(headers, separators=(",", ":"))


@pytest.mark.parametrize("value", [7, None, b"7"])
def test_a_header_that_is_no_text_is_no_json(value: Any) -> None:
    with pytest.raises(TypeError):
        to_json({"Tenant": value})
