"""How the consumer handles a message: drawn from the seed and the message's name. No I/O."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

PLAIN: Final = "Ping"
AWAITED: Final = "AwaitedPing"
"""The message type that a coroutine handles."""
_ONCE: Final = 0.5
"""Share of failing messages that fail once; the handler of the other messages fails always."""


class Failing(StrEnum):
    """How often the handler of a message fails."""

    NEVER = "never"
    ONCE = "once"
    """At the first attempt of each incarnation of the consumer."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingPlan:
    """Chooses for each message whether its handler fails, and whether a coroutine handles it.

    *failing* and *awaited* are shares of all messages. Each choice has its own generator: a
    change of a share does not move the other choices.
    """

    seed: int
    failing: float
    awaited: float

    def failing_of(self, name: str) -> Failing:
        """Return how often the handler of the message *name* fails."""
        chance = Random(f"{self.seed} failing {name}")
        if chance.random() >= self.failing:
            return Failing.NEVER
        return Failing.ONCE if chance.random() < _ONCE else Failing.ALWAYS

    def message_type(self, name: str) -> str:
        """Return the type of the message *name*, which decides on its handler."""
        is_awaited = Random(f"{self.seed} awaited {name}").random() < self.awaited
        return AWAITED if is_awaited else PLAIN
