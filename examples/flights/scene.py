"""The environment of one run of the example: its names, its URLs and its files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from chaos.environment import is_database, settings_text, write_privately
from timeoutmgr import EndpointConfiguration
from timeoutmgr.contracts import Persistence, Transport
from timeoutmgr.database import same_database
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run. *suffix* separates its queues and tables on a shared server."""

    folder: str
    broker: str
    store: str
    suffix: str
    seconds: float

    @classmethod
    def load(cls, path: str) -> "Scene":
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def save(self) -> None:
        """Write the files that the processes of the run read."""
        write_privately(self.file("scene.json"), json.dumps(asdict(self)))
        write_privately(self.file("flights.toml"), self._settings())

    def file(self, name: str) -> Path:
        return Path(self.folder) / name

    @property
    def flights(self) -> str:
        """The endpoint that keeps the notices until they are due."""
        return f"flights{self.suffix}"

    @property
    def board(self) -> str:
        """The endpoint that receives the notices."""
        return f"board{self.suffix}"

    @property
    def errors(self) -> str:
        return f"errors{self.suffix}"

    @property
    def prefix(self) -> str:
        """The prefix of all table names."""
        return f"flights{self.suffix}_"

    @property
    def urls(self) -> list[str]:
        return [self.store, self.broker]

    @property
    def queues(self) -> list[str]:
        satellites = [f"{self.flights}.Timeouts", f"{self.flights}.TimeoutsDispatcher"]
        return [self.flights, *satellites, self.board, self.errors]

    def transport(self) -> Transport:
        options = {"prefix": self.prefix} if is_database(self.broker) else {}
        return transport_from_url(self.broker, **options)

    def persistence(self) -> Persistence:
        return persistence_from_url(self.store, prefix=self.prefix)

    @property
    def one_database(self) -> bool:
        """Whether queues and store share a database: then every step is one transaction."""
        queues, store = self.transport().database, self.persistence().database
        return queues is not None and store is not None and same_database(queues.url, store.url)

    def endpoint(self, name: str) -> EndpointConfiguration:
        """Return a configuration on this scene's broker, without features or handlers."""
        config = EndpointConfiguration(name)
        config.use_transport(self.transport())
        config.error_queue = self.errors
        return config

    def _settings(self) -> str:
        """Return the settings file of the workers; they need no code."""
        options = {"prefix": self.prefix}
        tables = {"persistence_options": options}
        if is_database(self.broker):
            tables["transport_options"] = options
        top = {
            "endpoint": self.flights,
            "transport": self.broker,
            "persistence": self.store,
            "features": ["timeout-manager"],
            "error_queue": self.errors,
        }
        return settings_text(top, tables)
