"""Format names: every form of the grammar, round and round, and errors that point."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.deadletter.name_parser import is_format_name, parse_format_name, parse_path_name
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
from timeoutmgr.errors import InvalidMessage, InvalidQueueName

GUID = "0b3d0c5e-7f0a-4a39-9d7e-0a1b2c3d4e5f"
_HOSTS = {
    "OS": [".", "host", "sales01", "SALES-01.example.com", "a_b", "127.0.0.1", "x" * 256],
    "TCP": ["10.0.0.1", "255.255.255.255", "::1", "fe80::1", "2001:db8::8:800:200c:417a"],
    "IPX": ["00000012:00a0f7370a32"],
}
_PLACES = [f"{protocol}:{host}" for protocol, hosts in _HOSTS.items() for host in hosts]
_TAILS = [
    "q",
    "PRIVATE$\\q",
    "q;JOURNAL",
    "PRIVATE$\\q;JOURNAL",
    "q;retry",
    "PRIVATE$\\q;poison;JOURNAL",
    "SYSTEM$;JOURNAL",
    "SYSTEM$;DEADLETTER",
    "SYSTEM$;DEADXACT",
]
_QUEUES = [
    "q" * 124,
    "with space",
    "billing.Timeouts",
    "größe",
    "データ",
    "a/b:c@d=e",
    "q;" + "s" * 32,
]
_CANONICAL = [
    *(f"DIRECT={place}\\{tail}" for place in _PLACES for tail in _TAILS),
    *(f"DIRECT=OS:.\\{queue}" for queue in _QUEUES),
    *(f"DIRECT=OS:.\\q;{part}" for part in ("journals", "DEADXACT2", "j")),
    *(
        f"DIRECT={scheme}://{host}/MSMQ/{queue}"
        for scheme in ("HTTP", "HTTPS")
        for host in ("www.example.com", "host:8080", "10.0.0.1:65535")
        for queue in ("q", "PRIVATE$/q")
    ),
    *(f"MACHINE={GUID};{kind}" for kind in ("JOURNAL", "DEADLETTER", "DEADXACT")),
    f"PUBLIC={GUID}",
    f"PUBLIC={GUID};JOURNAL",
    f"PRIVATE={GUID}\\0000000f",
    f"PRIVATE={GUID}\\ffffffff;JOURNAL",
    f"DL={GUID}",
    f"DL={GUID}@example.com",
    f"CONNECTOR={GUID}",
    f"CONNECTOR={GUID};XACTONLY",
    f"CONNECTOR={GUID};XACTONLY,PUBLIC={GUID}",
    f"DL={GUID}@{'d' * 256}",
    "MULTICAST=224.0.0.0:0",
    "MULTICAST=224.0.0.0:1",
    "MULTICAST=229.0.0.1:9",
    "MULTICAST=230.10.99.100:10000",
    "MULTICAST=239.255.255.255:65535",
    f"PUBLIC={GUID},DIRECT=OS:.\\q,DL={GUID},MULTICAST=234.1.1.1:8001",
    "DIRECT=OS:.\\a,DIRECT=OS:.\\b;retry",
]
_READ_ALIKE = [
    ("direct=os:Host\\q", "DIRECT=OS:Host\\q"),
    ("Direct=Tcp:10.0.0.1\\private$\\q;journal", "DIRECT=TCP:10.0.0.1\\PRIVATE$\\q;JOURNAL"),
    (f"private={GUID.upper()}\\F", f"PRIVATE={GUID}\\0000000f"),
    (f"machine={GUID.upper()};deadxact", f"MACHINE={GUID};DEADXACT"),
    ("direct=http://h/msmq\\private$\\q", "DIRECT=HTTP://h/MSMQ/PRIVATE$/q"),
    ("DIRECT=HTTPS://h\\MSMQ\\q", "DIRECT=HTTPS://h/MSMQ/q"),
    ("DIRECT=TCP:FE80:0:0:0:0:0:0:1\\q", "DIRECT=TCP:fe80::1\\q"),
    ("DIRECT=IPX:0000001F:00A0F7370A32\\q", "DIRECT=IPX:0000001f:00a0f7370a32\\q"),
    (f"connector={GUID.upper()};xactonly", f"CONNECTOR={GUID};XACTONLY"),
    ("FormatName:DIRECT=OS:h\\q", "DIRECT=OS:h\\q"),
    ("FORMATNAME:direct=os:h\\q,DIRECT=OS:i\\q", "DIRECT=OS:h\\q,DIRECT=OS:i\\q"),
    (f"formatname:MACHINE={GUID};DEADXACT", f"MACHINE={GUID};DEADXACT"),
    ("DIRECT=OS:h\\system$;deadletter", "DIRECT=OS:h\\SYSTEM$;DEADLETTER"),
]
_WRONG = [
    # the text, and the character at which it is wrong
    ("", 0),
    ("q", 0),
    ("DIRECT", 0),
    ("DIRECT=", 7),
    ("DIRECT =OS:h\\q", 0),
    (" DIRECT=OS:h\\q", 0),
    ("DIRECT=XYZ:h\\q", 7),
    ("DIRECT=OS", 7),
    ("DIRECT=OS:", 10),
    ("DIRECT=OS:\\q", 10),
    ("DIRECT=OS:ho st\\q", 12),
    ("DIRECT=OS:" + "x" * 257 + "\\q", 266),
    ("DIRECT=HTTP://" + "x" * 257 + "/MSMQ/q", 270),
    (f"DL={GUID}@" + "x" * 257, 296),
    ("DIRECT=OS:h", 11),
    ("DIRECT=OS:h/q", 11),
    ("DIRECT=OS:h\\", 12),
    ("DIRECT=OS:h\\;JOURNAL", 12),
    ("DIRECT=OS:h\\q\0", 13),
    ("DIRECT=OS:h\\SYSTEM$;DEADLETTER\0", 30),
    (f"MACHINE={GUID};DEADXACT\0", 53),
    ("DIRECT=OS:h\\q\n", 13),
    ("DIRECT=OS:h\\q\\r", 13),
    ("DIRECT=OS:h\\q+r", 13),
    ('DIRECT=OS:h\\q"r', 13),
    ("DIRECT=OS:h\\" + "q" * 125, 136),
    ("DIRECT=OS:h\\q;", 14),
    ("DIRECT=OS:h\\q;" + "s" * 33, 46),
    ("DIRECT=OS:h\\q;DEADLETTER", 14),
    ("DIRECT=OS:h\\q;DEADXACT", 14),
    ("DIRECT=OS:h\\q;JOURNAL;JOURNAL", 21),
    ("DIRECT=OS:h\\q;JOURNAL;retry", 21),
    ("DIRECT=OS:h\\q;a;b", 15),
    ("DIRECT=OS:h\\SYSTEM$", 12),
    ("DIRECT=OS:h\\SYSTEM$;", 20),
    ("DIRECT=OS:h\\SYSTEM$;q", 20),
    ("DIRECT=OS:h\\SYSTEM$;DEADLETTERS", 30),
    ("DIRECT=OS:h\\PRIVATE$\\SYSTEM$", 21),
    ("DIRECT=OS:h\\PRIVATE$", 12),
    ("DIRECT=OS:h\\PRIVATE$\\", 21),
    ("DIRECT=OS:h\\DEADLETTER$", 12),
    ("DIRECT=TCP:h\\q", 11),
    ("DIRECT=TCP:10.0.0\\q", 11),
    ("DIRECT=TCP:10.0.0.256\\q", 11),
    ("DIRECT=TCP:::1::\\q", 11),
    ("DIRECT=TCP:\\q", 11),
    ("DIRECT=IPX:12:34\\q", 11),
    ("DIRECT=IPX:00000012\\q", 11),
    ("DIRECT=HTTP:h/MSMQ/q", 12),
    ("DIRECT=HTTP://", 14),
    ("DIRECT=HTTP://h", 15),
    ("DIRECT=HTTP://h:0/MSMQ/q", 16),
    ("DIRECT=HTTP://h:65536/MSMQ/q", 16),
    ("DIRECT=HTTP://h:x/MSMQ/q", 16),
    ("DIRECT=HTTP://h/q", 16),
    ("DIRECT=HTTP://h/MSMQ", 20),
    ("DIRECT=HTTP://h/MSMQ/", 21),
    ("DIRECT=HTTP://h/MSMQ/a/b", 22),
    ("DIRECT=HTTP://h/MSMQ/q;JOURNAL", 22),
    ("DIRECT=HTTP://h/MSMQ/q;retry", 22),
    ("DIRECT=HTTP://h/MSMQ/SYSTEM$;JOURNAL", 21),
    ("PUBLIC=", 7),
    ("PUBLIC=q", 7),
    (f"PUBLIC={GUID[:-1]}", 7),
    (f"PUBLIC={GUID}0", 43),
    (f"PUBLIC={{{GUID}}}", 7),
    (f"PUBLIC={GUID};DEADLETTER", 43),
    (f"PUBLIC={GUID};JOURNALS", 43),
    (f"PUBLIC={GUID}\\1", 43),
    (f"PRIVATE={GUID}", 44),
    (f"PRIVATE={GUID}\\", 45),
    (f"PRIVATE={GUID}\\g", 45),
    (f"PRIVATE={GUID}\\123456789", 53),
    (f"PRIVATE={GUID}\\1;retry", 46),
    (f"MACHINE={GUID}", 44),
    (f"MACHINE={GUID};", 45),
    (f"MACHINE={GUID};JOURNAL$", 52),
    (f"MACHINE={GUID}\\DEADXACT", 44),
    ("MACHINE=host;DEADXACT", 8),
    ("DL=", 3),
    (f"DL={GUID}@", 40),
    (f"DL={GUID};JOURNAL", 39),
    (f"CONNECTOR={GUID};XACT", 46),
    (f"CONNECTOR={GUID};XACTONLYX", 46),
    (f"CONNECTOR={GUID};XACTONLY;JOURNAL", 55),
    ("CONNECTOR=q", 10),
    ("MULTICAST=", 10),
    ("MULTICAST=223.255.255.255:1", 10),
    ("MULTICAST=240.0.0.0:1", 10),
    ("MULTICAST=224.0.0:1", 10),
    ("MULTICAST=ff02::1:1", 10),
    ("MULTICAST=224.0.0.1", 19),
    ("MULTICAST=224.0.0.1:", 20),
    ("MULTICAST=224.0.0.1:080", 21),
    ("MULTICAST=224.0.0.1:00", 21),
    ("MULTICAST=224.0.0.1:65536", 20),
    ("MULTICAST=224.0.0.1:99999", 20),
    ("MULTICAST=224.0.0.1:80x", 22),
    ("FormatName:", 11),
    ("FormatName:q", 11),
    ("FormatName: DIRECT=OS:h\\q", 11),
    ("FormatName:FormatName:DIRECT=OS:h\\q", 11),
    (f"FormatName:MACHINE={GUID}", 55),
    ("DIRECT=OS:h\\q,FormatName:DIRECT=OS:h\\q", 14),
    ("DIRECT=OS:.\\a,", 14),
    (",DIRECT=OS:.\\a", 0),
    ("DIRECT=OS:.\\a,,DIRECT=OS:.\\b", 14),
    ("DIRECT=OS:.\\a, DIRECT=OS:.\\b", 14),
    ("DIRECT=OS:.\\a,b", 14),
    ("DIRECT=OS:.\\a;JOURNAL,DIRECT=OS:.\\b", 0),
    ("DIRECT=OS:.\\a,DIRECT=OS:.\\SYSTEM$;DEADXACT", 14),
    (f"DIRECT=OS:.\\a,MACHINE={GUID};JOURNAL", 14),
    ("DİRECT=OS:.\\a", 0),
    ("DIRECT=OS:.\\q\u200b", 13),
    ("DIRECT=OS:.\\q\ud800", 13),
]


@pytest.mark.behaviour(104)
@pytest.mark.parametrize("text", _CANONICAL)
def test_a_name_in_its_printed_form_is_printed_as_it_was_read(text: str) -> None:
    assert str(parse_format_name(text)) == text


@pytest.mark.parametrize(("text", "printed"), _READ_ALIKE)
def test_keywords_guids_and_addresses_are_read_in_any_spelling(text: str, printed: str) -> None:
    assert str(parse_format_name(text)) == printed


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(("text", "at"), _WRONG)
def test_an_error_points_at_the_character(text: str, at: int) -> None:
    with pytest.raises(InvalidQueueName) as caught:
        parse_format_name(text)

    assert caught.value.at == at
    *_, shown, caret = str(caught.value).splitlines()
    assert shown[len(caret) - 1 : len(caret)] == ("".join(_shown(text[at])) if text[at:] else "")


def _shown(sign: str) -> str:
    return sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}"


def test_a_parse_error_has_the_text_that_the_door_uses() -> None:
    with pytest.raises(InvalidMessage, match="expected the end of the name, got"):
        parse_format_name("DIRECT=OS:h\\SYSTEM$;DEADXACT\0")


def test_there_are_two_hundred_cases_and_more() -> None:
    assert len(_CANONICAL) + len(_READ_ALIKE) + len(_WRONG) >= 200
    assert len(_WRONG) >= 90


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "DIRECT=OS:host\\SYSTEM$;DEADLETTER",
            DirectSystemName(Protocol.OS, "host", SystemQueue.DEADLETTER),
        ),
        (
            "DIRECT=OS:host\\SYSTEM$;DEADXACT",
            DirectSystemName(Protocol.OS, "host", SystemQueue.DEADXACT),
        ),
        (f"MACHINE={GUID};DEADXACT", MachineName(UUID(GUID), SystemQueue.DEADXACT)),
    ],
)
def test_the_three_names_of_the_dead_letter_queues(text: str, name: FormatName) -> None:
    assert parse_format_name(text) == name
    assert is_read_only(name)


_guids = st.uuids()
_signs = st.characters(exclude_characters='\\;+,"/', exclude_categories=("C", "Z"))
_reserved = ("JOURNAL", "DEADLETTER", "DEADXACT", "SYSTEM$", "PRIVATE$", "JOURNAL$")
_not_queues = (*_reserved, "DEADLETTER$", "XACTDEADLETTER$")
_names = st.text(_signs, min_size=1, max_size=124).filter(lambda t: t.upper() not in _not_queues)
_parts = st.text(_signs, min_size=1, max_size=32).filter(lambda t: t.upper() not in _not_queues)
_hosts = st.from_regex(r"[A-Za-z0-9._-]{1,256}", fullmatch=True)
_kinds = st.sampled_from(SystemQueue)
_addresses = st.one_of(
    st.tuples(st.just(Protocol.OS), _hosts),
    st.tuples(st.just(Protocol.TCP), st.ip_addresses().map(str).filter(lambda a: "%" not in a)),
    st.tuples(st.just(Protocol.IPX), st.from_regex(r"[0-9a-f]{8}:[0-9a-f]{12}", fullmatch=True)),
)
_direct = st.builds(
    lambda address, **more: DirectName(protocol=address[0], host=address[1], **more),
    _addresses,
    queue=_names,
    private=st.booleans(),
    subqueue=st.none() | _parts,
    journal=st.booleans(),
)
_web = st.builds(
    DirectName,
    protocol=st.sampled_from([Protocol.HTTP, Protocol.HTTPS]),
    host=st.builds("{}:{}".format, _hosts, st.integers(1, 65535)) | _hosts,
    queue=_names,
    private=st.booleans(),
)
_elements: st.SearchStrategy[Element] = st.one_of(
    _direct,
    _web,
    st.builds(lambda a, kind: DirectSystemName(a[0], a[1], kind), _addresses, _kinds),
    st.builds(PublicName, _guids, st.booleans()),
    st.builds(PrivateName, _guids, st.integers(0, 2**32 - 1), st.booleans()),
    st.builds(MachineName, _guids, _kinds),
    st.builds(DistributionListName, _guids, st.none() | _hosts),
    st.builds(ConnectorName, _guids, st.booleans()),
    st.builds(
        MulticastName, st.ip_addresses(v=4, network="224.0.0.0/4").map(str), st.integers(0, 65535)
    ),
)
_all: st.SearchStrategy[FormatName] = _elements | st.builds(
    MultiElementName,
    st.lists(_elements.filter(lambda e: not is_read_only(e)), min_size=2, max_size=5).map(tuple),
)


@pytest.mark.behaviour(104)
@given(_all)
def test_parsing_a_printed_name_gives_the_same_name(name: FormatName) -> None:
    assert parse_format_name(str(name)) == name
    assert is_format_name(str(name))


@given(_all, st.sampled_from(["FormatName:", "FORMATNAME:", "formatname:"]))
def test_a_prefix_changes_no_name(name: FormatName, prefix: str) -> None:
    assert parse_format_name(f"{prefix}{name}") == name
    assert is_format_name(f"{prefix}{name}")


@pytest.mark.behaviour(104)
@given(st.text())
def test_a_text_with_the_prefix_is_never_the_name_of_a_plain_queue(text: str) -> None:
    assert is_format_name(f"FormatName:{text}")


@given(_all, st.data())
def test_one_wrong_sign_anywhere_is_refused_there_or_before(
    name: FormatName, data: st.DataObject
) -> None:
    text = str(name)
    at = data.draw(st.integers(0, len(text)))

    with pytest.raises(InvalidQueueName) as caught:
        parse_format_name(f"{text[:at]}\0{text[at:]}")

    assert caught.value.at <= at


@given(st.text())
def test_any_text_is_a_name_or_an_error_that_points_into_it(text: str) -> None:
    try:
        found: FormatName | int = parse_format_name(text)
    except InvalidQueueName as error:
        found = error.at

    if isinstance(found, int):
        assert 0 <= found <= len(text)
    else:
        assert parse_format_name(str(found)) == found


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (".\\private$\\billing", "DIRECT=OS:.\\PRIVATE$\\billing"),
        ("sales01\\billing", "DIRECT=OS:sales01\\billing"),
        ("sales01\\billing;retry", "DIRECT=OS:sales01\\billing;retry"),
        ("sales01\\PRIVATE$\\billing;JOURNAL", "DIRECT=OS:sales01\\PRIVATE$\\billing;JOURNAL"),
        ("sales01\\Deadletter$", "DIRECT=OS:sales01\\SYSTEM$;DEADLETTER"),
        ("sales01\\XactDeadletter$", "DIRECT=OS:sales01\\SYSTEM$;DEADXACT"),
        ("sales01\\Journal$", "DIRECT=OS:sales01\\SYSTEM$;JOURNAL"),
        ("sales01\\system$;DEADLETTER", "DIRECT=OS:sales01\\SYSTEM$;DEADLETTER"),
        (".\\SYSTEM$;deadxact", "DIRECT=OS:.\\SYSTEM$;DEADXACT"),
        ("sales01\\system$;Journal", "DIRECT=OS:sales01\\SYSTEM$;JOURNAL"),
        ("sales01\\billing\\Journal$", "DIRECT=OS:sales01\\billing;JOURNAL"),
        (".\\private$\\billing\\journal$", "DIRECT=OS:.\\PRIVATE$\\billing;JOURNAL"),
    ],
)
def test_path_names_are_read_as_names_of_the_same_queue(text: str, printed: str) -> None:
    assert str(parse_path_name(text)) == printed


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("billing", 7),
        ("a\\", 2),
        ("a\\b\\c", 3),
        ("a\\Deadletter$;JOURNAL", 13),
        ("a\\system$", 2),
        ("a\\system$;", 10),
        ("a\\system$;q", 10),
        ("a\\system$;DEADLETTER\\Journal$", 20),
        ("a\\b\\Journal$s", 12),
        ("a\\b;JOURNAL\\Journal$", 11),
        ("a\\b\\Deadletter$", 3),
        ("x" * 257 + "\\q", 256),
    ],
)
def test_a_wrong_path_name_is_pointed_at_too(text: str, at: int) -> None:
    with pytest.raises(InvalidQueueName) as caught:
        parse_path_name(text)

    assert caught.value.at == at


@pytest.mark.parametrize("text", ["billing", "a=b", "sales01\\q", "=x", "DIRECTOS:h\\q"])
def test_other_names_are_no_format_names(text: str) -> None:
    assert not is_format_name(text)
