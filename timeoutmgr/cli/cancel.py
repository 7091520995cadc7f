"""``timeoutmgr cancel``: one timeout or several, by id."""

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common
from timeoutmgr.cli.shared import Shared, opened


@click.command(cls=Command)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@common(environment=False)
@click.pass_obj
def cancel(shared: Shared, ids: tuple[str, ...]) -> Exit:
    """Cancel timeouts by id, and say of each what that still could do.

    cancelled: it will not be delivered. will_be_cancelled: no such timeout is stored; if its
    message arrives, it is dropped. too_late: it was sent, or is being sent now. maybe_sent: it
    will not be sent again, but may have been. unknown: no such timeout is stored, and the store
    cannot remember the cancel. The exit code is 0 if every timeout is or will be cancelled,
    otherwise 3.

    Examples:
      timeoutmgr cancel 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55
    """
    from timeoutmgr.contracts import CancelResult

    with opened(shared, with_queues=False) as endpoint:
        results = {each: endpoint.timeouts.cancel(each) for each in ids}
    document = {"results": {each: result.value for each, result in results.items()}}
    shared.show(document, lambda: output.print_pairs(list(document["results"].items())))
    done = {CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED}
    return Exit.OK if done.issuperset(results.values()) else Exit.NOT_FOUND
