"""The environment of a run: its names, its servers, and the settings of its processes."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from sqlalchemy import make_url

from chaos.handling import HandlingPlan
from timeoutmgr import EndpointConfiguration
from timeoutmgr.contracts import DelayedMessageStore, Persistence, Transport
from timeoutmgr.database import same_database
from timeoutmgr.deadletter import DeadLetterQueues, DeadLetterStore
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.features.delayed_delivery import delayed_delivery
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS
from timeoutmgr.settings.file import configuration_from

ENVIRONMENT: Final = "CHAOS_ENVIRONMENT"
"""Environment variable that names the environment's file."""
PROCESS: Final = "CHAOS_PROCESS"
"""Environment variable with the name of the process, such as ``worker-1#7`` for its 7th life."""

CONSUMING: Final = 8
"""Threads of the consumer: in a database each message is a transaction with round trips."""

_NATIVE: Final = "native-delayed-delivery"
_NEVER: Final = "10m"
"""Time until an outage is critical: outages of a run must not end its processes."""
_DATABASES: Final = ("sqlite", "postgresql", "mysql", "mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Names, servers and files of a run. *suffix* separates its queues and tables on a server.

    With *delayed_store* a delayed message store replaces the timeout manager; with *dead_letters*
    there are dead-letter queues, of the run's own node. A *mixed* fleet has a second endpoint,
    whose delays are in RabbitMQ's levels; *sends_natively* marks its processes. *levels* says
    whether levels take part. *failing* and *awaited* are the shares of the handling plan, *foreign*
    is the share of another program's messages. With *split* the queues of the endpoints are in the
    store's database, and those of the consumer are at the broker.
    """

    folder: str
    broker: str
    store: str
    suffix: str
    claim_time: float
    seed: int
    delayed_store: bool = False
    dead_letters: bool = False
    levels: bool = False
    mixed: bool = False
    sends_natively: bool = False
    failing: float = 0.0
    awaited: float = 0.0
    foreign: float = 0.0
    split: bool = False

    @classmethod
    def load(cls) -> "Environment":
        """Return the environment that this process is part of."""
        return cls(**json.loads(Path(os.environ[ENVIRONMENT]).read_text(encoding="utf-8")))

    def save(self, name: str) -> Path:
        """Write the environment into a file in the run's folder; return its path."""
        path = self.file(f"{name}.json")
        write_privately(path, json.dumps(asdict(self)))
        write_privately(self.settings_of(name), self._settings())
        return path

    def file(self, name: str) -> Path:
        """Return the path of a file of this run."""
        return Path(self.folder) / name

    def settings_of(self, name: str) -> Path:
        """Return the settings file of the process *name*."""
        return self.file(f"{name}.toml")

    @property
    def manager(self) -> str:
        """The endpoint that keeps the timeouts; workers and producers belong to it."""
        return f"chaos{self.suffix}"

    @property
    def native(self) -> str:
        """The second endpoint of a mixed fleet; its store keeps delays too long for the levels."""
        return f"native{self.suffix}"

    @property
    def endpoints(self) -> list[str]:
        """The sending endpoints."""
        return [self.manager, self.native] if self.mixed else [self.manager]

    @property
    def own(self) -> str:
        """The endpoint of this process."""
        return self.native if self.sends_natively else self.manager

    @property
    def other(self) -> str:
        """The endpoint of the other kind."""
        return self.manager if self.sends_natively else self.native

    @property
    def handling(self) -> HandlingPlan:
        """How the consumer handles each message."""
        return HandlingPlan(seed=self.seed, failing=self.failing, awaited=self.awaited)

    @property
    def consumer(self) -> str:
        """The endpoint that receives the messages."""
        return f"consumer{self.suffix}"

    @property
    def nowhere(self) -> str:
        """A queue that does not exist."""
        return f"nowhere{self.suffix}"

    @property
    def node(self) -> str:
        """The node with the dead-letter queues."""
        return f"chaos{self.suffix}"

    @property
    def errors(self) -> str:
        """The error queue of all."""
        return f"errors{self.suffix}"

    @property
    def prefix(self) -> str:
        """Prefix of all table names."""
        return f"chaos{self.suffix}_"

    @property
    def satellites(self) -> list[str]:
        """The queues of the endpoints' satellites."""
        delayed = (DELAYED,) if self.delayed_store else (TIMEOUTS, DISPATCHER)
        dead = (ACKNOWLEDGEMENTS,) if self.dead_letters else ()
        return [one + name for one in self.endpoints for name in (*delayed, *dead)]

    @property
    def queues_of_endpoints(self) -> list[str]:
        """The queues of the sending endpoints."""
        return [*self.endpoints, *self.satellites]

    @property
    def queues_of_consumer(self) -> list[str]:
        """The consumer's queue, and the error queue of all."""
        return [self.consumer, self.errors]

    @property
    def urls(self) -> list[str]:
        """The servers."""
        return [self.store, self.broker]

    @property
    def drivers(self) -> list[str]:
        """Modules of the clients of both servers."""
        return [name for url in self.urls for name in _drivers(url)]

    @property
    def one_database(self) -> bool:
        """Whether queues and store share a database: then every step is one transaction."""
        return is_database(self.broker) and same_database(
            make_url(self.broker), make_url(self.store)
        )

    def is_foreign(self, name: str) -> bool:
        """Return whether the message *name* comes from another program."""
        return Random(f"{self.seed} foreign {name}").random() < self.foreign

    @property
    def own_queues(self) -> str:
        """The URL of the endpoints' queues."""
        return self.store if self.split else self.broker

    def own_transport(self) -> Transport:
        """Return the transport of the endpoints' queues, as in the settings file."""
        return self._transport(self.own_queues)

    def transport(self) -> Transport:
        """Return the transport of the consumer's queues."""
        return self._transport(self.broker)

    def _transport(self, url: str) -> Transport:
        return transport_from_url(url, **({"prefix": self.prefix} if is_database(url) else {}))

    def persistence(self) -> Persistence:
        """Return the persistence."""
        return persistence_from_url(self.store, prefix=self.prefix)

    def delayed(self) -> DelayedMessageStore:
        """Return the delayed message store."""
        return delayed_delivery(store=self.store, table=self._delayed_table).store

    def queue_manager(self) -> QueueManager:
        """Return the queue manager of the node."""
        store = DeadLetterStore(self.store, prefix=self.prefix)
        return QueueManager(store=store, node=self.node)

    def worker(self, name: str) -> EndpointConfiguration:
        """Return the endpoint of the process *name*, by its settings file."""
        config = configuration_from(self.settings_of(name), {})
        if self.dead_letters:
            # In Python: a settings file has no key for the prefix of the tables.
            config.enable_feature(
                DeadLetterQueues(node=self.node, store=self.queue_manager().store)
            )
        return config

    def receiving(self) -> EndpointConfiguration:
        """Return the consumer's configuration, without handlers."""
        config = EndpointConfiguration(self.consumer)
        config.use_transport(self.transport())
        config.error_queue = self.errors
        config.concurrency = CONSUMING
        return config

    def _settings(self) -> str:
        tables: dict[str, Mapping[str, object]] = {}
        top: dict[str, object] = {
            "endpoint": self.own,
            "transport": self.own_queues,
            "error_queue": self.errors,
            # Messages that must become dead letters have a destination that does not exist.
            "check_destinations": not self.dead_letters,
        }
        if self.delayed_store:
            tables["delayed_delivery"] = self._of_delayed_store
        else:
            native = {_NATIVE: {"fallback_to_store": True}} if self.sends_natively else {}
            top |= {"persistence": self.store, "features": ["timeout-manager", *native]}
            tables |= self._of_manager | native
        if is_database(self.own_queues):
            lease = f"{max(self.claim_time, 1.0):g}s"
            elsewhere = {"destinations": self.broker} if self.split else {}
            tables["transport_options"] = {"prefix": self.prefix, "lease": lease, **elsewhere}
        return settings_text(top, tables)

    @property
    def _of_manager(self) -> dict[str, Mapping[str, object]]:
        return {
            "persistence_options": {
                "prefix": self.prefix,
                "claim_time": f"{self.claim_time:g}s",
                "history": "full",
            },
            "timeout-manager": {"time_to_wait_before_critical_error": _NEVER},
        }

    @property
    def _of_delayed_store(self) -> Mapping[str, object]:
        breakers = ("store", "fetch", "dispatch")
        return {
            "store": self.store,
            "table": self._delayed_table,
            "maximum_recovery_failures_per_second": 1_000,
            **{f"time_to_trigger_{name}_circuit_breaker": _NEVER for name in breakers},
        }

    @property
    def _delayed_table(self) -> str:
        return f"{self.prefix}delayed"


def scheme(url: str) -> str:
    """Return the kind of server of *url*, without its driver."""
    return url.removeprefix("timeoutmgr+").partition("://")[0].partition("+")[0]


def _drivers(url: str) -> list[str]:
    if not is_database(url):
        return ["kombu.transport.pyamqp"]
    made = make_url(url)
    client = made.get_dialect().import_dbapi().__name__
    return [client, f"sqlalchemy.dialects.{made.get_backend_name()}"]


def is_database(url: str) -> bool:
    """Return whether *url* names a database that can hold queues and timeouts."""
    return scheme(url) in _DATABASES


def settings_text(top: Mapping[str, object], tables: Mapping[str, Mapping[str, object]]) -> str:
    """Return a settings file."""
    lines = [f"{key} = {_text(value)}" for key, value in top.items()]
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_text(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def write_privately(path: Path, content: str) -> None:
    """Write a file that no other user can read: the URLs may hold passwords."""
    path.touch(mode=0o600)
    path.write_text(content, encoding="utf-8")


def _text(value: object) -> str:
    return json.dumps(value)  # JSON strings, numbers, booleans and lists are valid TOML
