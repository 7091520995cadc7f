"""What ``reschedule`` and ``send-now`` say of their result."""

from typing import TYPE_CHECKING

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.shared import Shared

if TYPE_CHECKING:
    from timeoutmgr.contracts import ChangeResult


def say(shared: Shared, timeout_id: str, result: "ChangeResult") -> Exit:
    """Print *result*; return 0 where the timeout was changed and cannot have been sent before."""
    from timeoutmgr.contracts import ChangeResult

    document = {"id": timeout_id, "result": result.value}
    shared.show(document, lambda: output.print_pairs([(timeout_id, result.value)]))
    return Exit.OK if result is ChangeResult.CHANGED else Exit.NOT_FOUND
