"""An endpoint that keeps its delayed messages in a custom store: three notes to itself."""

import tempfile
import threading
from pathlib import Path

from store import FileStore

from timeoutmgr import DelayedDeliverySettings, Endpoint, EndpointConfiguration


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        arrived: list[str] = []
        all_there = threading.Event()

        def note(body: str, _context: object) -> None:
            arrived.append(body)
            print(f"arrived: {body}")
            if len(arrived) == 3:
                all_there.set()

        config = EndpointConfiguration("notes")
        config.use_transport(
            f"sqlite:///{Path(folder, 'queues.db')}",
            delayed_delivery=DelayedDeliverySettings(
                FileStore(str(Path(folder, "delayed.db"))), number_of_retries=2
            ),
        )
        config.add_handler("Note", note)
        with Endpoint(config) as endpoint:
            for seconds in (0.9, 0.3, 0.6):
                endpoint.send_local("Note", f"after {seconds} s", delay=seconds)
            if not all_there.wait(30):
                raise SystemExit("not all of them arrived")


if __name__ == "__main__":
    main()
