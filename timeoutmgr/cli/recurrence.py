"""``timeoutmgr recurring``: list, pause, resume, run and remove recurring timeouts."""

from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, with_examples
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.routes import CLI

if TYPE_CHECKING:
    from timeoutmgr.endpoint.recurrence import RecurringView

WITHIN: Final = "recurring"
_COLUMNS: Final = ("name", "state", "next", "every", "type", "destination", "catch_up", "timeout")
_DROP: Final = ("timeout", "catch_up", "destination", "type")

_HELP = """
    Manage recurring timeouts, which a configuration defines.

    Examples:
      timeoutmgr recurring list
      timeoutmgr recurring pause daily-report
    """


recurring: Final = click.Group("recurring", help=with_examples(_HELP))


@recurring.command("list", cls=Command, within=WITHIN)
def list_schedules(shared: Shared) -> Exit:
    """List the recurring timeouts of the configuration and of the store, with their next runs.

    The states are scheduled, paused, new (no process with it has started yet) and not configured
    here: the stored run will be sent, but this configuration adds no further run.

    Examples:
      timeoutmgr recurring list
      timeoutmgr --json recurring list
    """
    with opened(shared, with_queues=False) as endpoint:
        views = endpoint.recurring.list()
    documents = [_document(view) for view in views]
    shared.show(
        {"recurring": documents}, lambda: output.print_documents(_COLUMNS, documents, drop=_DROP)
    )
    return Exit.OK


@recurring.command(cls=Command, within=WITHIN)
@click.argument("name")
def pause(shared: Shared, name: str) -> Exit:
    """Cancel the next run of NAME; no process stores another run until it is resumed.

    The store keeps the pause, which applies to all processes. The result is paused, or unchanged if
    NAME was already paused.

    Examples:
      timeoutmgr recurring pause daily-report
    """
    with opened(shared, with_queues=False) as endpoint:
        changed = endpoint.recurring.pause(name, channel=CLI)
    return _say(shared, name, "paused" if changed else "unchanged")


@recurring.command(cls=Command, within=WITHIN)
@click.argument("name")
def resume(shared: Shared, name: str) -> Exit:
    """Store runs of NAME again; its policy catch_up decides about missed runs.

    The result is resumed, or unchanged if NAME was not paused.

    Examples:
      timeoutmgr recurring resume daily-report
    """
    with opened(shared) as endpoint:
        changed = endpoint.recurring.resume(name, channel=CLI)
    return _say(shared, name, "resumed" if changed else "unchanged")


@recurring.command(cls=Command, within=WITHIN)
@click.argument("name")
def run(shared: Shared, name: str) -> Exit:
    """Send the message of NAME at once, even if NAME is paused; the stored run stays.

    Examples:
      timeoutmgr recurring run daily-report
    """
    with opened(shared) as endpoint:
        sent = endpoint.recurring.run_now(name)
    document = {"name": name, "message_id": sent.message_id, "destination": sent.destination}
    shared.show(document)
    return Exit.OK


@recurring.command(cls=Command, within=WITHIN)
@click.argument("name")
def remove(shared: Shared, name: str) -> Exit:
    """Cancel the next run of NAME, which is no longer in the configuration, and forget NAME.

    The exit code is 4 while NAME is configured here.

    Examples:
      timeoutmgr recurring remove daily-report
    """
    with opened(shared, with_queues=False) as endpoint:
        endpoint.recurring.remove(name, channel=CLI)
    return _say(shared, name, "removed")


def _say(shared: Shared, name: str, result: str) -> Exit:
    document = {"name": name, "result": result}
    shared.show(document, lambda: output.print_pairs([(name, result)]))
    return Exit.OK


def _document(view: "RecurringView") -> dict[str, Any]:
    return {
        "name": view.name,
        "state": _state(view),
        "next": output.shown_time(view.next),
        "every": view.every,
        "type": view.message_type,
        "destination": view.destination,
        "catch_up": view.catch_up,
        "timeout": view.timeout_id,
    }


def _state(view: "RecurringView") -> str:
    if view.is_paused:
        return "paused" if view.is_configured else "paused, not configured here"
    if not view.is_configured:
        return "not configured here"
    return "new" if view.next is None else "scheduled"
