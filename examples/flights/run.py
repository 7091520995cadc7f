"""A day of flights: real delayed messages, two workers, a kill half-way.

The last line counts accepted, delivered, lost, early and repeated messages. Exit code 1: a promise
was broken. 2: a process failed, or a server could not be used.
"""

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Only a checkout has the package chaos: no wheel contains it.
sys.path.insert(1, str(Path(__file__).parents[2]))

from judge import Verdict
from play import Play
from scene import Scene
from screen import screen
from stage import Stage

from chaos import ChaosFailed
from timeoutmgr.errors import TimeoutManagerError


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="flights-"))
    keep = given.keep
    try:
        verdict = _run(_scene(given, folder), keep)
    except (ChaosFailed, TimeoutManagerError) as error:
        keep = True
        print(f"{error}\nThe logs of the processes are in {folder}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if not keep:
            shutil.rmtree(folder)
    if given.keep:
        print(f"Everything is kept in {folder}", file=sys.stderr)
    print(json.dumps(verdict.as_json()) if given.json else verdict)
    return 1 if verdict.broken else 0


def _run(scene: Scene, keep: bool) -> Verdict:
    stage = Stage(scene)
    display = screen()
    try:
        return Play(scene, stage, display).run()
    finally:
        display.close()
        if not keep:
            stage.clear()


def _scene(given: argparse.Namespace, folder: Path) -> Scene:
    embedded = f"sqlite:///{folder / 'timeoutmgr.db'}"
    store = given.store or embedded
    on_servers = bool(given.broker or given.store)
    return Scene(
        folder=str(folder),
        broker=given.broker or store,
        store=store,
        suffix=f"_{secrets.token_hex(4)}" if on_servers else "",
        seconds=given.seconds,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A day of flights from New York as delayed messages; one worker is killed.",
        epilog="Without --broker and --store everything is in one SQLite file, and no server is "
        "needed. With --store alone the queues are in that database too.",
    )
    parser.add_argument("--seconds", type=_seconds, default=20.0, help="how long the day takes")
    parser.add_argument("--broker", metavar="URL", help="such as amqp://guest:guest@localhost//")
    parser.add_argument("--store", metavar="URL", help="such as postgresql+psycopg://localhost/db")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--keep", action="store_true", help="keep files, queues and tables")
    return parser.parse_args()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1.0 <= seconds <= 86_400.0:
        raise argparse.ArgumentTypeError(f"expected 1 to 86400 seconds, got {text}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
