"""Foreign messages and routes in headers: read back as written, or refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nested import NESTED
from timeoutmgr.errors import DestinationNotAllowed, InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import (
    AMQP,
    KOMBU,
    Foreign,
    QueueDeclaration,
    Route,
    foreign_of,
    is_delayed_by_broker,
    outgoing_to,
    route_of,
    without_route,
)
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.validation import Limits, check_destination

characters = st.characters(codec="utf-8", exclude_characters="\0")
names = st.text(characters, min_size=1, max_size=20)
routes = st.builds(
    Route,
    st.text(characters, max_size=20),
    st.text(characters, max_size=20),
    st.lists(
        st.builds(
            QueueDeclaration,
            names,
            st.text(characters, max_size=9),
            st.sampled_from(["direct", "topic", "fanout"]),
            st.text(characters, max_size=9),
            durable=st.booleans(),
            arguments=st.dictionaries(names, st.integers() | st.text(), max_size=2),
        ),
        max_size=2,
    ).map(tuple),
)


def carried(foreign: Foreign) -> Message:
    return Message(id="m", headers=foreign.as_headers(), body=foreign.body)


@given(routes, st.sampled_from([AMQP, KOMBU]), st.binary(), st.binary())
def test_headers_carry_a_foreign_message_and_its_route_unchanged(
    route: Route, codec: str, properties: bytes, body: bytes
) -> None:
    message = carried(Foreign(route, codec, properties, body))

    read = foreign_of(outgoing_to(route.destination, message))

    assert read == Foreign(route, codec, properties, body)
    assert read is not None
    assert read.route.declare == route.declare


@given(routes, routes)
def test_two_routes_with_exchanges_have_two_destinations(one: Route, other: Route) -> None:
    if one.exchange and other.exchange:
        assert (one.destination == other.destination) == (one.address() == other.address())


def test_a_message_for_another_queue_keeps_its_route_for_later() -> None:
    message = carried(Foreign(Route("x", "k"), AMQP, b"p"))

    outgoing = outgoing_to("error", message)

    assert outgoing == Outgoing("error", message)
    assert foreign_of(outgoing) is None
    assert without_route(outgoing).headers == message.headers


def test_a_routed_message_arrives_without_its_route() -> None:
    message = Message(id="m", headers={"own": "1", **Route("x", "k").as_headers()})
    outgoing = outgoing_to(Route("x", "k").destination, message)

    assert outgoing.via is not None
    assert outgoing.via.address() == ("x", "k")
    assert without_route(outgoing).headers == {"own": "1"}
    assert not is_delayed_by_broker(outgoing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "no json",
        "{}",
        '{"exchange":"x","routing_key":"k"}',
        '{"exchange":1,"routing_key":"k","declare":[]}',
        '{"exchange":"x","routing_key":"k","declare":[{}]}',
        '{"exchange":"x","routing_key":"k","declare":[{"queue":""}]}',
        '{"exchange":"x","routing_key":"k","declare":[{"queue":"q","more":1}]}',
        '{"exchange":"x","routing_key":"k","declare":[7]}',
        '{"exchange":"x","routing_key":"k","declare":7}',
        "[" * 100_000,
    ],
)
def test_a_malformed_route_of_a_stranger_is_an_invalid_message(text: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a route"):
        route_of(Message(id="m", headers={headers.ROUTE: text}))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "-Infinity"])
def test_a_route_declares_no_number_that_a_broker_cannot_read(number: str) -> None:
    declared = f'[{{"queue":"q","arguments":{{"x":[{number}]}}}}]'
    route = f'{{"exchange":"","routing_key":"q","declare":{declared}}}'

    with pytest.raises(InvalidMessage, match="finite numbers only"):
        route_of(Message(id="m", headers={headers.ROUTE: route}))


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "nul\0", "half \ud800", 7])
@pytest.mark.parametrize("what", ["queue", "exchange", "exchange_type", "routing_key"])
def test_a_route_declares_no_name_that_amqp_cannot_carry(what: str, name: object) -> None:
    declared = {"queue": "q", what: name}
    route = json.dumps({"exchange": "", "routing_key": "q", "declare": [declared]})

    with pytest.raises(InvalidMessage, match=what):
        route_of(Message(id="m", headers={headers.ROUTE: route}))


@pytest.mark.parametrize("name", ["x" * 256, "nul\0", "half \ud800"])
@pytest.mark.parametrize("what", ["exchange", "routing_key"])
def test_a_route_leads_by_no_name_that_amqp_cannot_carry(what: str, name: str) -> None:
    route = json.dumps({"exchange": "", "routing_key": "q", "declare": [], what: name})

    with pytest.raises(InvalidMessage, match=what):
        route_of(Message(id="m", headers={headers.ROUTE: route}))


def test_a_route_declares_names_of_at_most_255_bytes() -> None:
    name = "ä" * 127 + "x"
    routes = [
        Route("x", "k", (QueueDeclaration("q", each, "direct", each),))
        for each in (name, name + "x")
    ]

    assert route_of(Message(id="m", headers=routes[0].as_headers())) == routes[0]
    with pytest.raises(InvalidMessage, match="255 bytes"):
        route_of(Message(id="m", headers=routes[1].as_headers()))


@pytest.mark.parametrize("text", ["amqp-0-9-1 ä", "amqp-0-9-1 x", "other eHg=", "", " eHg="])
def test_a_malformed_foreign_message_of_a_stranger_is_an_invalid_message(text: str) -> None:
    route = Route("x", "k")
    message = Message(id="m", headers={**route.as_headers(), headers.FOREIGN: text})

    with pytest.raises(InvalidMessage):
        foreign_of(outgoing_to(route.destination, message))


def test_a_route_declares_no_queue_into_which_no_message_may_go() -> None:
    limits = Limits(allowed_destinations=("tasks", "exchange:x/*"))
    route = Route("x", "k", (QueueDeclaration("elsewhere", "x"),))
    message = Message(id="m", headers=route.as_headers())

    with pytest.raises(DestinationNotAllowed, match="elsewhere"):
        check_destination(route.destination, limits, message=message)
    check_destination(route.destination, limits)


def test_a_route_whose_arguments_are_nested_too_deeply_is_refused() -> None:
    route = Route("", "sales", (QueueDeclaration("sales", arguments={"a": NESTED}),))

    with pytest.raises(InvalidMessage, match="the route to 'sales' cannot be written as JSON"):
        route.as_headers()
