"""Settings from file, environment and code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy.engine import make_url

from timeoutmgr import TransactionMode, plugins
from timeoutmgr.database import Database, as_database
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    UnknownPart,
    UnknownSetting,
)
from timeoutmgr.features.feature import USUAL, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.parts import FeatureParts
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.resilience.critical import CriticalAction
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.settings import schema as keys
from timeoutmgr.settings.file import configuration_from, resolve

DOCUMENT = """
endpoint = "sales"
transport = "sqlite:///{folder}/queues.db"
persistence = "sqlite:///{folder}/queues.db"
features = ["timeout-manager"]
error_queue = "errors"
transaction_mode = "receive_only"
concurrency = 3
install = false
check_destinations = false
critical_error_action = "log"

[timeout-manager]
time_to_wait_before_critical_error = "1m30s"
poll_interval = 20
chunk = 10

[recoverability]
immediate = 2
increase = "PT5S"

[limits]
max_delay = "30d"
allowed_destinations = ["billing", "stock.*"]

[transport_options]
prefix = "q_"
lease = "00:00:30"

[persistence_options]
prefix = "s_"
history = "full"

[database]
pool_size = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(DOCUMENT.format(folder=tmp_path))
    return path


def settings(
    path: Path | None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> EndpointSettings:
    return configuration_from(path, environ or {}, overrides).settings()


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_every_key_of_a_file_arrives(file: Path, tmp_path: Path) -> None:
    found = settings(file)

    assert found.name == "sales"
    assert found.error_queue == "errors"
    assert found.transaction_mode is TransactionMode.RECEIVE_ONLY
    assert (found.concurrency, found.install, found.check_destinations) == (3, False, False)
    assert found.critical_action is CriticalAction.LOG
    assert found.features == (
        TimeoutManager(
            time_to_wait_before_critical_error=timedelta(seconds=90),
            poll_interval=timedelta(seconds=20),
            chunk=10,
        ),
    )
    assert found.recoverability is not None
    assert found.recoverability.immediate == 2
    assert found.recoverability.increase == timedelta(seconds=5)
    assert found.limits.max_delay == timedelta(days=30)
    assert {"billing", "stock.*"} <= set(found.limits.allowed_destinations)
    assert isinstance(found.persistence, SqlPersistence)
    database = found.persistence.database
    assert database is found.transport.database
    assert database.path == tmp_path / "queues.db"
    assert database.settings.pool_size == 5
    assert "s_timeouts" in found.persistence.ddl()
    assert "q_" in found.transport.ddl()


def test_a_file_may_be_named_by_a_text(file: Path) -> None:
    assert configuration_from(str(file), {}).settings().name == "sales"


def test_the_environment_wins_over_the_file_and_code_over_both(file: Path) -> None:
    environ = {
        "TIMEOUTMGR_CONCURRENCY": "5",
        "TIMEOUTMGR_ERROR_QUEUE": "from-environment",
        "TIMEOUTMGR_TIMEOUT_MANAGER_POLL_INTERVAL": "10s",
        "TIMEOUTMGR_TIMEOUT_MANAGER_CHUNK": "11",
        "TIMEOUTMGR_LIMITS_ALLOWED_DESTINATIONS": "a, b",
        "TIMEOUTMGR_INSTALL": "yes",
    }

    found = configuration_from(
        file,
        environ,
        {"error_queue": "from-code", "timeout-manager": {"chunk": 12}},
    ).settings()

    (feature,) = found.features
    assert isinstance(feature, TimeoutManager)
    assert (found.concurrency, found.error_queue, found.install) == (5, "from-code", True)
    assert (feature.poll_interval, feature.chunk) == (timedelta(seconds=10), 12)
    assert {"a", "b"} <= set(found.limits.allowed_destinations)


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    found = settings(
        None,
        {
            "TIMEOUTMGR_ENDPOINT": "sales",
            "TIMEOUTMGR_FEATURES": "timeout-manager",
            "TIMEOUTMGR_TRANSPORT": f"sqlite:///{tmp_path}/q.db",
            "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{tmp_path}/q.db",
        },
    )

    assert found.features == (TimeoutManager(),)
    assert found.persistence is not None


def test_an_empty_variable_counts_as_not_set(file: Path) -> None:
    assert settings(file, {"TIMEOUTMGR_CONCURRENCY": ""}).concurrency == 3


def test_send_only_external_manager_and_accepted_loss_are_set() -> None:
    found = settings(
        None,
        {},
        endpoint="sales",
        send_only=True,
        accept_loss=True,
        external_timeout_manager="billing.Timeouts",
        transport="memory://",
    )

    assert (found.send_only, found.accept_loss) == (True, True)
    assert found.external_timeout_manager == "billing.Timeouts"


def test_code_may_give_parts_instead_of_urls(file: Path, tmp_path: Path) -> None:
    persistence = SqlPersistence(Database(f"sqlite:///{tmp_path}/other.db"))

    found = settings(written(tmp_path, 'endpoint = "sales"'), {}, persistence=persistence)

    assert found.persistence is persistence


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("concurency = 1", "concurency", "concurrency"),
        ("[timeout-manger]\nchunk = 1", "timeout-manger", "timeout-manager"),
        ("[timeout-manager]\nchunks = 1", "timeout-manager.chunks", "chunk"),
        ("[limits]\nmax_bodi = 1", "limits.max_bodi", "max_body"),
        ("[persistence_options]\nprefixx = 'a'", "persistence_options.prefixx", "prefix"),
        ("[limitz]", "limitz", "limits"),
    ],
)
def test_the_refusal_of_an_unknown_key_names_the_nearest_key(
    tmp_path: Path, text: str, key: str, suggestion: str
) -> None:
    path = written(tmp_path, f'endpoint = "a"\nfeatures = ["timeout-manager"]\n{text}')

    with pytest.raises(UnknownSetting) as caught:
        settings(path)

    assert (caught.value.key, caught.value.suggestion) == (key, suggestion)


