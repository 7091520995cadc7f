r"""Parse format names and path names; an error points at the wrong character.

A path name is one of these; a subqueue and ``;JOURNAL`` may follow its queue::

    computer\queue                computer\private$\queue
    computer\queue\Journal$       computer\private$\queue\Journal$
    computer\Deadletter$          computer\XactDeadletter$       computer\Journal$
    computer\system$;DEADLETTER   computer\system$;DEADXACT      computer\system$;JOURNAL
"""

from ipaddress import AddressValueError, IPv4Address, IPv6Address
from re import ASCII, IGNORECASE, Pattern, compile
from typing import Final, NoReturn
from uuid import UUID

from timeoutmgr.deadletter.names import (
    ConnectorName,
    DirectName,
    DirectSystemName,
    DistributionListName,
    Element,
    FormatName,
    MachineName,
    MulticastName,
    MultiElementName,
    PrivateName,
    Protocol,
    PublicName,
    SystemQueue,
    is_read_only,
)
from timeoutmgr.errors import InvalidQueueName

QUEUE_CHARACTERS: Final = 124
SUBQUEUE_CHARACTERS: Final = 32

_GUID: Final = compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", IGNORECASE)
_HEX: Final = compile(r"[0-9a-f]+", IGNORECASE)
_PORT: Final = compile(r"0|[1-9]\d*", ASCII)
_HOST: Final = compile(r"[A-Za-z0-9._-]+", ASCII)
HOST_CHARACTERS: Final = 256
_IP: Final = compile(r"[0-9A-Fa-f:.]+", ASCII)
_IPX: Final = compile(r"[0-9a-f]{8}:[0-9a-f]{12}", IGNORECASE)
_NOT_IN_NAMES: Final = frozenset('\\;+,"')
_RESERVED: Final = frozenset(kind.value for kind in SystemQueue)
_PATH_SYSTEM: Final = {
    "JOURNAL$": SystemQueue.JOURNAL,
    "DEADLETTER$": SystemQueue.DEADLETTER,
    "XACTDEADLETTER$": SystemQueue.DEADXACT,
}
_PREFIX: Final = "FORMATNAME:"
"""Prefix of a format name where a path name is expected; read in any case."""
_KINDS: Final = ("PUBLIC", "PRIVATE", "DIRECT", "MACHINE", "DL", "CONNECTOR", "MULTICAST")


def parse_format_name(text: str) -> FormatName:
    """Return the format name in *text*; raise InvalidQueueName at the first wrong character."""
    reader = _Reader(text)
    reader.accept_keyword(_PREFIX)
    elements = [reader.element()]
    starts = [0]
    while reader.accept(","):
        starts.append(reader.at)
        elements.append(reader.element())
    reader.end()
    if len(elements) == 1:
        return elements[0]
    for start, element in zip(starts, elements, strict=True):
        if is_read_only(element):
            reader.fail("a queue for sending, as part of several", at=start)
    return MultiElementName(tuple(elements))


def parse_path_name(text: str) -> DirectName | DirectSystemName:
    r"""Return ``computer\queue``, ``computer\private$\queue`` or ``computer\Deadletter$``, read.

    Raises InvalidQueueName.
    """
    reader = _Reader(text)
    name = reader.queue_of_node(Protocol.OS, is_path=True)
    reader.end()
    return name


def is_format_name(text: str) -> bool:
    """Return whether *text* begins like a format name, valid or not."""
    if text[: len(_PREFIX)].upper() == _PREFIX:
        return True
    kind, equals, _ = text.partition("=")
    return bool(equals) and kind.strip().upper() in _KINDS


