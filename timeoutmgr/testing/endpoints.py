"""The configuration of an endpoint for a test, in one call."""

from collections.abc import Iterable

from timeoutmgr.contracts import Persistence, Transport
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.handlers import ANY, Handler
from timeoutmgr.features.feature import Feature
from timeoutmgr.telemetry import Telemetry


def configure(
    name: str,
    *,
    transport: str | Transport = "memory://",
    persistence: str | Persistence | None = "memory",
    features: Iterable[Feature] = (),
    telemetry: Telemetry | None = None,
    handler: Handler | None = None,
) -> EndpointConfiguration:
    """Return a configuration that may lose messages: in memory, unless said otherwise.

    *handler* gets every message that no other handler is for. Failed messages go to
    ``<name>.error``, so that tests do not find each other's.
    """
    config = EndpointConfiguration(name)
    config.error_queue = f"{name}.error"
    config.use_transport(transport, accept_loss=True)
    if persistence is not None:
        config.use_persistence(persistence, accept_loss=True)
    for feature in features:
        config.enable_feature(feature)
    if telemetry is not None:
        config.telemetry = telemetry
    if handler is not None:
        config.add_handler(ANY, handler)
    return config
