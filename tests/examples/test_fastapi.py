"""The FastAPI app: the transaction of a request sends, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from tests.examples.shop import Shop, check_orders

pytestmark = pytest.mark.timeout(300)  # six programs start, beside other tests

OURS = ("-m", "timeoutmgr", "--app", "shop:configuration")


def test_an_order_is_reminded_of_unless_its_request_fails(database_url: str) -> None:
    with Shop("fastapi", DATABASE_URL=database_url) as shop:
        shop.run(*OURS, "install")
        shop.serve("-m", "uvicorn", "app:app", "--port", "0")  # it creates the tables
        worker = shop.start(*OURS, "run")

        check_orders(shop, worker)

        assert '"timeouts": []' in shop.run(*OURS, "--json", "list")
