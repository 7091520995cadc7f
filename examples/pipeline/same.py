"""Compare outputs of a job: same.py FILE FILE ..., each the output of a run with --json.

Prints each difference from the first file; exit code 1 if there is any. Name and time of a run may
differ.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

OWN: Final = ("run_id", "at", "as_of", "cutoff")


def differences(one: Any, other: Any) -> list[str]:
    """Return a line for each value that the two documents do not share."""
    ones, others = dict(_values(one)), dict(_values(other))
    return [
        f"{name}: {ones.get(name, 'nothing')} and {others.get(name, 'nothing')}"
        for name in {**ones, **others}
        if ones.get(name, "nothing") != others.get(name, "nothing")
    ]


def _values(document: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        parts = [(key, value) for key, value in document.items() if key not in OWN]
    elif isinstance(document, list):
        parts = list(enumerate(document))
    else:
        yield name, json.dumps(document)
        return
    for key, value in parts:
        yield from _values(value, f"{name}.{key}" if name else str(key))


def main(paths: list[Path]) -> int:
    texts = [path.read_text("utf-8") for path in paths]
    for path, text in zip(paths, texts, strict=True):
        if not text.strip():
            print(f"{path.stem} found nothing: its job failed", file=sys.stderr)
            return 1
    first, *others = map(json.loads, texts)
    found = [
        f"{paths[0].stem} and {path.stem} differ in {line}"
        for path, other in zip(paths[1:], others, strict=True)
        for line in differences(first, other)
    ]
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"# the same {len(paths)} times")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
