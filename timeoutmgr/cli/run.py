"""``timeoutmgr run``: an endpoint in this process, or in several that this one looks after."""

import logging
import sys
from pathlib import Path

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.logs import log_to_stderr
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.shared import Shared


@click.command(cls=Command)
@option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many; they compete for queues and timeouts.",
)
@option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Rewritten about every second while all is well; removed at the end.",
)
@click.option("--child", type=int, nargs=2, hidden=True, allow_from_autoenv=False)
@common(environment=False)
@click.pass_obj
def run(
    shared: Shared, processes: int, health_file: Path | None, child: tuple[int, int] | None
) -> Exit:
    """Run the endpoint until SIGTERM or SIGINT, which stop it cleanly: exit code 0.

    A second signal ends it at once; nothing is lost by that, what was in hand comes back.

    A critical error that stops the endpoint ends the command with 70, its sentence being the
    last line on standard error. With --processes the first process only looks after the others:
    one that dies is started again, a critical error in one stops all.

    Examples:
      timeoutmgr --config sales.toml run
      timeoutmgr run --app shop.messaging:config --processes 4 --health-file /run/sales.json
    """
    from timeoutmgr.cli.serving import serve

    who = f"[{child[0]}] " if child else ""
    log_to_stderr(shared.log_level(logging.INFO), who)
    if processes > 1 and child is None:
        from timeoutmgr.cli.supervisor import Supervisor, command_line

        # What is wrong with the settings is said once, and before any process is started.
        shared.configuration().settings()
        code, last = Supervisor(
            command_line(shared.config, shared.app, verbose=shared.verbose),
            processes,
            health_file,
        ).run()
    else:
        code, last = serve(shared, health_file, child)
    if last is not None:
        logging.disable(logging.CRITICAL)  # nothing may follow the last line
        sys.stdout.flush()
        click.echo(last, err=True)
    return code
