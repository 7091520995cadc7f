"""Timeouts in a file of one host, while the queues are reached from every host."""

from timeoutmgr.endpoint.configuration import EndpointSettings

REMEDY = (
    "run all processes of this endpoint on this host, or name a database server as the persistence"
)


def host_file_beside_broker(settings: EndpointSettings) -> str | None:
    """Return which timeouts other hosts cannot see; None if hosts reach queues and timeouts alike.

    A process on another host stores in a file of its own, and each lists, cancels and dispatches
    only the timeouts in its file.
    """
    storage = settings.delayed_delivery or settings.installed_persistence
    kept_in, transport = None if storage is None else storage.database, settings.transport
    if kept_in is None or kept_in.path is None or transport.capabilities.name == "memory":
        return None
    if transport.database is not None and transport.database.is_sqlite:
        return None
    return (
        f"the timeouts rest in the file {kept_in.path} of this host, the queues at "
        f"{transport.describe()}: a process on another host would have a file of its own"
    )
