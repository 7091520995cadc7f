"""Many endpoints that start at once."""

from __future__ import annotations

import threading

from tests.native.test_feature import own_names
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.transport.kombu_transport import KombuTransport


def test_four_that_declare_the_same_levels_at_once_all_succeed(
    transport: KombuTransport, unique: str
) -> None:
    levels = DelayLevels(transport=transport, names=own_names(unique), queue_type="quorum")
    failures: list[Exception] = []
    together = threading.Barrier(4)

    def declare() -> None:
        try:
            together.wait(10)
            levels.install()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=declare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    levels.check()
    levels.remove()
