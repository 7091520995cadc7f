"""The extension of Flask: settings, handlers, the app's endpoint and its command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g
from flask_sqlalchemy import SQLAlchemy

from timeoutmgr.contrib.flask import FlaskTimeouts, configuration
from timeoutmgr.errors import ConfigurationError, UnknownSetting

SETTINGS = {"endpoint": "shop", "features": ["timeout-manager"]}


def make_app(timeouts: FlaskTimeouts, url: str | None = None, **settings: Any) -> Flask:
    """Return an app with *timeouts*, and with Flask-SQLAlchemy if *url* is given."""
    app = Flask("shop")
    app.config["TIMEOUTMGR"] = {**SETTINGS, **settings}
    if url is not None:
        app.config["SQLALCHEMY_DATABASE_URI"] = url
        SQLAlchemy().init_app(app)
    timeouts.init_app(app)
    return app


def test_queues_and_timeouts_rest_in_the_database_of_flask_sqlalchemy(
    sqlite_url: str, tmp_path: Path
) -> None:
    app = make_app(FlaskTimeouts(), sqlite_url)
    named = make_app(FlaskTimeouts(), sqlite_url, transport=f"sqlite:///{tmp_path / 'named.db'}")

    own, other = (each.extensions["timeoutmgr"].configuration().settings() for each in (app, named))

    assert (own.transport.describe(), own.persistence.database.describe()) == (sqlite_url,) * 2
    assert other.transport.describe().endswith("/named.db")
    assert other.persistence.database.describe() == sqlite_url


def test_an_app_without_flask_sqlalchemy_has_the_embedded_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEOUTMGR_DATA", str(tmp_path / "embedded.db"))

    made = make_app(FlaskTimeouts()).extensions["timeoutmgr"].configuration().settings()

    assert made.transport.describe().endswith("/embedded.db")


def test_each_app_has_an_endpoint_of_its_own_for_all_its_uses(sqlite_url: str) -> None:
    timeouts = FlaskTimeouts()
    one, two = make_app(timeouts, sqlite_url), make_app(timeouts, sqlite_url, endpoint="market")

    with one.app_context():
        first = timeouts.endpoint
    with one.app_context():
        assert timeouts.endpoint is first
    with two.app_context():
        assert timeouts.endpoint.name == "market"
    assert first.name == "shop"


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_handler_runs_in_a_context_of_its_app(is_awaited: bool, sqlite_url: str) -> None:
    timeouts = FlaskTimeouts()
    left: list[str] = []

    def ping(message: str, _context: object) -> None:
        g.message = message

    async def await_ping(message: str, _context: object) -> None:
        await asyncio.sleep(0)
        g.message = message

    timeouts.handler("Ping")(await_ping if is_awaited else ping)
    app = make_app(timeouts, sqlite_url)

    @app.teardown_appcontext
    def leave(_error: BaseException | None) -> None:
        left.append(f"{current_app.name} {g.get('message')}")

    [handler] = app.extensions["timeoutmgr"].configuration().settings().handlers["Ping"]
    context: Any = None
    left.clear()
    returned = handler("hello", context)
    if is_awaited:
        asyncio.run(returned)

    assert left == ["shop hello"]


@dataclass
class Paid:
    """A message type of the tests."""

    order: str


def test_a_handler_has_the_options_of_a_configuration(sqlite_url: str) -> None:
    timeouts = FlaskTimeouts()

    @timeouts.handler(Paid, session=False)
    async def paid(message: Paid, _context: object) -> None: ...

    app = make_app(timeouts, sqlite_url)
    settings = app.extensions["timeoutmgr"].configuration().settings()

    assert settings.without_session == {"Paid"}
    assert settings.message_classes["Paid"].kind is Paid


def test_wrong_settings_are_refused_by_the_name_of_their_place(sqlite_url: str) -> None:
    misspelt = make_app(FlaskTimeouts(), sqlite_url, featurs=[])
    missing = Flask("empty")
    FlaskTimeouts(missing)

    with pytest.raises(UnknownSetting, match="features"):
        misspelt.extensions["timeoutmgr"].configuration()
    with pytest.raises(ConfigurationError, match=r'app\.config\["TIMEOUTMGR"\] is a dict'):
        missing.extensions["timeoutmgr"].configuration()


def test_an_app_without_the_extension_is_named(sqlite_url: str) -> None:
    with (
        Flask("empty").app_context(),
        pytest.raises(ConfigurationError, match="'empty' has no timeouts"),
    ):
        assert FlaskTimeouts().endpoint


def test_the_worker_finds_the_app_as_the_command_line_of_flask_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "factory_of_a_shop.py").write_text(
        "from flask import Flask\n"
        "from timeoutmgr.contrib.flask import FlaskTimeouts\n"
        "def create_app():\n"
        "    app = Flask('shop')\n"
        "    app.config['TIMEOUTMGR'] = {'endpoint': 'found', 'transport': 'sqlite:///a.db'}\n"
        "    FlaskTimeouts(app)\n"
        "    return app\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLASK_APP", "factory_of_a_shop")

    assert configuration().name == "found"


def test_a_test_runner_of_the_command_line_is_not_replaced_by_the_command(sqlite_url: str) -> None:
    app = make_app(FlaskTimeouts(), sqlite_url)

    answer = app.test_cli_runner().invoke(args=["timeoutmgr", "list", "--limit", "3"])

    assert answer.exit_code == 1
    assert "flask --app module:function timeoutmgr" in answer.output
