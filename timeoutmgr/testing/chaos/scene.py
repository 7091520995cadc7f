"""Where one run takes place: its names, its URLs and its files; read by each of its processes."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import make_url

from timeoutmgr import EndpointConfiguration
from timeoutmgr.config import persistence_from_url, transport_from_url
from timeoutmgr.contracts import Persistence, Transport
from timeoutmgr.database import same_database
from timeoutmgr.settings_file import configuration_from

SCENE: Final = "CHAOS_SCENE"
"""Environment variable that names the scene's file."""
PROCESS: Final = "CHAOS_PROCESS"
"""Environment variable with the name of the process, such as ``worker-1#7`` for its 7th life."""

_DATABASES: Final = ("sqlite", "postgresql", "mysql", "mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run. *suffix* keeps its queues and tables apart from all others on a shared server."""

    folder: str
    broker: str
    store: str
    suffix: str
    claim_time: float
    seed: int

    @classmethod
    def load(cls) -> "Scene":
        """Return the scene that this process is part of."""
        return cls(**json.loads(Path(os.environ[SCENE]).read_text(encoding="utf-8")))

    def save(self, name: str) -> Path:
        """Write it into a file of the run's folder; return where."""
        path = self.file(f"{name}.json")
        self._write(path, json.dumps(asdict(self)))
        self._write(self.settings_of(name), self._settings())
        return path

    def file(self, name: str) -> Path:
        """Return the path of a file of this run."""
        return Path(self.folder) / name

    def settings_of(self, name: str) -> Path:
        """Return the settings file of the process *name*."""
        return self.file(f"{name}.toml")

    @property
    def manager(self) -> str:
        """The endpoint that keeps the timeouts; all workers and producers are of it."""
        return f"chaos{self.suffix}"

    @property
    def consumer(self) -> str:
        """The endpoint that the messages are for."""
        return f"consumer{self.suffix}"

    @property
    def errors(self) -> str:
        """The error queue of all."""
        return f"errors{self.suffix}"

    @property
    def prefix(self) -> str:
        """How the names of all tables begin."""
        return f"chaos{self.suffix}_"

    @property
    def satellites(self) -> list[str]:
        """The queues of the timeout manager."""
        return [f"{self.manager}.Timeouts", f"{self.manager}.TimeoutsDispatcher"]

    @property
    def queues(self) -> list[str]:
        """All queues of the run."""
        return [self.manager, *self.satellites, self.consumer, self.errors]

    @property
    def broker_is_database(self) -> bool:
        """Whether the queues are tables."""
        return scheme(self.broker) in _DATABASES

    @property
    def one_database(self) -> bool:
        """Whether queues and store share a database: then every step is one transaction."""
        return self.broker_is_database and same_database(
            make_url(self.broker), make_url(self.store)
        )

    def transport(self) -> Transport:
        """Return the transport, as the settings file has it."""
        options = {"prefix": self.prefix} if self.broker_is_database else {}
        return transport_from_url(self.broker, **options)

    def persistence(self) -> Persistence:
        """Return the persistence."""
        return persistence_from_url(self.store, prefix=self.prefix)

    def worker(self, name: str) -> EndpointConfiguration:
        """Return what the settings file of the process *name* says: an endpoint with a manager."""
        return configuration_from(self.settings_of(name), {})

    def receiving(self) -> EndpointConfiguration:
        """Return the consumer's configuration, without handlers."""
        config = EndpointConfiguration(self.consumer)
        config.use_transport(self.transport())
        config.error_queue = self.errors
        return config

    def _settings(self) -> str:
        tables: dict[str, dict[str, Any]] = {
            "persistence_options": {
                "prefix": self.prefix,
                "claim_time": f"{self.claim_time:g}s",
                "history": "full",
            },
            # An outage is what a run is about: it must not end the processes.
            "timeout-manager": {"time_to_wait_before_critical_error": "10m"},
        }
        if self.broker_is_database:
            lease = f"{max(self.claim_time, 1.0):g}s"
            tables["transport_options"] = {"prefix": self.prefix, "lease": lease}
        top = {
            "endpoint": self.manager,
            "transport": self.broker,
            "persistence": self.store,
            "error_queue": self.errors,
        }
        lines = [f"{key} = {_text(value)}" for key, value in top.items()]
        lines.append('features = ["timeout-manager"]')
        for table, values in tables.items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {_text(value)}" for key, value in values.items()]
        return "\n".join(lines) + "\n"

    def _write(self, path: Path, content: str) -> None:
        path.touch(mode=0o600)  # the URLs may hold passwords
        path.write_text(content, encoding="utf-8")


def scheme(url: str) -> str:
    """Return the kind of server of *url*, without its driver."""
    return url.removeprefix("timeoutmgr+").partition("://")[0].partition("+")[0]


def _text(value: str) -> str:
    return json.dumps(value)  # a string of JSON is one of TOML
