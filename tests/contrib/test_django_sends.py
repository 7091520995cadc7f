"""A send of Django's endpoint joins the open transaction of Django's own connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from timeoutmgr import ToSend
from timeoutmgr.contrib.django import endpoint
from timeoutmgr.contrib.django.endpoint import DjangoEndpoint
from timeoutmgr.errors import CombinationRefused

MANAGER = "shop.Timeouts"


@pytest.fixture
def shop(database: Any) -> DjangoEndpoint:
    """The endpoint of the project, installed."""
    endpoint.install()
    return endpoint


def waiting(shop: DjangoEndpoint, queue: str = MANAGER) -> int:
    """Return how many messages wait in *queue*, as another connection sees them."""
    session = shop._parts.settings.transport.session()
    try:
        return int(session.count(queue))
    finally:
        session.close()


def write(number: str, using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])


@contextmanager
def undone() -> Iterator[None]:
    """Open a transaction or savepoint of Django, which an error rolls back."""
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


def orders() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM orders")
        return int(cursor.fetchone()[0])


def test_a_send_outside_of_a_transaction_leaves_at_once(shop: DjangoEndpoint) -> None:
    connections.close_all()

    shop.send_local("PaymentOverdue", {}, delay=60)

    assert waiting(shop) == 1
    assert connection.connection is None  # Django need not connect for it


def test_a_send_in_atomic_leaves_with_the_commit(shop: DjangoEndpoint) -> None:
    with transaction.atomic():
        write("A7")
        shop.send_local("PaymentOverdue", {}, delay=60)
        assert waiting(shop) == 0

    assert (waiting(shop), orders()) == (1, 1)


def test_a_rollback_sends_nothing(shop: DjangoEndpoint) -> None:
    with undone():
        write("A7")
        shop.send_local("PaymentOverdue", {}, delay=60)
        shop.send_local("Placed", {})

    assert (waiting(shop), waiting(shop, "shop"), orders()) == (0, 0, 0)


def test_a_savepoint_that_is_rolled_back_undoes_its_sends_alone(shop: DjangoEndpoint) -> None:
    with transaction.atomic():
        shop.send_local("PaymentOverdue", {"kept": True}, delay=60)
        with undone():
            shop.send_local("PaymentOverdue", {"kept": False}, delay=60)

    assert waiting(shop) == 1


def test_a_transaction_without_atomic_is_joined_too(shop: DjangoEndpoint) -> None:
    plain: Any = connection
    plain.set_autocommit(False)
    try:
        shop.send_local("PaymentOverdue", {}, delay=60)
        plain.rollback()
        shop.send_local("PaymentOverdue", {}, delay=60)
        plain.commit()
    finally:
        plain.set_autocommit(True)

    assert waiting(shop) == 1


def test_a_broken_transaction_is_refused_by_django_itself(shop: DjangoEndpoint) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            shop.send_local("PaymentOverdue", {}, delay=60)

    assert waiting(shop) == 0


@pytest.mark.parametrize("act", ["send_many", "store_many", "clear_timeouts"])
def test_a_call_that_no_rollback_could_undo_is_refused_in_atomic(
    shop: DjangoEndpoint, act: str
) -> None:
    message = ToSend("shop", "PaymentOverdue", {})
    calls: dict[str, Callable[[], object]] = {
        "send_many": lambda: shop.send_many([message]),
        "store_many": lambda: shop.store_many([message]),
        "clear_timeouts": lambda: shop.clear_timeouts("A7"),
    }

    with transaction.atomic(), pytest.raises(CombinationRefused, match=r"transaction\.on_commit"):
        calls[act]()


def test_a_connection_of_django_is_a_session(shop: DjangoEndpoint) -> None:
    given: Any = connection
    with transaction.atomic():
        shop.send_local("PaymentOverdue", {}, delay=60, session=given)
        shop.send_local("PaymentOverdue", {}, delay=60, session=connections["default"])

    assert waiting(shop) == 2
    with pytest.raises(CombinationRefused, match=r"transaction\.atomic\(using='default'\)"):
        shop.send_local("PaymentOverdue", {}, delay=60, session=given)


def test_another_database_of_django_is_refused_by_name(shop: DjangoEndpoint) -> None:
    with (
        transaction.atomic(using="other"),
        pytest.raises(CombinationRefused, match=r"other\.sqlite3"),
    ):
        shop.send_local("PaymentOverdue", {}, delay=60, session=connections["other"])


def test_a_wake_follows_the_commit_and_no_rollback(
    database: Any, rabbitmq_url: str, unique: str
) -> None:
    own = {"endpoint": unique, "features": ["timeout-manager"], "transport": rabbitmq_url}
    with override_settings(TIMEOUTMGR=own):
        endpoint.install()
        queue = f"{unique}.Timeouts"
        try:
            with undone():
                endpoint.send_local("PaymentOverdue", {}, delay=60)
            with transaction.atomic():
                endpoint.send_local("PaymentOverdue", {}, delay=60)
                assert waiting(endpoint, queue) == 0

            assert waiting(endpoint, queue) == 1
            assert endpoint.timeouts.count() == 1
        finally:
            session = endpoint._parts.settings.transport.session()
            session.delete_queues([unique, queue, f"{unique}.TimeoutsDispatcher", "error"])
            session.close()


FORKING = """
import os, sys, django
from django.conf import settings
settings.configure(
    DATABASES={"default": {
        "ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1],
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }},
    INSTALLED_APPS=["timeoutmgr.contrib.django"],
    TIMEOUTMGR={"endpoint": "shop", "features": ["timeout-manager"]},
)
django.setup()
from django.db import connections, transaction
from timeoutmgr.contrib.django import endpoint
endpoint.install()
endpoint.send_local("PaymentOverdue", {}, delay=60)
connections.close_all()
child = os.fork()
with transaction.atomic():
    endpoint.send_local("PaymentOverdue", {}, delay=60)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
session = endpoint._parts.settings.transport.session()
print(session.count("shop.Timeouts"))
"""


def test_a_forked_process_goes_on_with_the_endpoint(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "forking.sqlite3")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert answer.stdout == "3\n", answer.stderr


def test_a_change_of_the_settings_in_a_test_makes_another_endpoint(
    shop: DjangoEndpoint, tmp_path: Path
) -> None:
    assert endpoint.name == "shop"
    with override_settings(TIMEOUTMGR={"endpoint": "market"}):
        assert endpoint.name == "market"
    assert endpoint.name == "shop"