class _Reader:
    """Reads a text from the left; *at* is the next position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def element(self) -> Element:
        """Read the name of a queue or of a list."""
        start = self.at
        for kind in _KINDS:
            if self.accept_keyword(f"{kind}="):
                break
        else:
            self.fail(f"{', '.join(f'{kind}=' for kind in _KINDS[:-1])} or {_KINDS[-1]}=", at=start)
        match kind:
            case "PUBLIC":
                return PublicName(self._guid(), self._journal())
            case "PRIVATE":
                return self._private()
            case "DIRECT":
                return self._direct()
            case "MACHINE":
                guid = self._guid()
                self.expect(";", "';' and one of JOURNAL, DEADLETTER, DEADXACT")
                return MachineName(guid, self.system())
            case "DL":
                guid = self._guid()
                domain = self.host("a domain's name") if self.accept("@") else None
                return DistributionListName(guid, domain)
            case "CONNECTOR":
                return ConnectorName(self._guid(), self._ends_with(";XACTONLY"))
            case _:
                return self._multicast()

    def name(self, longest: int, what: str) -> str:
        """Read a queue's or subqueue's name."""
        start = self.at
        while self.at < len(self.text) and self._is_name_sign(self.text[self.at]):
            self.at += 1
        if self.at == start:
            self.fail(what)
        if self.at - start > longest:
            self.fail(f"at most {longest} characters in {what}", at=start + longest)
        return self.text[start : self.at]

    def host(self, what: str) -> str:
        """Read the name of a computer or a domain."""
        start = self.at
        host = self.match(_HOST, what)
        if len(host) > HOST_CHARACTERS:
            self.fail(f"at most {HOST_CHARACTERS} characters in {what}", at=start + HOST_CHARACTERS)
        return host

    def parts(self) -> tuple[str | None, bool]:
        """Read the optional parts after a queue's name: its subqueue, and ``;JOURNAL``."""
        if self._journal():
            return None, True
        if not self.accept(";"):
            return None, False
        start = self.at
        subqueue = self.name(SUBQUEUE_CHARACTERS, "a subqueue's name, or JOURNAL")
        self.refuse_reserved(subqueue, start)
        return subqueue, self._journal()

    def refuse_reserved(self, name: str, start: int) -> None:
        """Fail at *start* if *name* is reserved for the system."""
        if name.upper() in _RESERVED or name.upper() in ("SYSTEM$", "PRIVATE$", *_PATH_SYSTEM):
            self.fail("a name that is not the system's own", at=start)

    def match(self, pattern: Pattern[str], what: str) -> str:
        """Read the text that *pattern* matches here."""
        found = pattern.match(self.text, self.at)
        if found is None:
            self.fail(what)
        self.at = found.end()
        return found.group()

    def accept(self, sign: str) -> bool:
        """Read *sign* if it comes next."""
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def accept_keyword(self, word: str) -> bool:
        """Read *word* in any case if it comes next."""
        # Upper-casing may change a text's length: only this much of it, and only ASCII counts.
        found = self.text[self.at : self.at + len(word)]
        if not found.isascii() or found.upper() != word:
            return False
        self.at += len(word)
        return True

    def expect(self, sign: str, what: str) -> None:
        """Read *sign*, or fail with *what* was expected."""
        if not self.accept(sign):
            self.fail(what)

    def end(self) -> None:
        """Fail unless the whole text is read; a trailing NUL counts as a character."""
        if self.at < len(self.text):
            self.fail("the end of the name")

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        """Raise for the character at *at*, or at the next position."""
        raise InvalidQueueName(self.text, self.at if at is None else at, expected)

    def _is_name_sign(self, sign: str) -> bool:
        return sign not in _NOT_IN_NAMES and sign.isprintable()

    def _guid(self) -> UUID:
        return UUID(self.match(_GUID, "a GUID such as 0b3d0c5e-7f0a-4a39-9d7e-0a1b2c3d4e5f"))

    def _journal(self) -> bool:
        return self._ends_with(";JOURNAL")

    def _ends_with(self, word: str) -> bool:
        here = self.at
        if self.accept_keyword(word) and self._stops():
            return True
        self.at = here
        return False

    def _stops(self) -> bool:
        return self.at == len(self.text) or not self._is_name_sign(self.text[self.at])

    def system(self) -> SystemQueue:
        """Read the name of a node's own queue."""
        for kind in SystemQueue:
            if self.accept_keyword(kind.value):
                return kind
        self.fail("JOURNAL, DEADLETTER or DEADXACT")

    def _private(self) -> PrivateName:
        guid = self._guid()
        self.expect("\\", "a backslash and the queue's number in hex")
        start = self.at
        digits = self.match(_HEX, "1 to 8 hex digits")
        if len(digits) > 8:
            self.fail("at most 8 hex digits", at=start + 8)
        return PrivateName(guid, int(digits, 16), self._journal())

    def _direct(self) -> Element:
        protocol = self._protocol()
        return self._web(protocol) if protocol.is_web else self.queue_of_node(protocol)

    def queue_of_node(
        self, protocol: Protocol, *, is_path: bool = False
    ) -> DirectName | DirectSystemName:
        """Read a node's address, and its queue; a path name has further words for own queues."""
        host = self._address(protocol)
        self.expect("\\", "a backslash before the queue's name")
        if self.accept_keyword("SYSTEM$;"):
            return DirectSystemName(protocol, host, self.system())
        private = self.accept_keyword("PRIVATE$\\")
        start = self.at
        queue = self.name(QUEUE_CHARACTERS, "a queue's name")
        system = _PATH_SYSTEM.get(queue.upper())
        if is_path and system is not None and not private:
            return DirectSystemName(protocol, host, system)
        self.refuse_reserved(queue, start)
        subqueue, journal = self.parts()
        journal = journal or (is_path and self.accept_keyword("\\JOURNAL$"))
        return DirectName(
            protocol=protocol,
            host=host,
            queue=queue,
            private=private,
            subqueue=subqueue,
            journal=journal,
        )

    def _protocol(self) -> Protocol:
        # The longer name first: HTTPS begins with HTTP.
        for protocol in sorted(Protocol, key=lambda each: -len(each.value)):
            if self.accept_keyword(f"{protocol.value}:"):
                return protocol
        self.fail("TCP:, OS:, IPX:, HTTP: or HTTPS:")

    def _address(self, protocol: Protocol) -> str:
        start = self.at
        if protocol is Protocol.OS:
            return self.host("the name of a computer, or '.' for this one")
        if protocol is Protocol.IPX:
            return self.match(_IPX, "network and node, as 8 and 12 hex digits with a colon").lower()
        text = self.match(_IP, "an IP address")
        try:
            return str(IPv6Address(text) if ":" in text else IPv4Address(text))
        except AddressValueError:
            self.fail("an IP address", at=start)

    def _web(self, protocol: Protocol) -> DirectName:
        self.expect("//", "two slashes and a host")
        host = self.host("a host's name")
        if self.accept(":"):
            host = f"{host}:{self._port(lowest=1)}"
        separator = "/" if self.text.startswith("/", self.at) else "\\"
        self.expect(separator, "/MSMQ/ and the queue's name")
        if not self.accept_keyword("MSMQ"):
            self.fail("MSMQ")
        if not self.accept("/"):
            self.expect("\\", "a slash and the queue's name")
        private = self.accept_keyword("PRIVATE$/") or self.accept_keyword("PRIVATE$\\")
        start = self.at
        queue = self.name(QUEUE_CHARACTERS, "a queue's name")
        slash = queue.find("/")
        if slash >= 0:
            self.fail("a queue's name without a slash", at=start + slash)
        self.refuse_reserved(queue, start)
        if self.text.startswith(";", self.at):
            self.fail("the end: a queue behind HTTP is for sending only")
        return DirectName(protocol=protocol, host=host, queue=queue, private=private)

    def _multicast(self) -> MulticastName:
        start, what = self.at, "a multicast address, 224.0.0.0 to 239.255.255.255"
        host = self.match(_IP, what).partition(":")[0]
        try:
            address = IPv4Address(host)
        except AddressValueError:
            self.fail(what, at=start)
        if not address.is_multicast:
            self.fail(what, at=start)
        # The pattern of an IP address allows letters, so it has also matched the port's digits.
        self.at = start + len(host)
        self.expect(":", "a colon and the port")
        return MulticastName(str(address), self._port(lowest=0))

    def _port(self, *, lowest: int) -> int:
        start, what = self.at, f"a port, {lowest} to 65535 without a zero before it"
        digits = self.match(_PORT, what)
        if len(digits) > 5 or not lowest <= int(digits) < 65_536:
            self.fail(what, at=start)
        return int(digits)
