"""``python -m chaos``: the command line of a chaos run."""

import json
import logging
import signal
import subprocess
import sys
import traceback
from typing import Any

import click

from chaos.fault_injector import PATIENCE, Restart
from chaos.judge import JudgeVerdict
from chaos.processes import ChaosFailed
from chaos.run import run_chaos
from chaos.screen import screen
from chaos.settings import ChaosSettings
from timeoutmgr.errors import TimeoutManagerError

_DEFAULTS = ChaosSettings(seed=0)
_BETWEEN = "Seconds between two faults: minimum and maximum."


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--seconds", type=float, default=_DEFAULTS.seconds, help="Seconds during which faults happen."
)
@click.option(
    "--seed", type=int, show_default="random", help="Seed of another run, to replay its faults."
)
@click.option("--store", metavar="URL", show_default="a SQLite file", help="Store of the timeouts.")
@click.option("--broker", metavar="URL", show_default="the store", help="Broker with the queues.")
@click.option("--workers", type=int, default=_DEFAULTS.workers, help="Number of competing workers.")
@click.option(
    "--producers", type=int, default=_DEFAULTS.producers, help="Number of sending processes."
)
@click.option(
    "--rate", type=float, default=_DEFAULTS.rate, help="Messages a second, all producers together."
)
@click.option(
    "--longest-delay",
    type=float,
    default=_DEFAULTS.longest_delay,
    help="Longest delay of a message, in seconds.",
)
@click.option(
    "--cancelled", type=float, default=_DEFAULTS.cancelled, help="Share of messages to cancel."
)
@click.option(
    "--dead",
    type=float,
    default=_DEFAULTS.dead,
    help="Share of messages that must become dead letters.",
)
@click.option(
    "--failing",
    type=float,
    default=_DEFAULTS.failing,
    help="Share of messages whose handler fails, once or always.",
)
@click.option(
    "--awaited",
    type=float,
    default=_DEFAULTS.awaited,
    help="Share of messages that coroutines handle.",
)
@click.option(
    "--foreign",
    type=float,
    default=_DEFAULTS.foreign,
    help="Share of messages of another program, by an exchange.",
)
@click.option(
    "--split",
    is_flag=True,
    help="All messages are foreign: the fleet's queues in the store, the consumer's at the broker.",
)
@click.option(
    "--delayed-store",
    is_flag=True,
    help="Use a delayed message store instead of the timeout manager.",
)
@click.option(
    "--native",
    is_flag=True,
    help="Mixed fleet: half of the workers and producers delay in RabbitMQ's levels.",
)
@click.option(
    "--migrate",
    is_flag=True,
    help="Migrate stored timeouts into RabbitMQ's levels, and kill the migration repeatedly.",
)
@click.option(
    "--claim-time",
    type=float,
    default=_DEFAULTS.claim_time,
    help="Claim time in seconds; some pauses exceed it.",
)
@click.option(
    "--drain",
    type=float,
    default=_DEFAULTS.drain,
    help="Seconds to wait for the next delivery at the end.",
)
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
@click.option("--pauses/--no-pauses", default=True, help="Stop and continue processes.")
@click.option("--cuts/--no-cuts", default=True, help="Cut connections of processes.")
@click.option(
    "--lost-replies/--no-lost-replies",
    default=True,
    help="Lose answers to commits and publishes.",
)
@click.option(
    "--restart-store", metavar="COMMAND", help="Shell command that restarts the database."
)
@click.option("--restart-broker", metavar="COMMAND", help="Shell command that restarts the broker.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--keep", is_flag=True, help="Keep files, queues and tables.")
@click.option("--verbose", is_flag=True, help="Show the log of the run itself.")
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

    Ends with a verdict. Exit code 0: every promise was kept. 1: a promise was broken; files and
    logs are kept. 2: the run could not be carried out.

    Without --store and --broker everything is in one SQLite file, and no server is needed.
    With --store alone the queues are in its database too. In both cases one transaction spans
    queue and store, and no repeat at all is allowed. --native and --migrate need RabbitMQ, and a
    virtual host whose delay levels hold no other messages.
    PostgreSQL terminates its connections itself; a proxy resets all other connections, and
    loses replies. A server is restarted only if a command is given; the command runs in a shell,
    and returns when the server answers again.
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
        # Exit code 1 would be a verdict: an unexpected error is none.
        click.echo(traceback.format_exc(), err=True)
        sys.exit(2)
    for example in verdict.examples:
        click.echo(example, err=True)
    click.echo(json.dumps(verdict.as_json()) if as_json else str(verdict))
    sys.exit(1 if verdict.broken else 0)


def _run(
    settings: ChaosSettings, restart_store: str | None, restart_broker: str | None, keep: bool
) -> JudgeVerdict:
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
            shell=True,  # the user's own line, in shell syntax
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=PATIENCE,
        )

    return run


if __name__ == "__main__":
    chaos(prog_name="python -m chaos")