@pytest.mark.parametrize("table", ["timeout-manager", "database", "limits"])
def test_a_value_in_place_of_a_table_is_refused(tmp_path: Path, table: str) -> None:
    path = written(tmp_path, f'endpoint = "a"\nfeatures = ["timeout-manager"]\n{table} = 3')

    with pytest.raises(ConfigurationError, match=rf"a table, such as \[{table}\]"):
        settings(path)


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("TIMEOUTMGR_TRANSPROT", "TIMEOUTMGR_TRANSPORT"),
        ("TIMEOUTMGR_TIMEOUT_MANGER_CHUNK", "TIMEOUTMGR_TIMEOUT_MANAGER_CHUNK"),
        ("TIMEOUTMGR_LIMITS_MAX_BODI", "TIMEOUTMGR_LIMITS_MAX_BODY"),
    ],
)
def test_the_refusal_of_an_unknown_variable_names_the_nearest_variable(
    file: Path, variable: str, suggestion: str
) -> None:
    with pytest.raises(UnknownSetting, match=f"did you mean '{suggestion}'") as caught:
        settings(file, {variable: "1"})

    assert caught.value.key == variable


@pytest.mark.parametrize(
    "variable",
    [
        "TIMEOUTMGR_DATA",
        "TIMEOUTMGR_CRASHPOINT",
        "TIMEOUTMGR_TEST_POSTGRES_URL",
        "TIMEOUTMGR_CLI_JSON",
        "OTHER",
    ],
)
def test_variables_that_are_no_settings_are_let_be(file: Path, variable: str) -> None:
    assert settings(file, {variable: "x"}).name == "sales"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("concurrency = true", "concurrency in .*: expected a whole number, got True"),
        ("concurrency = '2'", "expected a whole number, got '2'"),
        ("concurrency = 1.5", "expected a whole number, got 1.5"),
        ("install = 1", "install in .*: expected true or false, got 1"),
        ("features = 'timeout-manager'", "expected a list of texts, got 'timeout-manager'"),
        ("features = [1]", "expected a list of texts"),
        ("transaction_mode = 'all'", "expected one of 'none', 'receive_only'"),
        ("error_queue = 5", "expected a text, got 5"),
        ("transport = 5", "transport in .*: expected a text, got 5"),
        ("[timeout-manager]\npoll_interval = '1x'", "timeout-manager.poll_interval .* a duration"),
        ("[timeout-manager]\npoll_interval = nan", "expected a duration .*, got nan"),
        ("[timeout-manager]\npoll_interval = true", "expected a duration"),
        ("[timeout-manager]\npoll_interval = 3600", r"\[timeout-manager\] poll_interval"),
        ("[limits]\nmax_body = 0", r"\[limits\] max_body"),
        ("[database]\nwrite_wait = inf", "expected a number, got inf .it must be finite"),
        (f"[database]\nwrite_wait = 1{'0' * 400}", "expected a number, got 1000"),
        (f"shutdown_timeout = 1{'0' * 400}", "shutdown_timeout in .*: expected a duration"),
        ("limits = 3", r"limits in .*: expected a table, such as \[limits\], got 3"),
        ("features = ['dead-letter-queues']", r"\[dead-letter-queues\] needs node"),
    ],
)
def test_the_refusal_of_a_wrong_value_names_its_key_and_the_expected_form(
    tmp_path: Path, text: str, sentence: str
) -> None:
    more = "" if "features" in text else 'features = ["timeout-manager"]\n'
    path = written(tmp_path, f'endpoint = "a"\n{more}{text}')

    with pytest.raises(ConfigurationError, match=sentence):
        settings(path)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("TIMEOUTMGR_CONCURRENCY", "two", "expected a whole number, got 'two'"),
        ("TIMEOUTMGR_INSTALL", "perhaps", "expected true or false"),
        ("TIMEOUTMGR_DATABASE_WRITE_WAIT", "nan", "expected a number"),
        ("TIMEOUTMGR_TIMEOUT_MANAGER_POLL_INTERVAL", "soon", "expected a duration"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    file: Path, variable: str, value: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        settings(file, {variable: value})

    assert f"environment variable {variable}" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgres://localhost/a", UnknownPart),
        ("filesystem:///tmp", CombinationRefused),
        ("redis://localhost", CombinationRefused),
        ("oracle://u:s3cret@h/a", UnknownPart),
        ("postgresql+nodriver://u:s3cret@h/a", ConfigurationError),
        ("postgresql+psycopg://u:s3cret@h:port/a", ConfigurationError),
    ],
)
def test_a_transport_that_cannot_be_used_is_refused_without_its_password(
    url: str, error: type[ConfigurationError]
) -> None:
    with pytest.raises(error) as caught:
        settings(None, {"TIMEOUTMGR_ENDPOINT": "a", "TIMEOUTMGR_TRANSPORT": url})

    assert "s3cret" not in str(caught.value)


