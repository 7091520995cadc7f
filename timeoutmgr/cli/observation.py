"""Observation of a run: by a metrics address, a service manager, or a supervisor's memory.

Without these, no further module is imported, and no event is counted a second time.
"""

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from timeoutmgr.cli.output import text_formatter
from timeoutmgr.errors import ConfigurationError

if TYPE_CHECKING:
    from timeoutmgr.endpoint.configuration import EndpointConfiguration
    from timeoutmgr.metrics.memory import CountMemory
    from timeoutmgr.metrics.observer import FleetObserver, Observer


class MetricsAddress(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """An address and a port: ``127.0.0.1:9464``, ``[::1]:9464``."""

    name = "address:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return host and port; fail for other text."""
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"{value!r} is not an address and a port, such as 127.0.0.1:9464", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observers of a run; *counts* is the descriptor of a supervisor's memory."""

    metrics_address: tuple[str, int] | None = None
    counts: int | None = None
    log_format: str = "text"

    def formatter(self, process: int | None) -> logging.Formatter:
        """Return the formatter of the log lines of child *process*, or None for a parent."""
        if self.log_format != "json":
            return text_formatter(process)
        from timeoutmgr.cli.log_format import JsonFormatter

        return JsonFormatter(process)

    def prepare_log(self, config: "EndpointConfiguration") -> None:
        """Add a message's ids to log lines about it, also to lines of *config*'s handlers."""
        if self.log_format == "json":
            from timeoutmgr.cli.log_format import note_handled

            note_handled(config)

    @property
    def is_wanted(self) -> bool:
        """Whether the run of a process without a supervisor is observed."""
        return self.metrics_address is not None or bool(os.environ.get("NOTIFY_SOCKET"))

    def of_process(self, number: int | None) -> "Observer | None":
        """Return the observer of this process: child *number*, or None without a supervisor."""
        if number is not None:
            if self.counts is None:
                return None
            from timeoutmgr.metrics.observer import Observer

            return Observer.of_child(self.counts, number)
        if not self.is_wanted:
            return None
        from timeoutmgr.metrics.notification import ServiceManager
        from timeoutmgr.metrics.observer import Observer

        return Observer.alone(ServiceManager.of(os.environ))

    def of_fleet(self, processes: int) -> "FleetObserver | None":
        """Return the observer of *processes* children."""
        if not self.is_wanted:
            return None
        from timeoutmgr.metrics.notification import ServiceManager
        from timeoutmgr.metrics.observer import FleetObserver

        return FleetObserver(processes, ServiceManager.of(os.environ))

    @contextmanager
    def served(self, memory: "CountMemory", endpoint: str) -> Iterator[None]:
        """Serve metrics and probes, if an address was given, until the block ends.

        The supervisor serves the counts of its children, which inherit the address in a variable.
        """
        if self.metrics_address is None or self.counts is not None:
            yield
            return
        if importlib.util.find_spec("prometheus_client") is None:
            raise ConfigurationError(
                "--metrics-address needs prometheus_client; install it with: "
                "pip install 'timeoutmgr[metrics]'"
            )
        from timeoutmgr.metrics.server import serving

        with serving(*self.metrics_address, memory, endpoint):
            yield
