"""The producer: sends the whole day ahead, each notice delayed until it is due, and ends."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from day import Squeeze, notices, read_flights
from scene import Scene

from chaos.producer_ledger import ProducerLedgerWriter
from timeoutmgr import Endpoint
from timeoutmgr.errors import DeliveryUnknown, TransportUnavailable
from timeoutmgr.message.instants import to_micros

LEAD: Final = timedelta(seconds=2.5)
"""Time from the first send to the first due time: every notice is accepted before it is due."""
TRIES: Final = 20
SYNC_EVERY: Final = 50
"""Notices accepted between two syncs to the disk, which take longer than the sends."""


def main(scene: Scene) -> None:
    config = scene.endpoint(f"{scene.flights}-producer")
    config.send_only()
    config.use_external_timeout_manager(f"{scene.flights}.Timeouts")
    day = notices(read_flights())
    endpoint = Endpoint(config)
    squeeze = Squeeze.of(day, datetime.now(UTC) + LEAD, scene.seconds)
    print(squeeze.begin.isoformat(), flush=True)

    promises = ProducerLedgerWriter(scene.file("promises.jsonl"), sync_every=SYNC_EVERY)
    for notice in day:
        due = squeeze.due(notice)
        promises.trying(notice.id, to_micros(due))
        for attempt in range(1, TRIES + 1):
            try:
                endpoint.send(
                    scene.board,
                    notice.type,
                    notice.body,
                    deliver_at=due,
                    message_id=notice.id,
                )
                break
            except (DeliveryUnknown, TransportUnavailable):
                # Sent again under the same id, so that it is stored once all the same.
                if attempt == TRIES:
                    raise
                time.sleep(0.1)
        promises.accepted(notice.id, time.time_ns() // 1_000)
    promises.close()
    endpoint.close()


if __name__ == "__main__":
    main(Scene.load(sys.argv[1]))
