"""The Flask app: the commit of ``db.session`` sends, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from tests.examples.shop import Shop, check_orders

pytestmark = pytest.mark.timeout(300)  # six programs start, beside other tests


def test_an_order_is_reminded_of_unless_its_session_is_rolled_back(database_url: str) -> None:
    with Shop("flask", DATABASE_URL=database_url) as shop:
        shop.run("-m", "flask", "timeoutmgr", "install")
        worker = shop.start("-m", "flask", "timeoutmgr", "run")
        shop.serve("-m", "flask", "run", "--port", "0")

        check_orders(shop, worker)

        assert '"timeouts": []' in shop.run("-m", "flask", "timeoutmgr", "--json", "list")
