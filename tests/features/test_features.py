from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import EndpointConfiguration
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import ConfigurationError, FeatureRefused
from timeoutmgr.features.feature import (
    USUAL,
    FeatureContext,
    FeatureSettings,
    Prerequisite,
    check_prerequisites,
)
from timeoutmgr.features.parts import FeatureParts, ManagerRoute, Satellite
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.pump import Consumption


class Asking:
    """A feature with given prerequisites, which routes delays to *address*."""

    priority = USUAL

    def __init__(self, name: str, *asked: Prerequisite, address: str | None = None) -> None:
        self.name = name
        self._asked = asked
        self._address = address

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        return self._asked

    def set_up(self, context: FeatureContext) -> FeatureParts:
        if self._address is None:
            return FeatureParts()
        return FeatureParts(
            manager=ManagerRoute(self._address, lambda outgoing, _: Outgoing("x", outgoing.message))
        )


@pytest.fixture
def config() -> EndpointConfiguration:
    made = EndpointConfiguration("sales")
    made.use_transport(FakeTransport(), accept_loss=True)
    return made


def test_features_with_met_prerequisites_are_accepted(config: EndpointConfiguration) -> None:
    check_prerequisites([Asking("a", Prerequisite(True, "never said"))], config.settings())


def test_the_first_unmet_prerequisite_is_reported_with_its_feature(
    config: EndpointConfiguration,
) -> None:
    asking = Asking(
        "a", Prerequisite(True, "held"), Prerequisite(False, "first"), Prerequisite(False, "second")
    )

    with pytest.raises(FeatureRefused) as refused:
        check_prerequisites([asking], config.settings())

    assert str(refused.value) == "feature 'a': first"


@pytest.mark.behaviour(7)
def test_two_features_that_route_delays_are_refused(config: EndpointConfiguration) -> None:
    config.enable_feature(Asking("a", address="one.Timeouts"))
    config.enable_feature(Asking("b", address="two.Timeouts"))

    with pytest.raises(ConfigurationError, match=r"'one\.Timeouts'.*'two\.Timeouts'"):
        assemble(config.settings())


@pytest.mark.behaviour(7)
def test_a_feature_that_routes_delays_beside_an_external_manager_is_refused(
    config: EndpointConfiguration,
) -> None:
    config.enable_feature(Asking("a", address="one.Timeouts"))
    config.use_external_timeout_manager("two.Timeouts")

    with pytest.raises(ConfigurationError, match="already set the timeout manager address"):
        assemble(config.settings())


@pytest.mark.behaviour(16)
def test_a_satellite_without_threads_is_refused() -> None:
    consumption = Consumption(name="Idle", queue="sales.Idle", step=lambda batch, work: None)

    with pytest.raises(ConfigurationError, match="'Idle' needs at least one thread, got 0"):
        Satellite(consumption=consumption, concurrency=0)
