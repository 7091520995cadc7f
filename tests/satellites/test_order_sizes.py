"""How many timeouts an order to the dispatcher holds: more where a crash repeats none of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration, SendOptions, ToSend
from timeoutmgr.message.message import Message
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.satellites.control import ChunkOrder, SingleOrder, read_control
from timeoutmgr.satellites.timeout_manager import dispatcher


@pytest.mark.parametrize(("server", "largest"), [("postgres_url", 20), ("sqlite_url", 4)])
def test_an_order_holds_five_chunks_where_the_database_moves_the_rows(
    server: str,
    largest: int,
    unique: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def noted(message: Message) -> ChunkOrder | SingleOrder:
        order = read_control(message)
        assert isinstance(order, ChunkOrder)
        sizes.append(len(order.keys))
        return order

    monkeypatch.setattr(dispatcher, "read_control", noted)
    url = request.getfixturevalue(server)
    config = EndpointConfiguration(unique)
    config.use_transport(url, prefix=f"{unique}_")
    config.use_persistence(url, prefix=f"{unique}_")
    config.enable_feature(TimeoutManager(chunk=4))
    handled: list[str] = []
    config.add_handler("Ping", lambda _body, context: handled.append(context.message_id))
    endpoint = Endpoint(config)
    endpoint.install()
    due = SendOptions(deliver_at=datetime.now(UTC) - timedelta(minutes=1))
    endpoint.store_many(ToSend(unique, "Ping", {}, due) for _ in range(40))

    with endpoint:
        eventually(lambda: len(handled) == 40, "all are handled")

    assert sum(sizes) == 40
    assert max(sizes) == largest
