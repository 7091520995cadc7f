"""Features: abilities of an endpoint beyond sending and handling, with checks and a set-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from timeoutmgr.contracts import Clock, Persistence, TransactionMode, Transport
from timeoutmgr.errors import FeatureRefused
from timeoutmgr.features.breakers import Breakers
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.features.parts import FeatureParts
from timeoutmgr.message.routes import DelayRoute
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import PLAIN, DeliveryPolicies

FIRST: Final = 0
"""Priority of a feature whose parts other features use: delivery policies."""
USUAL: Final = 10
LAST: Final = 20
"""Priority of a feature that uses the route of another feature: native delayed delivery."""


class ManagerDisabled(Enum):
    """Whether the settings say that there is no timeout manager beside native delayed delivery."""

    NOT_SAID = "not said"
    ONCE_DRAINED = "once drained"
    FORCED = "forced"


class FeatureSettings(Protocol):
    """Contract of the endpoint settings that features read."""

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        ...

    @property
    def transport(self) -> Transport:
        """The way to the queues."""
        ...

    @property
    def persistence(self) -> Persistence | None:
        """The persistence of timeouts."""
        ...

    @property
    def features(self) -> Sequence[Feature]:
        """The enabled features."""
        ...

    @property
    def delayed_delivery(self) -> DelayedDeliverySettings | None:
        """The settings of a delayed message store, or None."""
        ...

    @property
    def external_timeout_manager(self) -> str | None:
        """The address of an external timeout manager."""
        ...

    @property
    def manager_disabled(self) -> ManagerDisabled:
        """Whether the timeout manager is disabled."""
        ...

    @property
    def send_only(self) -> bool:
        """Whether the endpoint receives nothing."""
        ...

    @property
    def input_queue(self) -> str:
        """The queue of the endpoint's own handlers."""
        ...

    @property
    def error_queue(self) -> str:
        """The queue of failed messages."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of messages."""
        ...

    @property
    def install(self) -> bool:
        """Whether the start creates missing queues and tables."""
        ...

    @property
    def accept_loss(self) -> bool:
        """Whether messages may be lost."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of this host."""
        ...


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """A condition of a feature, with a sentence that explains why it is not met."""

    holds: bool
    sentence: str

    @classmethod
    def no_external_manager(cls, settings: FeatureSettings) -> Prerequisite:
        """Return the prerequisite that the endpoint has no external timeout manager."""
        return cls(
            settings.external_timeout_manager is None,
            "A user configured timeoutmanager address has been found and this endpoint will send "
            "timeouts to that endpoint. Use one of the two.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureContext:
    """The endpoint as a feature sees it during the set-up.

    *delivery* and *stored_delays* come from features that were set up before.
    """

    settings: FeatureSettings
    mode: TransactionMode
    new_id: Callable[[], str]
    telemetry: Telemetry
    critical: CriticalErrors
    breakers: Breakers
    owner: str
    delivery: DeliveryPolicies = PLAIN
    stored_delays: DelayRoute | None = None

    @property
    def transport(self) -> Transport:
        """The way to the queues."""
        return self.settings.transport

    @property
    def clock(self) -> Clock:
        """The clock of this host."""
        return self.settings.clock


class Feature(Protocol):
    """A capability that is enabled in the configuration."""

    @property
    def name(self) -> str:
        """Its name in configuration files."""
        ...

    @property
    def priority(self) -> int:
        """Its priority in the set-up, the lowest first; see FIRST, USUAL and LAST."""
        ...

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        """Return the conditions; the first that is not met prevents the start with its sentence."""
        ...

    def set_up(self, context: FeatureContext) -> FeatureParts:
        """Return satellites, tasks and routes for the endpoint; no I/O yet."""
        ...


def check_prerequisites(features: Iterable[Feature], settings: FeatureSettings) -> None:
    """Raise FeatureRefused with the sentence of the first prerequisite that is not met."""
    for feature in features:
        for prerequisite in feature.prerequisites(settings):
            if not prerequisite.holds:
                raise FeatureRefused(f"feature {feature.name!r}: {prerequisite.sentence}")
