"""How many messages wait in a queue, as far as the broker tells."""

from contextlib import closing

from timeoutmgr.contracts import Transport
from timeoutmgr.errors import ConfigurationError, TransportUnavailable


def count_waiting(transport: Transport, queue: str) -> int | None:
    """Return how many messages wait in *queue*; None, for not known, while the broker is away.

    Not known, too, if the queue or the tables of the queues are missing: nothing was installed.
    """
    try:
        transport.check()
        with closing(transport.session()) as session:
            return session.count(queue)
    except (TransportUnavailable, ConfigurationError):
        return None


def waiting_text(count: int | None, queue: str) -> str:
    """Return the sentence of *count* messages that wait in *queue*, for people."""
    if count is None:
        return f"how many messages wait in {queue} to be stored is not known: it cannot be reached"
    if count == 1:
        return f"1 message waits in {queue} to be stored"
    return f"{count} messages wait in {queue} to be stored"
