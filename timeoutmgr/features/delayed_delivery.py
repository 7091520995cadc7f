"""Settings of delayed delivery through a delayed message store, and the start of the store."""

import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

from timeoutmgr import plugins
from timeoutmgr.contracts import (
    Closes,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    HasDatabase,
    StatesCapabilities,
    StoreCapabilities,
    TransactionMode,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.proof import require_durable
from timeoutmgr.errors import (
    ConfigurationError,
    SchemaMissing,
    StorageUnavailable,
    TransportUnavailable,
    WrongPair,
)
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import begin_anew_after_fork

logger = logging.getLogger(__name__)

_METHODS: Final = (
    *("initialize", "transaction", "store", "fetch_next_due_timeout", "remove"),
    *("increment_failure_count", "next"),
)
_TIMES: Final = (
    "time_to_trigger_store_circuit_breaker",
    "time_to_trigger_fetch_circuit_breaker",
    "time_to_trigger_dispatch_circuit_breaker",
)


@dataclass(frozen=True)
class DelayedDeliverySettings:
    """Settings for delayed messages that are kept in *store*, and sent from there when due.

    *number_of_retries* is how often storing or sending a message is retried before it goes to the
    error queue. A critical error is raised if storing, fetching or dispatching has failed for as
    long as its *time_to_trigger_..._circuit_breaker*, or if the recovery of failed messages fails
    more often than *maximum_recovery_failures_per_second*, over half a minute. If the store
    supports batches, *batch* messages are stored, or fetched and sent, in one transaction: a crash
    repeats at most that many.
    """

    store: DelayedMessageStore
    number_of_retries: int = 0
    time_to_trigger_store_circuit_breaker: timedelta = timedelta(seconds=30)
    time_to_trigger_fetch_circuit_breaker: timedelta = timedelta(seconds=30)
    time_to_trigger_dispatch_circuit_breaker: timedelta = timedelta(seconds=30)
    maximum_recovery_failures_per_second: float = 1
    batch: int = 200

    def __post_init__(self) -> None:
        """Check every value."""
        missing = _missing_methods(self.store)
        if missing:
            raise ConfigurationError(
                f"{self.store!r:.80} is no delayed message store: it has no {', '.join(missing)}; "
                "use timeoutmgr.persistence.SqlDelayedMessageStore, or see "
                "docs/reference/delayed-message-store.md for its methods"
            )
        retries = self.number_of_retries
        if not _is_whole(retries) or retries < 0:
            raise ConfigurationError(
                f"number_of_retries is a whole number from 0 (one attempt), got {retries!r}"
            )
        for name in _TIMES:
            wait = getattr(self, name)
            if not isinstance(wait, timedelta) or wait <= timedelta(0):
                raise ConfigurationError(f"{name} is a positive timedelta, got {wait!r}")
        rate: Any = self.maximum_recovery_failures_per_second
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
            raise ConfigurationError(
                f"maximum_recovery_failures_per_second is a positive number, got {rate!r}"
            )
        if not _is_whole(self.batch) or not 1 <= self.batch <= 1000:
            raise ConfigurationError(f"batch is 1 to 1000 messages, got {self.batch!r}")

    @property
    def attempts(self) -> int:
        """Total number of attempts at a message."""
        return 1 + self.number_of_retries

    @property
    def database(self) -> Database | None:
        """The SQL database of the store, if it has one."""
        return database_of(self.store)

    def close(self) -> None:
        """Close the store's connections, if it supports that."""
        if isinstance(self.store, Closes):
            self.store.close()

    @property
    def capabilities(self) -> StoreCapabilities:
        """The promises of the store; a store that states none counts as durable."""
        if isinstance(self.store, StatesCapabilities):
            found: object = self.store.capabilities
            if isinstance(found, StoreCapabilities):
                return found
        name = type(self.store).__name__
        return StoreCapabilities(name=name, durable=True, row_locks=True)


def delayed_delivery(
    *,
    store: str,
    schema: str | None = None,
    table: str | None = None,
    number_of_retries: int = 0,
    time_to_trigger_store_circuit_breaker: timedelta = timedelta(seconds=30),
    time_to_trigger_fetch_circuit_breaker: timedelta = timedelta(seconds=30),
    time_to_trigger_dispatch_circuit_breaker: timedelta = timedelta(seconds=30),
    maximum_recovery_failures_per_second: float = 1,
    batch: int = 200,
) -> DelayedDeliverySettings:
    """Return the settings for the store of a URL (or bare name), with values of a settings file."""
    name = store.partition("://")[0].partition("+")[0]
    given = {"schema": schema, "table": table}
    options = {key: value for key, value in given.items() if value is not None}
    made = plugins.load(plugins.DELAYED_STORES, name)(store, **options)
    return DelayedDeliverySettings(
        cast(DelayedMessageStore, made),
        number_of_retries=number_of_retries,
        time_to_trigger_store_circuit_breaker=time_to_trigger_store_circuit_breaker,
        time_to_trigger_fetch_circuit_breaker=time_to_trigger_fetch_circuit_breaker,
        time_to_trigger_dispatch_circuit_breaker=time_to_trigger_dispatch_circuit_breaker,
        maximum_recovery_failures_per_second=maximum_recovery_failures_per_second,
        batch=batch,
    )


def _missing_methods(stranger: object) -> list[str]:
    """Return the names of methods of a delayed message store that *stranger* lacks."""
    return [name for name in _METHODS if not callable(getattr(stranger, name, None))]


def database_of(store: DelayedMessageStore) -> Database | None:
    """Return the SQL database of *store*, if it has one."""
    found = store.database if isinstance(store, HasDatabase) else None
    return found if isinstance(found, Database) else None


@dataclass(slots=True, eq=False, weakref_slot=True)
class StoreStart:
    """Starts the store of an endpoint once: sets it up if installers are on, and initializes it.

    Thread-safe. An endpoint may start while the storage is out of reach: then the first use of the
    store after its return starts it.
    """

    store: DelayedMessageStore
    endpoint: str
    mode: TransactionMode
    _: KW_ONLY
    install: bool
    accept_loss: bool = False
    check_pair: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(init=False)
    _started: bool = field(default=False, init=False)
    _compared: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Make the lock, now and in each forked child."""
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: in a child it may stay locked by a thread of the parent."""
        self._lock = threading.Lock()

    def set_up(self) -> None:
        """Create the infrastructure of the store, if it has any; for installers."""
        if isinstance(self.store, DelayedMessageStoreWithInfrastructure):
            self.store.setup_infrastructure(self.endpoint)
            reach("delayed.set_up")

    def start(self, *, install: bool | None = None) -> None:
        """Start the store unless it has started; *install* False skips the installers this time.

        Raises StorageUnavailable, and ConfigurationError if the store refuses the endpoint.
        """
        with self._lock:
            if self._started:
                return
            if self.install if install is None else install:
                self.set_up()
            self.store.initialize(self.endpoint, self.mode)
            require_durable(database_of(self.store), accept_loss=self.accept_loss)
            self._started = True

    def compare(self) -> None:
        """Compare store and broker, once; retry later if the broker is down. Raises WrongPair."""
        with self._lock:
            if self._compared:
                return
            try:
                self.check_pair()
            except TransportUnavailable as error:
                logger.info(
                    "endpoint compares store and broker later, the broker is away: %s",
                    on_one_line(error),
                    extra={"event": "pair_unchecked", "endpoint": self.endpoint},
                )
                return
            self._compared = True

    def ready(self) -> None:
        """Ensure that the store is started and belongs to the broker. Raises StorageUnavailable."""
        try:
            self.start()
            self.compare()
        except (SchemaMissing, WrongPair) as error:
            # The tables may come later: an operator runs the installer while messages wait.
            raise StorageUnavailable(str(error)) from error

    def probe(self) -> None:
        """Return if the storage answers now; raise StorageUnavailable if not."""
        self.ready()
        self.store.next()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
