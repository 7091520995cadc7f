"""Circuit breakers of an endpoint, made for its features and checked by its watchdog."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from timeoutmgr.contracts import Clock, SharedDatabase
from timeoutmgr.database import as_database
from timeoutmgr.database.places import server_of
from timeoutmgr.resilience.breakers import OutageBreaker, RateBreaker, SharedOutage
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.resilience.silence import SilenceWatch


class Breakers:
    """Makes circuit breakers that raise critical errors, and keeps them in order of creation."""

    def __init__(self, critical: CriticalErrors, clock: Clock) -> None:
        self._critical = critical
        self._clock = clock
        self._made: list[OutageBreaker | RateBreaker] = []
        self._silences: list[SilenceWatch] = []
        self._outages: dict[str, SharedOutage] = {}

    def __iter__(self) -> Iterator[OutageBreaker | RateBreaker]:
        return iter(tuple(self._made))

    @property
    def silences(self) -> tuple[SilenceWatch, ...]:
        """The watches over servers that may hang."""
        return tuple(self._silences)

    @property
    def states(self) -> dict[str, str]:
        """The state of each breaker by its name."""
        return {breaker.name: breaker.state.value for breaker in self._made}

    def outage_in(self, database: SharedDatabase | None) -> SharedOutage:
        """Return the outage that breakers over *database* share; without a database, a new outage.

        Queues and timeouts in the same database share it, however their URLs are written.
        """
        if database is None:
            return SharedOutage()
        return self._outages.setdefault(server_of(as_database(database).url), SharedOutage())

    def over_outages(
        self, name: str, wait: timedelta, sentence: str, outage: SharedOutage | None = None
    ) -> OutageBreaker:
        """Return a breaker that raises *sentence* as a critical error after *wait*.

        It raises nothing if another breaker over the same *outage* has raised its sentence.
        """
        shared = outage or SharedOutage()

        def trigger(error: BaseException) -> None:
            if not shared.is_reported(made):
                self._critical.raise_error(sentence, error)

        made = OutageBreaker(name, time_to_wait=wait, on_trigger=trigger, clock=self._clock)
        self._made.append(made)
        return made

    def over_rates(self, name: str, per_second: float, sentence: str) -> RateBreaker:
        """Return a breaker that raises *sentence* as a critical error above a rate of failures."""
        trigger = partial(self._critical.raise_error, sentence)
        made = RateBreaker(name, per_second=per_second, on_trigger=trigger, clock=self._clock)
        self._made.append(made)
        return made

    def watch_silence(
        self, database: SharedDatabase | None, breaker: OutageBreaker, wait: timedelta
    ) -> None:
        """Arm *breaker* while *database* leaves calls unanswered, unless it is a file."""
        if database is not None and not database.is_sqlite:
            self._silences.append(SilenceWatch(database, breaker, wait.total_seconds()))
