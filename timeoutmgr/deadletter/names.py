r"""Format names: MSMQ's names of queues, as values that print themselves.

::

    name      = ["FormatName:"] element *("," element)       several: none of them a read-only queue
    element   = "PUBLIC=" guid [";JOURNAL"]
              / "PRIVATE=" guid "\" 1*8hex [";JOURNAL"]
              / "DIRECT=" address "\" ["PRIVATE$\"] queue [";" subqueue] [";JOURNAL"]
              / "DIRECT=" address "\SYSTEM$;" (JOURNAL / DEADLETTER / DEADXACT)
              / "DIRECT=" ("HTTP" / "HTTPS") "://" host [":" port] "/MSMQ/" ["PRIVATE$/"] queue
              / "MACHINE=" guid ";" (JOURNAL / DEADLETTER / DEADXACT)
              / "DL=" guid ["@" domain]
              / "CONNECTOR=" guid [";XACTONLY"]
              / "MULTICAST=" address-of-224-to-239 ":" port
    address   = "TCP:" ip / "OS:" host / "IPX:" 8hex ":" 12hex
    host      = 1*256 letters, digits, ".", "_" and "-"
    port      = 0 to 65535 without a zero before it; a web server's begins at 1

Keywords are read in any case and printed in upper case, GUIDs in lower case. ``name_parser`` parses
them; ``str`` of a value is its name, and parsing that returns the same value.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID


class SystemQueue(StrEnum):
    """The own queues of a node; applications cannot send to them."""

    JOURNAL = "JOURNAL"
    DEADLETTER = "DEADLETTER"
    DEADXACT = "DEADXACT"


class Protocol(StrEnum):
    """Address formats of a direct name."""

    TCP = "TCP"
    OS = "OS"
    IPX = "IPX"
    HTTP = "HTTP"
    HTTPS = "HTTPS"

    @property
    def is_web(self) -> bool:
        """Whether queues are reached by HTTP, which allows sending only."""
        return self in (Protocol.HTTP, Protocol.HTTPS)


@dataclass(frozen=True, slots=True)
class PublicName:
    """A queue that is registered under *guid*, or its journal."""

    guid: UUID
    journal: bool = False

    def __str__(self) -> str:
        return f"PUBLIC={self.guid}{_journal(self.journal)}"


@dataclass(frozen=True, slots=True)
class PrivateName:
    """Queue *number* of the node *guid*, or its journal."""

    guid: UUID
    number: int
    journal: bool = False

    def __str__(self) -> str:
        return f"PRIVATE={self.guid}\\{self.number:08x}{_journal(self.journal)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectName:
    """A queue, subqueue or journal, by the address of its node and the queue's own name.

    *host* has the protocol's form: an IP address, a name, ``network:node``, or ``host:port``.
    """

    protocol: Protocol
    host: str
    queue: str
    private: bool = False
    subqueue: str | None = None
    journal: bool = False

    def __str__(self) -> str:
        if self.protocol.is_web:
            private = "PRIVATE$/" if self.private else ""
            return f"DIRECT={self.protocol}://{self.host}/MSMQ/{private}{self.queue}"
        private = "PRIVATE$\\" if self.private else ""
        part = "" if self.subqueue is None else f";{self.subqueue}"
        return (
            f"DIRECT={self.protocol}:{self.host}\\{private}{self.queue}{part}"
            f"{_journal(self.journal)}"
        )


@dataclass(frozen=True, slots=True)
class DirectSystemName:
    """An own queue of the node at *host*."""

    protocol: Protocol
    host: str
    kind: SystemQueue

    def __str__(self) -> str:
        return f"DIRECT={self.protocol}:{self.host}\\SYSTEM$;{self.kind}"


@dataclass(frozen=True, slots=True)
class MachineName:
    """An own queue of the node *guid*."""

    guid: UUID
    kind: SystemQueue

    def __str__(self) -> str:
        return f"MACHINE={self.guid};{self.kind}"


@dataclass(frozen=True, slots=True)
class DistributionListName:
    """All members of a list."""

    guid: UUID
    domain: str | None = None

    def __str__(self) -> str:
        return f"DL={self.guid}" + ("" if self.domain is None else f"@{self.domain}")


@dataclass(frozen=True, slots=True)
class ConnectorName:
    """The connector queue of a foreign site, or the queue there for transactional messages."""

    guid: UUID
    transactional: bool = False

    def __str__(self) -> str:
        return f"CONNECTOR={self.guid}" + (";XACTONLY" if self.transactional else "")


@dataclass(frozen=True, slots=True)
class MulticastName:
    """All listeners at a multicast address."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"MULTICAST={self.address}:{self.port}"


Element: TypeAlias = (
    PublicName
    | PrivateName
    | DirectName
    | DirectSystemName
    | MachineName
    | DistributionListName
    | ConnectorName
    | MulticastName
)


@dataclass(frozen=True, slots=True)
class MultiElementName:
    """Two or more queues, none of them read-only."""

    elements: tuple[Element, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.elements))


FormatName: TypeAlias = Element | MultiElementName


def is_read_only(name: FormatName) -> bool:
    """Return whether only the framework puts messages there (journals, dead letters)."""
    match name:
        case DirectSystemName() | MachineName():
            return True
        case PublicName() | PrivateName() | DirectName():
            return name.journal
        case _:
            return False


def _journal(is_one: bool) -> str:
    return ";JOURNAL" if is_one else ""
