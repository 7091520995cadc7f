"""The kombu transports that are allowed, and the refusals that all transports share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import Final, NoReturn

from timeoutmgr import plugins
from timeoutmgr.errors import CombinationRefused, ConfigurationError, InvalidMessage, UnknownPart
from timeoutmgr.transport.envelope import check_short
from timeoutmgr.transport.settings import KombuSettings

CREATE_QUEUE: Final = (
    "install the endpoint that owns it (it creates its queues), or correct the name"
)


class Family(Enum):
    """Kinds of kombu transports, by how they keep delivered but unacknowledged messages."""

    AMQP = "amqp"
    REDIS = "redis"
    MEMORY = "memory"
    UNTESTED = "untested"


_SQL: Final = (
    "Use our own SQL queue instead: sqlite:///timeoutmgr.db, or postgresql+psycopg://... "
    "(no server to run, and nothing is lost), or amqp://"
)
_GETS_AND_DELETES: Final = (
    "it deletes a message when it is read, so that a killed consumer loses "
    "delivered but unacknowledged messages"
)

_AMQP: Final = frozenset({"amqp", "amqps", "pyamqp"})
_LOSING: Final = {
    "filesystem": "it moves a message away when it is read, so that a killed consumer loses "
    "delivered but unacknowledged messages, and two consumers read half-written files",
    "sqla": "it marks a message as gone when it is read, so that a killed consumer loses "
    "delivered but unacknowledged messages, and its table never shrinks",
    "azurestoragequeues": _GETS_AND_DELETES,
    "mongodb": _GETS_AND_DELETES,
    "zookeeper": _GETS_AND_DELETES,
    "etcd": _GETS_AND_DELETES,
    "consul": _GETS_AND_DELETES,
    "pyro": _GETS_AND_DELETES,
    "confluentkafka": "acknowledging one message acknowledges all before it, so that a crash "
    "loses delivered but unacknowledged messages",
    "slmq": "the service behind it was shut down, and nothing of it can be tested",
    "qpid": "its client is not maintained, and nothing of it can be tested",
    "librabbitmq": "its client is not maintained; amqp:// reaches the same broker",
}
_LOSING["sqlalchemy"] = _LOSING["sqla"]
_LOSING["kafka"] = _LOSING["confluentkafka"]

_NEED_CONSENT: Final = {
    "redis": (
        Family.REDIS,
        "kombu takes a message off its Redis list before it notes it as unacknowledged, and Redis "
        "itself syncs its file once a second, so that a crash can lose messages",
    ),
    "memory": (Family.MEMORY, "memory ends with the process, and every message with it"),
}
for _scheme in ("rediss", "redis+socket", "sentinel"):
    _NEED_CONSENT[_scheme] = _NEED_CONSENT["redis"]
for _scheme in ("sqs", "pgmq", "gcpubsub", "azureservicebus"):
    _NEED_CONSENT[_scheme] = (
        Family.UNTESTED,
        "it acknowledges for real, but no test has shown that it keeps its promises",
    )

_MEANT: Final = {"rabbitmq": "amqp", "rabbit": "amqp", "rabbitmqs": "amqps", "valkey": "redis"}
"""Names that users mistake for a scheme, with the right scheme."""


def family_of(url: str, settings: KombuSettings) -> Family:
    """Return the kind of transport in *url*; raises CombinationRefused if it loses messages."""
    scheme = url.partition("://")[0].strip()
    name = scheme.lower()
    if name in _AMQP:
        return Family.AMQP
    if (loss := _LOSING.get(name.partition("+")[0])) is not None:
        raise CombinationRefused(f"the transport {scheme}://", loss, _SQL)
    if name not in _NEED_CONSENT:
        known = sorted({*_AMQP, *_NEED_CONSENT, *plugins.names(plugins.TRANSPORTS)})
        meant = [_MEANT[name]] if name in _MEANT else []
        near = meant or difflib.get_close_matches(name, known, n=1)
        raise UnknownPart("timeoutmgr.transports", scheme, near[0] if near else None, known)
    family, reason = _NEED_CONSENT[name]
    if not settings.accept_loss:
        raise CombinationRefused(
            f"the transport {scheme}://", reason, f"Set accept_loss=True to have it anyway. {_SQL}"
        )
    return family


def check_queue_names(names: Iterable[str]) -> None:
    """Raise ConfigurationError for an invalid queue name."""
    for name in names:
        if not name or name.startswith("amq."):
            raise ConfigurationError(
                f"{name!r} is no queue name: it must not be empty, nor begin with 'amq.', "
                "which brokers keep for themselves"
            )
        try:
            check_short(name, "queue name")
        except InvalidMessage as error:
            raise ConfigurationError(str(error)) from error


def refuse_transaction(what: str) -> NoReturn:
    """Raise CombinationRefused for a database transaction that a broker cannot take part in."""
    raise CombinationRefused(
        f"a transaction over {what} and a database",
        "a broker cannot commit together with a database",
        "Use the mode receive_only, or our SQL queue on the store's own database",
    )
