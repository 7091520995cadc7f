"""The Django project: the ORM's transaction sends, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.examples.shop import Shop, check_orders

pytestmark = pytest.mark.timeout(300)  # six programs start, beside other tests

KINDS = (  # on SQLite the how-to runs too
    pytest.param("sqlite3", marks=pytest.mark.long),
    "postgresql",
    pytest.param("mysql", marks=pytest.mark.long),
)


def _of_server(engine: str, url: str) -> Mapping[str, str]:
    parts = make_url(url)
    found = {
        "DB_ENGINE": engine,
        "DB_NAME": parts.database,
        "DB_HOST": parts.host or parts.query.get("unix_socket") or parts.query.get("host"),
        "DB_PORT": str(parts.port or ""),
        "DB_USER": parts.username,
        "DB_PASSWORD": parts.password,
    }
    return {name: str(value) for name, value in found.items() if value}


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose tables, queues and timeouts are installed."""
    variables: Mapping[str, str] = {"DB_NAME": str(tmp_path / "shop.sqlite3")}
    if request.param != "sqlite3":
        fixture = {"postgresql": "postgres_url", "mysql": "mysql_url"}[request.param]
        variables = _of_server(request.param, request.getfixturevalue(fixture))
    with Shop("django", **variables) as made:
        made.run("manage.py", "migrate", "--verbosity", "0")
        made.run("manage.py", "timeoutmgr", "install")
        yield made
        if request.param != "sqlite3":  # a later test finds the same database
            made.run("manage.py", "shell", "--verbosity", "0", "-c", REVERSED)


REVERSED = """
from django.core.management import call_command

for app in ("orders", "timeoutmgr_tasks"):
    call_command("migrate", app, "zero", verbosity=0)
"""
WAITING = "from timeoutmgr.contrib.django import endpoint; print(endpoint.timeouts.waiting())"
TASKS = """
import time
from datetime import timedelta
from django.db import transaction
from django.utils import timezone
from orders.models import Order
from orders.tasks import pay

with transaction.atomic():
    Order.objects.create(number="T7")
    soon = timezone.now() + timedelta(seconds=1)
    results = [task.enqueue("T7") for task in (pay, pay.using(priority=9, run_after=soon))]
with transaction.atomic():
    gone = pay.enqueue("T7")
    transaction.set_rollback(True)
until = time.monotonic() + 60
while not all(result.is_finished for result in results) and time.monotonic() < until:
    time.sleep(0.1)
    for result in results:
        result.refresh()
print([result.return_value for result in results], Order.objects.get(number="T7").paid)
print(results[1].started_at >= soon)
"""


def test_orders_and_tasks_are_carried_out_if_their_transactions_commit(shop: Shop) -> None:
    assert "no issues" in shop.run("manage.py", "check", "--fail-level", "WARNING")
    worker = shop.start("manage.py", "timeoutmgr", "run")
    shop.serve("manage.py", "runserver", "--noreload", "127.0.0.1:0")

    printed = shop.run("manage.py", "shell", "--verbosity", "0", "-c", TASKS)
    assert printed.splitlines()[-2:] == ["[True, True] True", "True"]

    check_orders(shop, worker, at_once=20)
    pending = json.loads(shop.run("manage.py", "timeoutmgr", "--json", "list"))
    assert pending["timeouts"] == []


@pytest.mark.parametrize(
    "shop", ["postgresql", pytest.param("mysql", marks=pytest.mark.long)], indirect=True
)
def test_a_test_run_sends_into_its_own_database_and_drops_it(shop: Shop) -> None:
    """A module of the tests has ``endpoint`` at its top, and Django drops no database in use."""
    shop.run("manage.py", "test", "--noinput")

    printed = shop.run("manage.py", "shell", "--verbosity", "0", "-c", WAITING)
    assert printed.splitlines()[-1] == "0"
