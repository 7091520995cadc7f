"""A batch fails as a whole; what is wrong with one message is nobody else's."""

from __future__ import annotations

import pytest

from tests.transport.test_pump import SAFE, Mill
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.errors import MessageRejected


@pytest.mark.parametrize("mode", SAFE)
def test_the_neighbours_of_a_rejected_message_are_not_rejected_with_it(
    mode: TransactionMode,
) -> None:
    mill = Mill(mode, batch=10)
    mill.put("a", "wrong", "b")
    mill.always_fails("wrong", MessageRejected("no retry can mend it"))

    mill.turn()

    assert (mill.errors, mill.held) == (["wrong"], [])
