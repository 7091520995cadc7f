"""A run that could not work is refused before it begins."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import ChaosSettings
from timeoutmgr.errors import ConfigurationError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("seconds", 0.0), ("workers", 0), ("cancelled", 1.1), ("dead", -0.1)),
        *(("failing", 1.1), ("awaited", -0.1), ("foreign", 1.1)),
        ("kill_every", (2.0, 1.0)),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, value: Any) -> None:
    given: dict[str, Any] = {setting: value}

    with pytest.raises(ConfigurationError, match=setting):
        ChaosSettings(**given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"native": True}, "RabbitMQ"),
        ({"migrate": True, "broker": "redis://localhost"}, "RabbitMQ"),
        ({"migrate": True, "broker": "amqp://localhost", "delayed_store": True}, "delayed_store"),
        ({"migrate": True, "broker": "amqp://h", "dead": 0.1}, "dead"),
        ({"native": True, "broker": "amqp://localhost", "producers": 1}, "producers"),
        ({"split": True, "store": "postgresql://localhost"}, "broker"),
        (
            {"split": True, "store": "sqlite:///a", "broker": "amqp://localhost", "dead": 0.1},
            "dead",
        ),
    ],
)
def test_settings_that_delay_levels_cannot_serve_are_refused(
    given: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        ChaosSettings(**given)
