"""Settings from a TOML file and the environment: the same configuration as from code.

A value comes from *overrides*, from its environment variable, or from the file, in this order. An
unknown key is refused, with the nearest known key.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote

from sqlalchemy.exc import ArgumentError

from timeoutmgr import plugins
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.endpoint.configuration import EndpointConfiguration, embedded_url
from timeoutmgr.errors import ConfigurationError, TimeoutManagerError, UnknownSetting
from timeoutmgr.message.redaction import redact
from timeoutmgr.settings import schema as keys
from timeoutmgr.settings.conversion import Given, convert
from timeoutmgr.settings.recurrence import add_recurring

# --- ``${NAME}``: a value of the environment, so that no secret is in the file ----------------

_REFERENCE: Final = re.compile(r"\$(?:\$|\{(?P<name>[^}]*)\})")
_USER_INFO: Final = re.compile(r"://(?P<user>[^/?#]*)@")


def resolve(value: Any, key: str, source: str, environ: Mapping[str, str]) -> Any:
    """Return *value* with every ``${NAME}`` in its texts replaced; ``$$`` is one dollar sign.

    Between ``//`` and ``@`` of a URL, and in its query, the value is percent-encoded: a password
    stays as written, also with characters that a URL reserves. Raises ConfigurationError for
    a variable that is not set.
    """
    if isinstance(value, str):
        return _resolve_text(value, key, source, environ)
    if isinstance(value, Mapping):
        return {name: resolve(each, key, source, environ) for name, each in value.items()}
    if isinstance(value, list):
        return [resolve(each, key, source, environ) for each in value]
    return value


def referenced(value: Any) -> set[str]:
    """Return the names of all variables that *value* refers to."""
    if isinstance(value, str):
        return {match["name"] for match in _REFERENCE.finditer(value) if match["name"]}
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return {name for each in value for name in referenced(each)}
    return set()


def _resolve_text(text: str, key: str, source: str, environ: Mapping[str, str]) -> str:
    users = [each.span("user") for each in _USER_INFO.finditer(text)]
    query = text.find("?") if "://" in text else -1

    def put_in(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        found = environ.get(name)
        if found is None:
            raise ConfigurationError(
                f"{key} in {source} refers to the environment variable {name!r}, which is not "
                "set; set it, or write $$ for a dollar sign"
            )
        at = match.start()
        in_user = any(begin <= at < end for begin, end in users)
        return quote(found, safe="") if in_user or 0 <= query < at else found

    return _REFERENCE.sub(put_in, text)


SettingKey: TypeAlias = tuple[str | None, str]
"""A table, or None, and a key in it."""
Values: TypeAlias = dict[SettingKey, Given]

_CODE: Final = "code"
_SIMPLE: Final = (
    "error_queue",
    "transaction_mode",
    "concurrency",
    "handler_batch",
    "async_concurrency",
    "shutdown_timeout",
    "install",
    "check_destinations",
    "critical_error_action",
)
"""Keys that are attributes of the configuration, by the same name."""


def configuration_from(
    path: Path | str | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
) -> EndpointConfiguration:
    """Return the configuration that a TOML file, the environment and *overrides* describe.

    *overrides* has the form of the file: keys, and tables as mappings. Its values may be texts,
    as in a file, or values of the final type (a timedelta, a Transport). Raises UnknownSetting for
    unknown keys, ConfigurationError for every other fault.
    """
    code = overrides or {}
    document = {} if path is None else _read(Path(path))
    source = "" if path is None else str(path)
    values = dict(_from_mapping(document, source, environ))
    given = dict(_from_mapping(code, _CODE, environ))
    # These values decide which tables exist, and which keys the tables have.
    for key in ("features", "transport", "persistence"):
        variable = environ.get(keys.environment_name(key))
        if variable:
            values[None, key] = _from_environment(variable, key, keys.environment_name(key))
    values |= given
    parts = _ConfiguredParts(values)
    parts.refuse_unknown()
    parts.refuse_disabled(source)
    values |= dict(_read_environment(parts, environ, referenced(document))) | given
    return _Builder(values, parts).configuration()


class _ConfiguredParts:
    """The parts that the tables configure, once features, transport and persistence are known."""

    def __init__(self, values: Values) -> None:
        self._values = values
        found = values.get((None, "features"))
        self.features: tuple[str, ...] = (
            () if found is None else convert(found, keys.TOP["features"])
        )
        for name in self.features:
            plugins.load(plugins.FEATURES, name)

    def part(self, table: str) -> Any:
        """Return the callable whose arguments are the keys of *table*; None without options."""
        if table in keys.BUILT:
            return keys.BUILT[table]
        if table == keys.TRANSPORT_OPTIONS:
            return self._transport()
        if table == keys.PERSISTENCE_OPTIONS:
            return self._persistence()
        return plugins.load(plugins.FEATURES, table)

    def hint(self, place: SettingKey) -> Any:
        """Return the type of the value at *place*."""
        table, key = place
        return keys.TOP[key] if table is None else keys.parameters(self.part(table))[key].hint

    def refuse_unknown(self) -> None:
        """Raise UnknownSetting for the first unknown key."""
        for (table, key), given in self._values.items():
            if table == keys.RECURRING:
                continue  # its keys are names, and the tables inside check their own
            if table is None:
                if key == keys.RECURRING:
                    raise given.wrong("a table for each name, such as [recurring.daily-report]")
                if key not in keys.TOP and keys.is_table(key):
                    raise given.wrong(f"a table, such as [{key}]")
                if key not in keys.TOP:
                    known = [*keys.TOP, *keys.table_names(), keys.RECURRING]
                    raise UnknownSetting(key, given.source, keys.nearest(key, known), known)
                continue
            if not keys.is_table(table):
                known = [*keys.table_names(), keys.RECURRING, *keys.TOP]
                raise UnknownSetting(table, given.source, keys.nearest(table, known), known)
            known = list(keys.parameters(self.part(table)))
            if key not in known:
                raise UnknownSetting(given.key, given.source, keys.nearest(key, known), known)

    def refuse_disabled(self, source: str) -> None:
        """Raise ConfigurationError if a file sets up a feature without enabling it."""
        for (table, _key), given in self._values.items():
            if table is None or table in self.features or not keys.is_feature(table):
                continue
            raise ConfigurationError(
                f"[{table}] in {given.source or source} sets up a feature that is not enabled; "
                f'add it to features = ["{table}"], or take the table out'
            )

    def _transport(self) -> Any:
        url = self._text("transport").removeprefix("timeoutmgr+")
        scheme = url.partition("://")[0].partition("+")[0]
        if plugins.knows(plugins.TRANSPORTS, scheme):
            return plugins.load(plugins.TRANSPORTS, scheme)
        from timeoutmgr.transport.kombu_transport import KombuTransport
        from timeoutmgr.transport.refusals import family_of
        from timeoutmgr.transport.settings import KombuSettings

        # Refuse a bad scheme first: it is the cause of the unknown option.
        family_of(url, KombuSettings(accept_loss=True))
        return KombuTransport

    def _persistence(self) -> Any:
        name = self._text("persistence").partition("://")[0].partition("+")[0]
        return plugins.load(plugins.PERSISTENCE, name)

    def _text(self, key: str) -> str:
        found = self._values.get((None, key))
        if found is None or not isinstance(found.value, str):
            return embedded_url()
        return found.value


class _Builder:
    """Makes the configuration from values with known keys."""

    def __init__(self, values: Values, parts: _ConfiguredParts) -> None:
        self._values = values
        self._parts = parts

    def configuration(self) -> EndpointConfiguration:
        """Return the configuration; raise ConfigurationError for its faults."""
        name = self._top("endpoint")
        if name is None:
            raise ConfigurationError(
                'no endpoint is named; give --app MODULE:ATTRIBUTE, or set endpoint = "…" in the '
                f"settings file or {keys.environment_name('endpoint')} in the environment"
            )
        config = EndpointConfiguration(name)
        for key in _SIMPLE:
            if (None, key) in self._values:
                setattr(config, key, self._top(key))
        for name in self._top("critical_error_hooks") or ():
            hook = plugins.function(name, "critical_error_hooks")
            config.define_critical_error_action(hook)
        if self._top("accept_loss"):
            config.accept_loss()
        if self._top("send_only"):
            config.send_only()
        external = self._top("external_timeout_manager")
        if external is not None:
            config.use_external_timeout_manager(external)
        if self._table("recoverability"):
            config.recoverability = self._built("recoverability")
        if self._table("canary"):
            config.canary = self._built("canary")
        config.limits = self._built("limits")
        self._use(config.use_transport, "transport", keys.TRANSPORT_OPTIONS)
        # In the embedded file, timeouts rest because nothing else is named.
        rests_unnamed = config.is_embedded and "timeout-manager" in self._parts.features
        if (None, "persistence") in self._values or rests_unnamed:
            self._use(config.use_persistence, "persistence", keys.PERSISTENCE_OPTIONS)
        for feature in self._parts.features:
            config.enable_feature(self._built(feature))
        self._add_middleware(config)
        for (table, key), given in self._values.items():
            if table == keys.RECURRING:
                add_recurring(config, key, given)
        if self._top("disable_timeout_manager"):
            _disable_manager(config, self._parts.features)
        return config

    def _add_middleware(self, config: EndpointConfiguration) -> None:
        """Add the functions that the file names, the first as the outermost."""
        for path in self._top("middleware") or ():
            config.add_middleware(plugins.function(path, "middleware"))
        for path in self._top("send_middleware") or ():
            config.add_send_middleware(plugins.function(path, "send_middleware"))

    def _use(self, use: Any, key: str, table: str) -> None:
        given = self._values.get((None, key))
        options = self._table(table)
        extra: dict[str, Any] = {}
        if key == "transport" and self._table(keys.DELAYED_DELIVERY):
            extra["delayed_delivery"] = self._delayed_delivery()
        if given is None and not options and not self._table("database") and not extra:
            return
        if given is not None and given.source == _CODE and not isinstance(given.value, str):
            use(given.value, **extra)
            return
        url = embedded_url() if given is None else cast(str, convert(given, str))
        try:
            self._share_database(url)
            extra |= {"accept_loss": True} if self._top("accept_loss") else {}
            use(url, **keys.arguments(self._parts.part(table), options), **extra)
        except TimeoutManagerError:
            raise
        except (ArgumentError, ImportError, ValueError, TypeError) as error:
            where = f" in {given.source}" if given is not None else ""
            raise ConfigurationError(
                f"{key}{where}: {redact(url)!r} cannot be used: {error}"
                + ("; install the driver that it names" if isinstance(error, ImportError) else "")
            ) from error

    def _delayed_delivery(self) -> Any:
        table = self._table(keys.DELAYED_DELIVERY)
        if not table.get("store"):
            raise ConfigurationError(
                f'[{keys.DELAYED_DELIVERY}] names no store; set store = "sqlite:///…", or another '
                "database's URL"
            )
        self._share_database(table["store"])
        return self._built(keys.DELAYED_DELIVERY)

    def _share_database(self, url: str) -> None:
        settings = self._table("database")
        scheme = url.removeprefix("timeoutmgr+").partition("://")[0].partition("+")[0]
        if settings and (plugins.PERSISTENCE, scheme) in plugins.BUILT_IN and "://" in url:
            Database.shared(url.removeprefix("timeoutmgr+"), DatabaseSettings(**settings))

    def _top(self, key: str) -> Any:
        given = self._values.get((None, key))
        return None if given is None else convert(given, keys.TOP[key])

    def _table(self, table: str) -> dict[str, Any]:
        return {
            key: convert(given, self._parts.hint((owner, key)))
            for (owner, key), given in self._values.items()
            if owner == table
        }

    def _built(self, table: str) -> Any:
        values = self._table(table)
        try:
            return keys.build(self._parts.part(table), values)
        except (ConfigurationError, ValueError, TypeError) as error:
            raise ConfigurationError(f"[{table}] {error}") from error


def _disable_manager(config: EndpointConfiguration, features: tuple[str, ...]) -> None:
    if "timeout-manager" in features:
        raise ConfigurationError(
            'disable_timeout_manager is set and features has "timeout-manager"; leave out one'
        )
    config.disable_timeout_manager()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # editors of Windows add a BOM
    except OSError as error:
        raise ConfigurationError(f"cannot read the settings file {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the settings file {path} is not TOML: {error}") from error


def _from_mapping(
    document: Mapping[str, Any], source: str, environ: Mapping[str, str]
) -> Iterator[tuple[SettingKey, Given]]:
    for key, value in document.items():
        if key in keys.TOP or not isinstance(value, Mapping):
            yield (None, key), _given(key, value, source, environ)
            continue
        if not value and key != keys.RECURRING and not keys.is_table(key):
            known = [*keys.table_names(), keys.RECURRING, *keys.TOP]
            raise UnknownSetting(key, source, keys.nearest(key, known), known)
        for inner, each in value.items():
            yield (key, inner), _given(f"{key}.{inner}", each, source, environ)


def _given(key: str, value: Any, source: str, environ: Mapping[str, str]) -> Given:
    if source == _CODE:
        return Given(key=key, value=value, source=source)
    resolved = resolve(value, key, source, environ)
    # A text with filled-in variables may be of any type: ${PORT} is a number, for example.
    is_text = isinstance(value, str) and resolved != value
    shown = repr(value) if resolved != value else None
    return Given(key=key, value=resolved, source=source, is_text=is_text, shown=shown)


def _from_environment(value: str, key: str, variable: str) -> Given:
    return Given(key=key, value=value, source=f"environment variable {variable}", is_text=True)


def _read_environment(
    parts: _ConfiguredParts, environ: Mapping[str, str], references: set[str]
) -> Iterator[tuple[SettingKey, Given]]:
    """Yield the values of the environment. An empty variable counts as not set."""
    asked = {name: value for name, value in environ.items() if keys.is_setting(name)}
    known = _known_variables(parts, asked)
    for variable, value in sorted(asked.items()):
        if variable in known:
            table, key = known[variable]
            name = key if table is None else f"{table}.{key}"
            if value:
                yield (table, key), _from_environment(value, name, variable)
        elif variable not in references:
            names = list(_known_variables(parts, None))
            raise UnknownSetting(variable, "the environment", keys.nearest(variable, names), names)


def _known_variables(
    parts: _ConfiguredParts, asked: Mapping[str, str] | None
) -> dict[str, SettingKey]:
    """Return the variables of all settings, or only of the tables that *asked* names.

    Reading a table imports its part, which would slow down a start.
    """
    known: dict[str, SettingKey] = {keys.environment_name(key): (None, key) for key in keys.TOP}
    if asked is not None and asked.keys() <= known.keys():
        return known
    for table in keys.table_names():
        stem = keys.environment_name(table, "")
        if asked is None or any(variable.startswith(stem) for variable in asked):
            for key in keys.parameters(parts.part(table)):
                known[keys.environment_name(table, key)] = (table, key)
    return known
