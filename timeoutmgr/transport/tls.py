"""Protection of a connection to a broker, from URL and settings; checked before connecting.

TLS always checks the certificate chain and the broker's name; only ``tls_insecure`` turns that off.
A plain connection must stay on this machine unless ``allow_plaintext`` is set.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import fspath
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from timeoutmgr.contracts import LinkSecurity
from timeoutmgr.errors import CombinationRefused, ConfigurationError, UnknownSetting
from timeoutmgr.message.redaction import redact
from timeoutmgr.transport.settings import KombuSettings

_PREFIX: Final = "ssl_"
_CHECKS: Final = {
    "cert_reqs": frozenset({"required", "cert_required", str(int(ssl.CERT_REQUIRED))}),
    "check_hostname": frozenset({"true", "1", "yes"}),
}
"""Names of options that could turn a check off, and the values that leave it on."""
_FILES: Final = ("ca_certs", "certfile", "keyfile")
_FOR_AMQP: Final = (*_FILES, "ciphers", "server_hostname")
_FOR_REDIS: Final = (*_FILES, "ciphers", "password")
_FOR_KOMBU: Final = ("login_method", "credential_provider")
"""Parameters of a URL that kombu reads; redis+socket:// allows further parameters."""
_OVER_TLS: Final = frozenset({"amqps", "rediss"})
_PLAIN: Final = frozenset({"amqp", "pyamqp", "redis", "sentinel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLink:
    """The URLs of the brokers, and the protection of the connection to them.

    *urls* are without TLS parameters; *options* have names that all clients share.
    """

    urls: tuple[str, ...]
    is_tls: bool
    insecure: bool
    options: Mapping[str, Any] = field(repr=False)

    @property
    def security(self) -> LinkSecurity:
        """The protection of the connection, for ``timeoutmgr doctor``."""
        if self.is_tls and self.insecure:
            return LinkSecurity(
                text="TLS without any check: certificate and name of the broker may be anybody's",
                remedy="take tls_insecure out, and name the authority in ssl.ca_certs",
                is_broken=True,
            )
        if self.is_tls:
            return LinkSecurity(text="TLS; the broker's certificate and name are checked")
        if all(is_this_machine(url) for url in self.urls):
            return LinkSecurity(text="plain, and does not leave this machine")
        return LinkSecurity(
            text="plain, over the network: password and messages can be read on the way",
            remedy="use amqps:// or rediss://; allow_plaintext is set",
        )

    def amqp(self, url: str) -> dict[str, Any] | bool:
        """Return py-amqp's ``ssl`` argument for a connection to *url*."""
        if not self.is_tls:
            return False
        if self.insecure:
            # Leave the name out; kombu would fill in even None.
            kept = {name: v for name, v in self.options.items() if name != "server_hostname"}
            return {**kept, "cert_reqs": ssl.CERT_NONE}
        # py-amqp checks the name that it gets, and kombu would pass 127.0.0.1 for localhost.
        name = urlsplit(url).hostname or "localhost"
        return {"server_hostname": name, **self.options, "cert_reqs": ssl.CERT_REQUIRED}

    def redis(self) -> dict[str, Any] | None:
        """Return the redis client's arguments for TLS, None for a plain connection."""
        if not self.is_tls:
            return None
        return {
            **{_PREFIX + name: value for name, value in self.options.items()},
            "ssl_cert_reqs": "none" if self.insecure else "required",
            "ssl_check_hostname": not self.insecure,
        }

    def context(self) -> ssl.SSLContext:
        """Return an SSL context with the same checks, for HTTP."""
        context = ssl.create_default_context(cafile=self.options.get("ca_certs"))
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def broker_link(url: str, settings: KombuSettings, *, redis: bool) -> BrokerLink:
    """Return the link to the brokers at *url* (separated by ``;``).

    Raises ConfigurationError for an option that is unknown or would turn a check off, and for a
    file that cannot be read; CombinationRefused for a plain connection that leaves this machine,
    unless the settings allow it.
    """
    urls, given = _read(url, settings.ssl or {})
    known = _FOR_REDIS if redis else _FOR_AMQP
    link = BrokerLink(
        urls=urls,
        is_tls=settings.ssl is not None or bool(given) or _scheme(urls[0]) in _OVER_TLS,
        insecure=settings.tls_insecure,
        options=_options(given, known, settings.tls_insecure),
    )
    if not link.is_tls and not settings.allow_plaintext:
        for one in urls:
            _refuse_plaintext(one)
    return link


def is_this_machine(url: str) -> bool:
    """Return whether the host of *url* is this machine, judged by its name."""
    host = (urlsplit(url).hostname or "localhost").rstrip(".")
    if host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _read(url: str, table: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the URLs without TLS parameters, and these parameters merged with *table*."""
    urls, given = [], dict(table)
    for one in url.split(";"):
        try:
            bare, found = _apart(one)
        except ValueError as error:
            raise ConfigurationError(f"{redact(one)!r} is not a URL: {error}") from error
        urls.append(bare)
        given = found | given
    return tuple(urls), given


def _apart(url: str) -> tuple[str, dict[str, str]]:
    """Return *url* without its ``ssl_`` parameters, and the parameters."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    found = {name: value for name, value in pairs if name.startswith(_PREFIX)}
    for name, _value in pairs:
        # kombu would use "ssl" instead of our checks, and fails on text in place of a number.
        if name not in (*found, *_FOR_KOMBU) and "+" not in parts.scheme:
            raise ConfigurationError(
                f"{redact(url)!r} has the parameter {name!r:.40}, which a URL cannot set here; set "
                "it in transport_options (ssl as a table), or take it out"
            )
    if not found:
        return url, {}
    rest = urlencode([(name, value) for name, value in pairs if name not in found])
    return parts._replace(query=rest).geturl(), found


def _options(given: Mapping[str, Any], known: tuple[str, ...], insecure: bool) -> Mapping[str, Any]:
    options = {}
    for name, value in given.items():
        bare = name.removeprefix(_PREFIX)
        if bare in _CHECKS:
            if not insecure and _spelt(value) not in _CHECKS[bare]:
                raise ConfigurationError(
                    f"{name} = {value!r} would turn off a check of the broker's certificate; take "
                    "it out, or say tls_insecure = true, which turns off every check"
                )
        elif bare not in known:
            near = get_close_matches(bare, [*known, *_CHECKS], n=1)
            raise UnknownSetting(
                name, "ssl or the broker's URL", near[0] if near else None, [*known, *_CHECKS]
            )
        elif value is not None:
            if bare in _FILES:
                _require_readable(name, value)
            options[bare] = value
    return options


def _require_readable(name: str, path: Any) -> None:
    """Raise ConfigurationError unless the file *path* is readable; SSL errors would not name it."""
    try:
        with open(fspath(path), "rb"):  # a number would be an open file, now closed
            return
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} = {path!r} is no file that can be read ({error}); name a file of certificates"
        ) from error


def _spelt(value: object) -> str:
    number = int(value) if isinstance(value, ssl.VerifyMode) else value
    return str(number).lower()


def _refuse_plaintext(url: str) -> None:
    scheme = _scheme(url)
    if scheme in _PLAIN and not is_this_machine(url):
        over_tls = "rediss" if scheme == "redis" else "amqps"
        raise CombinationRefused(
            f"the plain connection to {redact(url)}",
            "password and messages would cross the network for everybody to read",
            f"Use {over_tls}:// (or an ssl table), or say allow_plaintext = true.",
        )


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition("+")[0].strip().lower()