def test_a_table_of_the_environment_that_nests_too_deeply_is_refused_by_its_name() -> None:
    environ = {"TIMEOUTMGR_ENDPOINT": "a", "TIMEOUTMGR_TRANSPORT": "amqp://localhost"}
    with pytest.raises(ConfigurationError, match=r"ssl in .*: expected a table"):
        settings(None, {**environ, "TIMEOUTMGR_TRANSPORT_OPTIONS_SSL": "[" * 100_000})


def test_an_endpoint_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="TIMEOUTMGR_ENDPOINT in the environment"):
        settings(None)


def test_a_file_may_begin_as_editors_of_windows_write_it(tmp_path: Path) -> None:
    assert settings(written(tmp_path, '\ufeffendpoint = "sales"')).name == "sales"


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the settings file .*nowhere.toml"):
        settings(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigurationError, match=r"own.toml is not TOML: "):
        settings(written(tmp_path, "endpoint ="))
    for refused in (f"concurrency = 1{'0' * 5000}", f"features = {'[' * 5000}"):
        with pytest.raises(ConfigurationError, match=r"own.toml is not TOML: "):
            settings(written(tmp_path, refused))


def test_a_feature_that_is_set_up_in_a_file_must_be_enabled_there(tmp_path: Path) -> None:
    path = written(tmp_path, 'endpoint = "a"\n[timeout-manager]\nchunk = 1')

    with pytest.raises(ConfigurationError, match=r'features = \["timeout-manager"\]'):
        settings(path)


def test_a_reference_takes_its_value_from_the_environment_and_a_url_keeps_its_form(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        'endpoint = "a"\nerror_queue = "$${x}"\nconcurrency = "${TIMEOUTMGR_THREADS}"\n'
        'persistence = "postgresql+psycopg://u:${PASSWORD}@${HOST}/a?sslpassword=${PASSWORD}"',
    )

    found = settings(path, {"PASSWORD": "s3/c@r?t", "HOST": "db:5433", "TIMEOUTMGR_THREADS": "4"})

    assert found.error_queue == "${x}"
    assert found.concurrency == 4
    assert found.persistence is not None
    assert found.persistence.database is not None
    url = make_url(as_database(found.persistence.database).url)
    assert (url.password, url.host, url.port) == ("s3/c@r?t", "db", 5433)
    assert url.query["sslpassword"] == "s3/c@r?t"


def test_a_reference_in_the_user_part_of_each_of_several_urls_is_percent_encoded() -> None:
    url = "amqp://u:${PASSWORD}@first//;amqp://u:${PASSWORD}@second//"

    found = resolve(url, "transport", "own.toml", {"PASSWORD": "s3/c@r?t"})

    assert found == "amqp://u:s3%2Fc%40r%3Ft@first//;amqp://u:s3%2Fc%40r%3Ft@second//"


def test_a_reference_to_a_variable_that_is_not_set_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 'endpoint = "a"\nerror_queue = "${NOWHERE}"')

    with pytest.raises(
        ConfigurationError, match=r"error_queue .* variable 'NOWHERE', which is not"
    ):
        settings(path)


