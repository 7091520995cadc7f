"""A process that declares delay levels, settles unroutable messages, or uninstalls."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from typing import Any

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.endpoint.installation import uninstall_timeout_manager
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import OURS, NameSet
from timeoutmgr.transport.kombu_transport import KombuTransport


def own_names(stem: str) -> NameSet:
    """Return the names of levels that no other test uses."""
    return NameSet(
        name="own",
        level=f"{stem}.level-{{}}",
        delivery=f"{stem}.delivery",
        arguments=OURS.arguments,
        alternate=True,
    )


def configuration(given: dict[str, Any]) -> EndpointConfiguration:
    """Return an endpoint that sends delays wherever it is told to."""
    config = EndpointConfiguration(given["stem"])
    config.error_queue = f"{given['stem']}.error"
    config.check_destinations = False
    config.use_transport(given["url"])
    config.enable_feature(NativeDelayedDelivery())
    config.add_handler("*", lambda _body, _context: None)
    if "store" in given:
        config.use_persistence(given["store"])
        config.disable_timeout_manager()
    return config


def main(given: dict[str, Any]) -> int:
    """Carry out *given*."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    stem = given["stem"]
    if given["act"] == "install":
        with closing(KombuTransport(given["url"])) as transport:
            DelayLevels(
                transport=transport,
                names=own_names(stem),
                queue_type="classic",
                bound=[f"{stem}.1", f"{stem}.2"],
            ).install()
    elif given["act"] == "uninstall":
        uninstall_timeout_manager(configuration(given).settings())
    else:
        Endpoint(configuration(given)).run()
    return 0
