"""A send of Django's endpoint joins the open transaction of Django's own connection."""

from __future__ import annotations

import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, override_settings
from django.test.utils import setup_test_environment, teardown_test_environment

from timeoutmgr import ToSend
from timeoutmgr.contrib.django import endpoint
from timeoutmgr.contrib.django.endpoint import DjangoEndpoint
from timeoutmgr.errors import CombinationRefused, ConfigurationError, EndpointClosed

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


@pytest.fixture
def test_environment() -> Iterator[None]:
    """Django, set up as a test runner does it."""
    setup_test_environment()
    yield
    teardown_test_environment()


def rename(name: Path | str) -> None:
    """Give the default database another name, as a test run does."""
    connections.close_all()
    connections["default"].settings_dict["NAME"] = str(name)


def test_a_question_for_the_class_makes_no_endpoint(database: Any) -> None:
    """A loader of tests asks it of each name in a module, before there is a test database."""
    with override_settings(TIMEOUTMGR=None):
        assert not isinstance(endpoint, type)
        assert isinstance(endpoint, DjangoEndpoint)


def test_the_endpoint_follows_a_database_that_is_renamed(
    shop: DjangoEndpoint, tmp_path: Path
) -> None:
    named = connections["default"].settings_dict["NAME"]
    rename(tmp_path / "test_default.sqlite3")
    shop.install()
    shop.send_local("PaymentOverdue", {}, delay=60)
    with transaction.atomic():
        shop.send_local("PaymentOverdue", {}, delay=60)
    assert waiting(shop) == 2

    rename(named)
    assert waiting(shop) == 0


def test_a_method_from_before_sends_nothing_once_django_is_at_another_database(
    shop: DjangoEndpoint, tmp_path: Path
) -> None:
    send = shop.send_local
    rename(tmp_path / "test_default.sqlite3")
    connection.ensure_connection()

    with pytest.raises(EndpointClosed):
        send("PaymentOverdue", {}, delay=60)


def test_a_test_that_may_not_use_the_database_sends_nothing(
    shop: DjangoEndpoint, test_environment: None
) -> None:
    class Forbidden(SimpleTestCase):  # type: ignore[misc]  # Django ships no types
        def test(self) -> None:
            endpoint.send_local("PaymentOverdue", {}, delay=60)

    connections.close_all()
    found = unittest.TestResult()
    unittest.TestSuite([Forbidden("test")]).run(found)

    [(_test, message)] = [*found.failures, *found.errors]
    assert "not allowed in SimpleTestCase" in message
    assert waiting(shop) == 0


def test_django_connects_whatever_the_settings_of_the_endpoint_are(database: Any) -> None:
    connections.close_all()
    with override_settings(TIMEOUTMGR=None):
        connection.ensure_connection()

    assert connection.connection is not None


def test_a_database_in_memory_is_refused_and_a_file_is_asked_for(database: Any) -> None:
    rename("file:memorydb_default?mode=memory&cache=shared")

    with pytest.raises(ConfigurationError, match=r'"TEST": \{"NAME": "test\.sqlite3"\}'):
        endpoint.send_local("PaymentOverdue", {}, delay=60)
