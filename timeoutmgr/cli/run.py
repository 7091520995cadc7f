"""``timeoutmgr run``: an endpoint in this process, or in several supervised processes."""

import logging
import sys
from pathlib import Path

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.output import log_to_stderr
from timeoutmgr.cli.shared import Shared


@click.command(cls=Command)
@option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of processes, which compete for queues and timeouts.",
)
@option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that the process rewrites every second while it is healthy, and removes at the end.",
)
@click.option("--child", type=int, nargs=2, hidden=True, allow_from_autoenv=False)
@common(environment=False)
@click.pass_obj
def run(
    shared: Shared, processes: int, health_file: Path | None, child: tuple[int, int] | None
) -> Exit:
    """Run the endpoint until SIGTERM or SIGINT, which stop it cleanly: exit code 0.

    A second signal ends the process at once; no message is lost, unfinished messages come back.

    A critical error that stops the endpoint ends the command with 70; its sentence is the last
    line on standard error. With --processes the first process is a supervisor: it restarts a
    process that dies, and a critical error in any process stops all of them.

    Examples:
      timeoutmgr --config sales.toml run
      timeoutmgr run --app shop.messaging:config --processes 4 --health-file /run/sales.json
    """
    from timeoutmgr.cli.endpoint_process import serve

    who = f"[{child[0]}] " if child else ""
    log_to_stderr(shared.log_level(logging.INFO), who)
    if processes > 1 and child is None:
        from timeoutmgr.cli.supervisor import Supervisor, command_line

        # Refuse wrong settings once, before any process is started.
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
