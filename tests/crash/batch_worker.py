"""An endpoint whose handlers share a commit, or get lists; some messages of a batch fail."""

from __future__ import annotations

import logging
import sys
from typing import Any

from sqlalchemy import text

from timeoutmgr import BatchContext, Endpoint, EndpointConfiguration, TransactionMode
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.resilience.recovery import RecoverabilitySettings

FAILING = "fails"


def main(given: dict[str, Any]) -> int:
    """Handle messages until told to end."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    config = EndpointConfiguration(given["name"])
    config.error_queue = given["errors"]
    config.use_transport(given["transport"])
    config.transaction_mode = TransactionMode(given["mode"])
    config.concurrency = 1
    config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
    note = text(f"INSERT INTO {given['table']} (id) VALUES (:id)")

    def handle(body: Any, context: HandlerContext) -> None:
        if config.transaction_mode is TransactionMode.TRANSACTION_SCOPE:
            context.session.execute(note, {"id": context.message_id})
        context.send(given["done"], "Done", {"cause": context.message_id})
        if FAILING in context.message_id:
            raise ValueError("fails always")

    def handle_list(bodies: list[Any], context: BatchContext) -> None:
        for body, own in zip(bodies, context.contexts, strict=True):
            handle(body, own)

    if given["lists"]:
        config.add_handler("*", handle_list, batch="list")
    else:
        config.add_handler("*", handle)
    endpoint = Endpoint(config)
    endpoint.run()
    return 0 if endpoint.critical_error is None else 3
