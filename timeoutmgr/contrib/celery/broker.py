"""The broker of an app, as the transport to which the store's due tasks go."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

from timeoutmgr.database import Database
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.transport.sql.kombu_transport import OF_KOMBU, pool_settings

_SQL: Final = "timeoutmgr+"
_TABLES: Final = ("prefix", "schema")
_UNCHECKED: Final = (ssl.CERT_NONE, "none", "CERT_NONE")
_PASSWORDS: Final = (None, "PLAIN", "AMQPLAIN")
_AMQP: Final = ("amqp", "amqps", "pyamqp")
_ANY: Final = object()
_CHANGE_NO_SEND: Final[Mapping[str, object]] = {
    **dict.fromkeys(
        (
            *OF_KOMBU,
            *("visibility_timeout", "ack_emulation", "unacked_key", "unacked_index_key"),
            *("unacked_mutex_key", "unacked_mutex_expire", "unacked_restore_limit"),
            *("unacked_restore_interval", "unacked_restore_throttle", "socket_timeout"),
            *("socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"),
            *("max_connections", "health_check_interval", "retry_on_timeout", "client_name"),
            *("confirm_publish", "read_timeout", "write_timeout", "client_properties"),
            *("socket_settings", "frame_max", "channel_max", "heartbeat", "connect_timeout"),
        ),
        _ANY,
    ),
    **{"fanout_prefix": True, "fanout_patterns": True},
}
"""Options that do not redirect a message, with the values for which this holds."""


def options_to(connection: Any, store: str) -> dict[str, Any]:
    """Return the options for a transport in *store* that sends to the broker of *connection*.

    Only the settings of *connection* are read. Options that redirect messages are passed on to
    kombu's channel. Raises ConfigurationError for others: workers would look elsewhere.
    """
    given: Mapping[str, Any] = connection.transport_options or {}
    url = ";".join(connection.alt) or str(connection.as_uri(include_password=True))
    if url.startswith(_SQL):
        here = url.removeprefix(_SQL)
        Database.shared(here, pool_settings(given))  # the first caller's settings count
        tables = {name: given[name] for name in _TABLES if name in given}
        return tables if here == store else {"destinations": transport_from_url(here, **tables)}
    led = {name: one for name, one in given.items() if _CHANGE_NO_SEND.get(name) not in (_ANY, one)}
    is_amqp = url.partition("://")[0].partition("+")[0] in _AMQP
    if is_amqp:
        _refuse("broker_transport_options", led)
    _refuse("broker_login_method", {connection.login_method}.difference(_PASSWORDS))
    options: dict[str, Any] = {"channel_options": led} if led and not is_amqp else {}
    # The app itself connects in this way, with the same password.
    options |= {"accept_loss": True, "allow_plaintext": True, **_tls(connection.ssl)}
    return {"destinations": transport_from_url(url, **options)}


def _refuse(setting: str, options: Iterable[str]) -> None:
    if names := ", ".join(sorted(options)):
        raise ConfigurationError(
            f"{setting} {names:.200} cannot be passed on to the transport that sends due tasks, so "
            f"these would reach no worker; take {names:.200} out of the app's {setting}"
        )


def _tls(given: Any) -> dict[str, Any]:
    """Return the options for TLS as the app has it: a table of settings, or True."""
    if not given:
        return {}
    table = dict(given) if isinstance(given, Mapping) else {}
    checks = [table[name] for name in ("cert_reqs", "ssl_cert_reqs") if name in table]
    # The app itself turned the check off for the same link.
    return {"ssl": table, **({"tls_insecure": True} if set(checks) & {*_UNCHECKED} else {})}
