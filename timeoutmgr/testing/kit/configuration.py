"""A user's configuration whose queues, timeouts and clock are in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from timeoutmgr import plugins
from timeoutmgr.contracts import Persistence, TransactionMode, Transport
from timeoutmgr.endpoint.assembly import mode_of
from timeoutmgr.endpoint.configuration import (
    EndpointConfiguration,
    EndpointSettings,
    embedded_url,
    persistence_from_url,
    transport_from_url,
)
from timeoutmgr.features.feature import (
    USUAL,
    Feature,
    FeatureContext,
    FeatureSettings,
    ManagerDisabled,
    Prerequisite,
    check_prerequisites,
)
from timeoutmgr.features.parts import FeatureParts
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.testing.kit.clock import KitClock
from timeoutmgr.testing.kit.transport import KitTransport
from timeoutmgr.transport.delivery_policy import DeliveryPolicies, SendingPolicy

if TYPE_CHECKING:
    from timeoutmgr.contracts import DeliveryOptions

MANAGER: Final = "timeout-manager"
_STORED_COPIES: Final = "dead-letter-queues"
_OUTSIDE: Final = frozenset({_STORED_COPIES, "delayed-delivery", "native-delayed-delivery"})
"""Features that work in a broker or in their own database."""

RAISE_AT_ONCE: Final = RecoverabilitySettings(immediate=1, delayed=0)
"""The recoverability of a kit that raises the errors of handlers."""


class KitConfiguration(EndpointConfiguration):
    """A copy of *given*; its endpoint opens no connection to the parts that *given* names.

    The settings are checked with the parts that *given* names. The mode stays the same, with one
    exception: memory and the kit's database are not one database, so ``transaction_scope`` becomes
    ``sends_atomic_with_receive``, in which handlers have the same transaction.
    """

    def __init__(
        self,
        given: EndpointConfiguration,
        transport: KitTransport,
        clock: KitClock,
        *,
        raises: bool,
    ) -> None:
        vars(self).update(vars(given))  # *given* may be frozen, and in use by its own endpoint
        memory = plugins.load(plugins.PERSISTENCE, "memory")
        self._replaced: dict[str, Any] = {
            "transport": transport,
            "persistence": cast(Persistence, memory(accept_loss=True)),
            "clock": clock,
            **({"recoverability": RAISE_AT_ONCE} if raises else {}),
        }
        self._name_embedded_parts()
        self.given: Final = super().settings()
        """The user's settings."""
        check_prerequisites(self.given.features, self.given)

    if not TYPE_CHECKING:  # as in the base class

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)

    def freeze(self) -> None:
        """Do nothing: this copy belongs to the kit."""

    @property
    def stores_elsewhere(self) -> bool:
        """Whether the endpoint's own timeout manager does not store its delayed messages."""
        return all(feature.name != MANAGER for feature in self.given.features)

    @property
    def _delays(self) -> bool:
        names = {feature.name for feature in self.given.features}
        external = self.given.external_timeout_manager is not None
        return external or bool(names & {MANAGER, "delayed-delivery", "native-delayed-delivery"})

    def settings(self) -> EndpointSettings:
        """Return the settings with the parts of the kit."""
        given = self.given
        mode = mode_of(given)
        scope = mode is TransactionMode.TRANSACTION_SCOPE
        return replace(
            given,
            **self._replaced,
            features=tuple(self._features_in_memory()),
            transaction_mode=TransactionMode.SENDS_ATOMIC_WITH_RECEIVE if scope else mode,
            accept_loss=True,
            send_only=False,  # delayed messages of the endpoint wait in its kit
            external_timeout_manager=None,
            delayed_delivery=None,
            manager_disabled=ManagerDisabled.NOT_SAID,
            handler_batch=1,
            concurrency=1,
        )

    def _features_in_memory(self) -> Iterable[Feature]:
        """Yield the features that work in memory, with a timeout manager if messages are delayed.

        This manager replaces delay levels, a delayed message store, or another endpoint's manager.
        """
        names = {feature.name for feature in self.given.features}
        yield from (feature for feature in self.given.features if feature.name not in _OUTSIDE)
        if self._delays and MANAGER not in names:
            yield cast(Feature, plugins.load(plugins.FEATURES, MANAGER)())
        if _STORED_COPIES in names:
            yield _AcceptedDelivery()

    def _name_embedded_parts(self) -> None:
        """Set the default parts, once for all kits: creating them takes milliseconds."""
        own = vars(self)
        if own["_transport"] is None:
            transport, persistence = _embedded(embedded_url())
            own["_transport"] = transport
            if MANAGER in own["_features"] and own["_persistence"] is None:
                own["_persistence"] = persistence


@lru_cache(maxsize=1)
def _embedded(url: str) -> tuple[Transport, Persistence]:
    return transport_from_url(url), persistence_from_url(url)


class _AcceptingPolicy(SendingPolicy):
    """Accepts the options of deliveries, and keeps no copies."""

    def delivery_headers(
        self, options: "DeliveryOptions | None", headers: Mapping[str, str], destination: str
    ) -> Mapping[str, str]:
        return {}


class _AcceptedDelivery:
    """Replaces the feature that keeps copies of messages in its own database."""

    name: Final = "accepted-delivery"
    priority: Final = USUAL

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        return ()

    def set_up(self, context: FeatureContext) -> FeatureParts:
        return FeatureParts(delivery=DeliveryPolicies(sending=_AcceptingPolicy()))
