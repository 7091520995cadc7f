"""A process whose coroutine handlers note and send; it can die at a crash point."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from sqlalchemy import text

from timeoutmgr import AsyncHandlerContext, Endpoint, EndpointConfiguration


def main(given: dict[str, Any]) -> int:
    """Run until SIGTERM, or death."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
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

    Endpoint(config).run()
    return 0
