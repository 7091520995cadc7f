"""The pictures of the README and of the pages: ``python -m tests.docs.pictures`` draws them.

``walk.svg`` is drawn from the numbers below. ``terminal.svg`` is a recording: a program of the
tutorial runs, commands are typed, and the terminal's own output becomes the picture.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tests.cli.programs import wait_until
from tests.docs.pages import DOCS, blocks, environment

ASSETS: Final = DOCS / "assets"
README: Final = DOCS.parent / "README.md"
PACKAGE_PAGE: Final = DOCS / "package-index.md"
INK, LINE, OURS, THEIRS, PALE = "#1b2733", "#5b6b7b", "#3949ab", "#eceff1", "#e8eaf6"
BOXES: Final = [
    # x, y, width, first line, second line, fill
    (10, 76, 112, "your code", "send(delay=…)", THEIRS),
    (182, 76, 138, "sales.Timeouts", "queue", PALE),
    (380, 10, 170, "store", "commit, then acknowledge", OURS),
    (380, 142, 170, "poller", "claims what is due", OURS),
    (610, 10, 130, "timeouts", "database", PALE),
    (610, 142, 150, "dispatcher", "send, confirm, remove", OURS),
    (820, 142, 110, "billing", "queue", PALE),
    (820, 10, 110, "your handler", "", THEIRS),
]
ARROWS: Final = [
    (122, 101, 182, 101),
    (320, 91, 380, 45),
    (550, 35, 610, 35),
    (640, 60, 550, 155),
    (550, 167, 610, 167),
    (690, 142, 690, 60),
    (760, 167, 820, 167),
    (875, 142, 875, 60),
]
CSS: Final = (
    "text{font:13px system-ui,sans-serif;text-anchor:middle}"
    ".s{font-size:11px}"
    "path{fill:none;stroke-width:1.6}"
)


def walk() -> str:
    """Return the picture of the path of a delayed message."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 204" role="img" '
        'aria-label="The path of a delayed message">',
        f"<style>{CSS}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" style="fill:{LINE}"/>'
        "</marker></defs>",
        '<rect width="940" height="204" fill="white"/>',
        *(
            f'<path d="M{x} {y} {to_x} {to_y}" stroke="{LINE}" marker-end="url(#a)"/>'
            for x, y, to_x, to_y in ARROWS
        ),
        *(_box(*box) for box in BOXES),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(x: int, y: int, width: int, first: str, second: str, fill: str) -> str:
    ink, middle = ("white" if fill == OURS else INK), x + width // 2
    top = y + (22 if second else 30)
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="50" rx="6" fill="{fill}" '
        f'stroke="{LINE}" stroke-width="{0 if fill == OURS else 1}"/>'
        f'<text x="{middle}" y="{top}" fill="{ink}">{escape(first)}</text>'
        f'<text x="{middle}" y="{y + 38}" fill="{ink}" class="s">{escape(second)}</text>'
    )


def terminal() -> str:
    """Return a recording of the first steps in a terminal."""
    [program] = [
        block.text
        for block in blocks((DOCS / "tutorial" / "first-message.md").read_text())
        if block.title == "sales.py"
    ]
    console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sales.py").write_text(program)
        _shown(
            console, "python sales.py", _until(folder, [sys.executable, "sales.py"], "A7") + "^C"
        )
        send = (
            'timeoutmgr --app sales:config send sales PaymentOverdue \'{"id": "B8"}\' --delay 14d'
        )
        _shown(console, send, _output(folder, send))
        run = ["timeoutmgr", "--app", "sales:config", "run"]
        worker = subprocess.Popen(
            run, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        command = "timeoutmgr --app sales:config list"
        wait_until(lambda: "1 pending" in _output(folder, command), "the message is stored")
        listed = _output(folder, command)
        _shown(
            console,
            command,
            re.sub(r" +(saga +)?(attempts|0) +(bytes|12)$", "", listed, flags=re.M),
        )
        worker.kill()
        worker.wait()
    svg = console.export_svg(title="timeoutmgr")
    # rich names a font of another server; the reader's own will do.
    return re.sub(r"@font-face \{.*?\}\n|<!--.*?-->", "", svg, flags=re.DOTALL)


def _shown(console: Console, command: str, output: str) -> None:
    console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
    console.print(Text(output.rstrip()))


def _until(folder: str, words: list[str], text: str) -> str:
    with subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or text not in lines[-1]:
            lines.append(process.stdout.readline())
        process.kill()
    return "".join(lines)


def _output(folder: str, command: str) -> str:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True
    ).stdout


def package_page() -> str:
    """Return the page of a package index: the README without pictures, which an index has not."""
    return re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", README.read_text(), flags=re.MULTILINE)


def main() -> None:
    """Draw the pictures anew."""
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / "walk.svg").write_text(walk())
    (ASSETS / "terminal.svg").write_text(terminal())
    PACKAGE_PAGE.write_text(package_page())


if __name__ == "__main__":
    main()
