"""Start a consumer in a process of its own, and kill it while it has leases."""

from typing import Final

from chaos.forkserver_client import ForkServer
from tests.support.forked import forked

_CHILD: Final = "from tests.transport.sql.child import main; main()"


def kill_holding(
    fork_server: ForkServer, url: str, prefix: str, queue: str, count: int, how: str = "ours"
) -> None:
    """Return when a consumer has leased *count* messages of *queue* and was killed by SIGKILL."""
    with forked(fork_server, _CHILD, url, prefix, queue, str(count), how) as child:
        try:
            assert child.stdout.readline() == "leased\n"
        finally:
            child.kill()
