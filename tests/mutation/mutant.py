"""A mutant: a small wrong change of the product's source, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.behaviours import BEHAVIOURS

ROOT: Final = Path(__file__).parents[2]


class SourceMoved(Exception):
    """The text that a mutant changes is not in its file, or is there more than once."""

    def __init__(self, mutant: Mutant, times: int) -> None:
        super().__init__(
            f"mutant {mutant.name!r}: its text is {times} times in {mutant.file}, expected once; "
            "the source moved: mend the list in tests/mutation/listed/"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """*after* in place of *before* in *file* breaks *promise*: some test of *tests* must fail."""

    name: str
    promise: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    behaviour: int | None = None
    """The number of the behaviour that the mutant breaks, if a row has the promise;
    *tests* carry its mark."""

    def source(self, root: Path = ROOT) -> str:
        """Return the text of its file below *root*, changed; raise SourceMoved."""
        text = (root / self.file).read_text()
        times = text.count(self.before)
        if times != 1:
            raise SourceMoved(self, times)
        return text.replace(self.before, self.after)


def breaks(
    behaviour: int, file: str, change: tuple[str, str], *tests: str, name: str | None = None
) -> Mutant:
    """Return the mutant of a behaviour: *change* is the text before and after."""
    before, after = change
    return Mutant(
        name=name or f"behaviour {behaviour}",
        promise=BEHAVIOURS[behaviour],
        file=file,
        before=before,
        after=after,
        tests=tests,
        behaviour=behaviour,
    )
