"""A finding: the result of one check, as a line of a doctor's report."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.message.redaction import masked


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a doctor's report."""

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
