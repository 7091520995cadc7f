"""``python -m timeoutmgr.testing.chaos``: the command line of a chaos run."""

import json
import logging
import signal
import subprocess
import sys
import traceback
from typing import Any

import click

from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.testing.chaos.judge import Verdict
from timeoutmgr.testing.chaos.play import run_chaos
from timeoutmgr.testing.chaos.processes import ChaosFailed
from timeoutmgr.testing.chaos.screen import screen
from timeoutmgr.testing.chaos.settings import ChaosSettings
from timeoutmgr.testing.chaos.trouble import PATIENCE, Restart

_DEFAULTS = ChaosSettings(seed=0)
_BETWEEN = "Seconds from one to the next: at least, at most."


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seconds", type=float, default=_DEFAULTS.seconds, help="How long faults happen.")
@click.option("--seed", type=int, show_default="random", help="Replays the faults of another run.")
@click.option("--store", metavar="URL", show_default="a SQLite file", help="Where timeouts rest.")
@click.option("--broker", metavar="URL", show_default="the store", help="Where queues are.")
@click.option("--workers", type=int, default=_DEFAULTS.workers, help="Processes that compete.")
@click.option("--producers", type=int, default=_DEFAULTS.producers, help="Processes that send.")
@click.option("--rate", type=float, default=_DEFAULTS.rate, help="Messages a second, in all.")
@click.option(
    "--longest-delay", type=float, default=_DEFAULTS.longest_delay, help="Of a message; seconds."
)
@click.option("--cancelled", type=float, default=_DEFAULTS.cancelled, help="Share to cancel.")
@click.option(
    "--dead", type=float, default=_DEFAULTS.dead, help="Share that has to leave dead letters."
)
@click.option(
    "--delayed-store", is_flag=True, help="A delayed message store in the timeout manager's place."
)
@click.option(
    "--native",
    is_flag=True,
    help="A mixed fleet: half of the workers and producers have their delays in RabbitMQ's levels.",
)
@click.option(
    "--migrate",
    is_flag=True,
    help="Move what is stored into RabbitMQ's levels meanwhile, killed again and again.",
)
@click.option(
    "--claim-time", type=float, default=_DEFAULTS.claim_time, help="Seconds; some pauses exceed it."
)
@click.option("--drain", type=float, default=_DEFAULTS.drain, help="Seconds to wait for more.")
@click.option("--kill-every", type=(float, float), default=_DEFAULTS.kill_every, help=_BETWEEN)
@click.option(
    "--kill-migration-every",
    type=(float, float),
    default=_DEFAULTS.kill_migration_every,
    help=_BETWEEN,
)
@click.option("--pause-every", type=(float, float), default=_DEFAULTS.pause_every, help=_BETWEEN)
@click.option("--cut-every", type=(float, float), default=_DEFAULTS.cut_every, help=_BETWEEN)
@click.option("--lose-every", type=(float, float), default=_DEFAULTS.lose_every, help=_BETWEEN)
@click.option(
    "--restart-every", type=(float, float), default=_DEFAULTS.restart_every, help=_BETWEEN
)
@click.option("--kills/--no-kills", default=True, help="Kill processes with SIGKILL.")
@click.option("--pauses/--no-pauses", default=True, help="Stop processes, and continue them.")
@click.option("--cuts/--no-cuts", default=True, help="Cut connections of processes.")
@click.option(
    "--lost-replies/--no-lost-replies",
    default=True,
    help="Lose answers to commits, and to what is published.",
)
@click.option(
    "--restart-store", metavar="COMMAND", help="Takes the database down and brings it back."
)
@click.option(
    "--restart-broker", metavar="COMMAND", help="Takes the broker down and brings it back."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--keep", is_flag=True, help="Keep files, queues and tables.")
@click.option("--verbose", is_flag=True, help="Show what the run itself logs.")
def chaos(
    seed: int | None,
    restart_store: str | None,
    restart_broker: str | None,
    as_json: bool,
    keep: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Let worker processes die, hang and lose connections while messages keep coming.

    Ends with a verdict. Exit code 0: every promise was kept. 1: one was broken, and files and
    logs are kept. 2: the run could not be carried out.

    Without --store and --broker everything is in one SQLite file, and no server is needed.
    With --store alone the queues are in its database too. In both cases one transaction spans
    queue and store, and no repeat at all is allowed. --native and --migrate take RabbitMQ, and a
    virtual host in whose delay levels nobody else has messages.
    Connections to PostgreSQL are terminated by the server, others are reset by a proxy that
    stands before it. It also loses replies. Servers are restarted only where a command is
    given; it runs in a shell, and returns when the server answers again.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR,
        format="%(asctime)s %(name)s: %(message)s",
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if seed is not None:
        given["seed"] = seed
    try:
        verdict = _run(ChaosSettings(**given), restart_store, restart_broker, keep)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(128 + signal.SIGINT)
    except (ChaosFailed, TimeoutManagerError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except Exception:
        # Whatever it is, it is not the verdict that exit code 1 stands for.
        click.echo(traceback.format_exc(), err=True)
        sys.exit(2)
    for example in verdict.examples:
        click.echo(example, err=True)
    click.echo(json.dumps(verdict.as_json()) if as_json else str(verdict))
    sys.exit(1 if verdict.broken else 0)


def _run(
    settings: ChaosSettings, restart_store: str | None, restart_broker: str | None, keep: bool
) -> Verdict:
    display = screen()
    display.say(f"seed {settings.seed}")
    try:
        return run_chaos(
            settings,
            restart_store=_command(restart_store),
            restart_broker=_command(restart_broker),
            screen=display,
            keep=keep,
        )
    finally:
        display.close()


def _command(line: str | None) -> Restart | None:
    if line is None:
        return None

    def run() -> None:
        subprocess.run(
            line,
            shell=True,  # the user's own line, with what a shell makes of it
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=PATIENCE,
        )

    return run


if __name__ == "__main__":
    chaos(prog_name="python -m timeoutmgr.testing.chaos")
