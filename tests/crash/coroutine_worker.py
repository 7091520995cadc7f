"""A process whose coroutine handlers note and send; it can die at a crash point."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from sqlalchemy import text

from timeoutmgr import AsyncHandlerContext, Endpoint, EndpointConfiguration
from timeoutmgr.crashpoints import arm


class AnnouncedEndpoint(Endpoint):
    """An endpoint that prints a line once it runs and ends in order at SIGTERM."""

    def start(self) -> None:
        super().start()
        print("started", flush=True)


def main(given: dict[str, Any]) -> None:
    """Run until SIGTERM, or death."""
    config = EndpointConfiguration(given["name"])
    config.error_queue = f"{given['name']}.error"
    config.use_transport(given["transport"])
    config.transaction_mode = given["mode"]
    config.async_concurrency = given["concurrency"]
    config.concurrency = 2
    ledger = given["ledger"]

    @config.handler("Work")
    async def work(body: Any, context: AsyncHandlerContext) -> None:
        if ledger is not None:
            await context.session.execute(text(f"INSERT INTO {ledger} VALUES (:n)"), {"n": body})
        await asyncio.sleep(0.002)
        context.send(given["target"], "Done", body)

    if given["point"] is not None:
        arm(given["point"])
    AnnouncedEndpoint(config).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
