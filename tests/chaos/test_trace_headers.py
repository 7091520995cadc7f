"""A message bears the name of the process that sent it, on every way out."""

from __future__ import annotations

from contextlib import closing
from typing import cast

import amqp
import pytest

from chaos.trace_headers import SENT_BY, signed
from timeoutmgr.contracts import StartsSending
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import QueueDeclaration, Route
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.foreign import foreign_from_kombu
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.mark.parametrize("opened", ["session", "session_of_batches", "start_sending"])
def test_a_message_has_trace_headers_on_every_way_out(
    opened: str, rabbitmq_url: str, raw_channel: amqp.Channel
) -> None:
    message = Message(id="m", headers={}, body=b"", content_type="text/plain")
    with closing(KombuTransport(rabbitmq_url)) as plain:
        transport = cast(KombuTransport, signed(plain, ["consumer"], "migration#7"))
        batches = opened == "session_of_batches"
        with closing(
            transport.session_of_batches(9) if batches else transport.session()
        ) as session:
            session.create_queues(["consumer"])
            outgoing = [Outgoing("consumer", message)]
            if opened == "start_sending":
                assert isinstance(session, StartsSending)
                session.start_sending(outgoing).results()
            else:
                session.send(outgoing)

    assert raw_channel.basic_get("consumer", no_ack=True).headers[SENT_BY] == "migration#7"


def test_a_foreign_message_bears_them_among_its_own(
    rabbitmq_url: str, raw_channel: amqp.Channel
) -> None:
    route = Route("", "foreign", (QueueDeclaration("foreign"),))
    prepared = amqp.Message("task", application_headers={"retries": 3})
    foreign = foreign_from_kombu(prepared, route)
    given = {**foreign.as_headers(), headers.DISPATCHED_AT: "then"}
    message = Message(id="m", headers=given, body=foreign.body)

    with (
        closing(signed(KombuTransport(rabbitmq_url), [], "worker-1#7")) as transport,
        closing(transport.session()) as session,
    ):
        session.send([Outgoing(route.destination, message, route)])

    found = raw_channel.basic_get("foreign", no_ack=True)
    assert found.headers == {"retries": 3, SENT_BY: "worker-1#7", headers.DISPATCHED_AT: "then"}
