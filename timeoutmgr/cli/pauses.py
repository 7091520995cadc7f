"""``timeoutmgr pause`` and ``timeoutmgr resume``: hold due timeouts back, and release them."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, Instant, check_text, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.instants import DurationTooLong, parse_duration
from timeoutmgr.message.routes import CLI

if TYPE_CHECKING:
    from timeoutmgr.contracts.audit import ChangedBy
    from timeoutmgr.contracts.pauses import Pause


given_reason: Final = partial(option, "--reason", callback=check_text, help="Reason for the audit.")
reason: Final = given_reason(required=True)
everything: Final = option(
    "--endpoint", "everything", is_flag=True, help="Every destination of the endpoint."
)


class End(Instant):
    """A time in ISO 8601 with its zone, or a duration from now."""

    name = "time or duration"

    def convert(  # type: ignore[override]  # one type more
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        """Return the time or the duration in *value*."""
        try:
            return parse_duration(value)
        except DurationTooLong as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            return super().convert(value, param, ctx)


@click.command(cls=Command)
@click.argument("destination", required=False)
@everything
@option(
    "--until",
    type=End(),
    help="End of the pause: a time in ISO 8601, or a duration from now, such as 2h. Without it, "
    "the pause lasts until a resume.",
)
@reason
def pause(
    shared: Shared,
    destination: str | None,
    everything: bool,
    until: datetime | timedelta | None,
    reason: str,
) -> Exit:
    """Dispatch no timeout to DESTINATION, in any process, until a time or a resume.

    Timeouts that become due meanwhile are parked: this is no attempt, and other timeouts do not
    wait for them. Messages that were already sent are not held. A second pause replaces the end of
    the first. The number of pending timeouts shows whether DESTINATION is the right name.

    Examples:
      timeoutmgr pause billing --until 2h --reason "billing is being upgraded"
      timeoutmgr pause --endpoint --until 2030-01-31T09:00Z --reason "change freeze"
    """
    _require_one(destination, everything)
    with opened(shared, with_queues=False) as endpoint:
        is_new = endpoint.timeouts.pause(destination, until=until, by=by(reason))
        ends = [each.until for each in endpoint.timeouts.pauses() if _is_of(each, destination)]
        pending = endpoint.timeouts.count_in_bounds(destination=destination)
    until_then = output.shown_time(next(iter(ends), None))
    result = "paused" if is_new else "changed"
    return _say(shared, destination, result, until=until_then, pending=pending.number)


@click.command(cls=Command)
@click.argument("destination", required=False)
@everything
@given_reason()
def resume(shared: Shared, destination: str | None, everything: bool, reason: str | None) -> Exit:
    """Dispatch timeouts to DESTINATION again; parked timeouts are sent now.

    After a pause with --endpoint, resume with --endpoint: a pause of a destination and a pause of
    all destinations are separate. The exit code is 3 if there was no such pause.

    Examples:
      timeoutmgr resume billing
      timeoutmgr resume --endpoint --reason "the freeze is over"
    """
    _require_one(destination, everything)
    with opened(shared, with_queues=False) as endpoint:
        returned = endpoint.timeouts.resume(destination, by=by(reason))
    _say(shared, destination, "not paused" if returned is None else "resumed", returned=returned)
    return Exit.NOT_FOUND if returned is None else Exit.OK


def by(reason: str | None) -> "ChangedBy":
    """Return the author of a command: the user and host of this process."""
    from timeoutmgr.contracts.audit import ChangedBy

    return ChangedBy(channel=CLI, reason=reason)


def pause_documents(pauses: "Iterable[Pause]") -> list[dict[str, Any]]:
    """Return pauses for JSON."""
    return [
        {
            "destination": each.destination,
            "since": output.shown_time(each.since),
            "until": output.shown_time(each.until),
            "parked": each.parked.number,
            **({} if each.parked.exact else {"parked_is_exact": False}),
            "actor": each.actor,
            "reason": each.reason,
        }
        for each in pauses
        if not each.is_ending
    ]


def pause_lines(documents: Iterable[dict[str, Any]]) -> list[str]:
    """Return pauses for people, one per line."""
    return [
        output.plain(
            f"paused: {each['destination'] or 'every destination'} since {each['since']}, "
            f"until {each['until'] or 'a resume'}, {each['parked']}"
            f"{'' if each.get('parked_is_exact', True) else '+'} timeouts are parked; "
            f"by {each['actor']}: {each['reason']}"
        )
        for each in documents
    ]


def _is_of(pause: "Pause", destination: str | None) -> bool:
    return pause.destination == destination and not pause.is_ending


def _require_one(destination: str | None, everything: bool) -> None:
    if (destination is None) != everything:
        raise click.UsageError("give either a DESTINATION or --endpoint")


def _say(shared: Shared, destination: str | None, result: str, **more: Any) -> Exit:
    shared.show({"destination": destination, "result": result, **output.without_nothing(more)})
    return Exit.OK
