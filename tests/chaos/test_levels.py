"""A run needs the broker's delay levels to itself."""

from __future__ import annotations

from contextlib import closing

import pytest

from chaos import ChaosFailed
from chaos.levels import Levels
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.native.names import OURS, to_levels
from timeoutmgr.transport.kombu_transport import KombuTransport


def test_levels_with_messages_of_other_programs_are_refused_and_stay(
    broker_with_empty_levels: str,
) -> None:
    message = Message(id="other", headers={}, body=b"", content_type="text/plain")
    with closing(KombuTransport(broker_with_empty_levels)) as transport:
        others = Levels(transport, [])
        others.install()
        with closing(transport.session()) as session:
            in_an_hour = SystemClock().now() + 3_600_000_000
            session.send([to_levels(Outgoing("nobody", message), in_an_hour, OURS, SystemClock())])
        eventually(lambda: others.count() == 1, "it is in a level")

        with pytest.raises(ChaosFailed, match="virtual host"):
            Levels(transport, [])

        assert others.count() == 1
        others.clear()
