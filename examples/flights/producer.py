"""The producer: sends the whole day ahead, each notice delayed until it is due, and ends."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from day import Squeeze, notices, read_flights
from ledger import Accepted, AcceptedFile
from scene import Scene

from timeoutmgr import Endpoint
from timeoutmgr.errors import DeliveryUnknown, TransportUnavailable
from timeoutmgr.instants import to_micros

LEAD: Final = timedelta(seconds=2.5)
"""From the first send to the first due, so that every notice is accepted before it is due."""
TRIES: Final = 20


def main(scene: Scene) -> None:
    config = scene.endpoint(f"{scene.flights}-producer")
    config.send_only()
    config.use_external_timeout_manager(f"{scene.flights}.Timeouts")
    day = notices(read_flights())
    endpoint = Endpoint(config)
    squeeze = Squeeze.of(day, datetime.now(UTC) + LEAD, scene.seconds)
    print(squeeze.begin.isoformat(), flush=True)

    accepted = AcceptedFile(scene.file("accepted.jsonl"))
    for notice in day:
        for attempt in range(1, TRIES + 1):
            try:
                sent = endpoint.send(
                    scene.board,
                    notice.type,
                    notice.body,
                    deliver_at=squeeze.due(notice),
                    message_id=notice.id,
                )
                break
            except (DeliveryUnknown, TransportUnavailable):
                # Sent again under the same id, so that it is stored once all the same.
                if attempt == TRIES:
                    raise
                time.sleep(0.1)
        assert sent.due is not None, "it was delayed"
        now = time.time_ns() // 1_000
        accepted.add(Accepted(id=sent.message_id, due=to_micros(sent.due), at=now))
    accepted.close()
    endpoint.close()


if __name__ == "__main__":
    main(Scene.load(sys.argv[1]))
