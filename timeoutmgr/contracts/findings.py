"""What a check found: one line of the doctor's."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.cli.output import masked
from timeoutmgr.database import Database


class Level(StrEnum):
    """How a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's."""

    level: Level
    check: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return it for people, secrets masked."""
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return masked(f"{self.level.value:<4}  {self.check}: {self.text}{remedy}")

    def document(self) -> dict[str, str]:
        """Return it for JSON, secrets masked."""
        found = {"level": self.level.value, "check": self.check, "text": masked(self.text)}
        return {**found, "remedy": masked(self.remedy)} if self.remedy else found


def ok(check: str, text: str) -> Finding:
    """Return a finding that is well."""
    return Finding(level=Level.OK, check=check, text=text)


def no_file(database: Database | None) -> Finding | None:
    """Return what is to be said where *database* is a file that is not there, else None.

    To connect would create it, and a doctor changes nothing.
    """
    if database is None or database.path is None or database.path.exists():
        return None
    return Finding(
        level=Level.FAIL,
        check="file",
        text=f"{database.path} does not exist",
        remedy="run `timeoutmgr install`",
    )