def test_a_secret_that_is_no_number_is_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path, 'endpoint = "a"\nconcurrency = "${PASSWORD}"')

    with pytest.raises(ConfigurationError, match=r"got '\$\{PASSWORD\}'") as caught:
        settings(path, {"PASSWORD": "s3cret"})

    assert "s3cret" not in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Reminders:
    """A foreign feature."""

    priority: ClassVar[int] = USUAL

    every: timedelta = timedelta(hours=1)
    names: tuple[str, ...] = ()
    ratio: float = 0.5
    folder: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default="my-reminders", init=False)

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ValueError(f"ratio is at most 1, got {self.ratio}")

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        return ()

    def set_up(self, context: FeatureContext) -> FeatureParts:
        return FeatureParts()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reminders as an installed distribution brings them: by an entry point."""
    info = tmp_path / "site" / "reminders-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reminders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{plugins.FEATURES}]\nmy-reminders = {Reminders.__module__}:Reminders\n"
    )
    monkeypatch.setattr(sys, "path", [str(info.parent), *sys.path])
    monkeypatch.setitem(sys.modules, Reminders.__module__, sys.modules[__name__])


@pytest.mark.usefixtures("installed")
def test_a_foreign_feature_is_built_from_its_own_table(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'endpoint = "a"\nfeatures = ["my-reminders"]\n[my-reminders]\nevery = "2d"\n'
        'names = ["x", "y"]\nratio = 1\noptions = {a = "b"}',
    )

    found = settings(path, {"TIMEOUTMGR_MY_REMINDERS_FOLDER": "/somewhere"})

    assert found.features == (
        Reminders(
            every=timedelta(days=2),
            names=("x", "y"),
            ratio=1.0,
            folder=Path("/somewhere"),
            options={"a": "b"},
        ),
    )


@pytest.mark.usefixtures("installed")
def test_a_refusal_by_a_foreign_feature_is_a_configuration_error(tmp_path: Path) -> None:
    path = written(
        tmp_path, 'endpoint = "a"\nfeatures = ["my-reminders"]\n[my-reminders]\nratio = 2'
    )

    with pytest.raises(ConfigurationError, match=r"\[my-reminders\] ratio is at most 1"):
        settings(path)


def test_middleware_is_named_by_module_and_attribute_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenants_of_a_test.py").write_text(
        "class Tenants:\n"
        "    def outer(context, call_next): ...\n"
        "def inner(context, call_next): ...\n"
        "def stamp(message): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "sales.toml"
    file.write_text(
        'endpoint = "sales"\n'
        'middleware = ["tenants_of_a_test:Tenants.outer", "tenants_of_a_test:inner"]\n'
        'send_middleware = ["tenants_of_a_test:stamp"]\n'
    )

    found = configuration_from(file, {}).settings()
    of_variable = configuration_from(file, {"TIMEOUTMGR_MIDDLEWARE": "tenants_of_a_test:inner"})

    assert [each.__name__ for each in found.middleware] == ["outer", "inner"]
    assert [each.__name__ for each in found.send_middleware] == ["stamp"]
    assert len(of_variable.settings().middleware) == 1


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("tenants", "middleware: expected module:attribute"),
        ("no_such_module_here:tenant", "middleware: there is no module 'no_such_module_here'"),
        ("json:tenant", "middleware: json:tenant: module 'json' has no attribute"),
        ("json:dumps", "a middleware"),
    ],
)
def test_a_middleware_that_a_file_names_in_vain_is_refused(
    path: str, error: str, tmp_path: Path
) -> None:
    file = tmp_path / "sales.toml"
    file.write_text(f'endpoint = "sales"\nmiddleware = ["{path}"]\n')
    with pytest.raises(ConfigurationError, match=error):
        configuration_from(file, {})


def test_no_two_keys_have_the_same_environment_name() -> None:
    places = [(key,) for key in keys.TOP]
    tables = {
        **keys.BUILT,
        "timeout-manager": TimeoutManager,
        keys.PERSISTENCE_OPTIONS: SqlPersistence,
    }
    every = places + [
        (table, key) for table, part in tables.items() for key in keys.parameters(part)
    ]

    names = [keys.environment_name(*place) for place in every]

    assert len(names) == len(set(names))


def page_me(_context: object) -> None:
    """A hook that a settings file names."""


def test_critical_error_hooks_are_functions_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, f'endpoint = "a"\ncritical_error_hooks = ["{__name__}:page_me"]')

    assert settings(path, {}).hooks == (page_me,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop.ops", "expected module:attribute, such as shop.ops:page_me; got 'shop.ops'"),
        ("nowhere.ops:page_me", "there is no module 'nowhere'"),
        (f"{__name__}:page_you", "has no attribute 'page_you'"),
        (f"{__name__}:DOCUMENT", "a critical error hook is a function"),
    ],
)
def test_the_refusal_of_a_hook_says_why(tmp_path: Path, name: str, words: str) -> None:
    path = written(tmp_path, f'endpoint = "a"\ncritical_error_hooks = ["{name}"]')

    with pytest.raises(ConfigurationError, match=re.escape(words)):
        settings(path, {})
