"""What names mean here: a queue of the transport, or one that a node has of itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from timeoutmgr.deadletter.addresses import NodeQueueAddress, QueueAddress, destination, resolve
from timeoutmgr.deadletter.stored_copy import NodeQueue
from timeoutmgr.errors import InvalidMessage, InvalidQueueName

GUID = "0b3d0c5e-7f0a-4a39-9d7e-0a1b2c3d4e5f"


def nodes() -> Mapping[str, str]:
    return {"n1": "11111111-7f0a-4a39-9d7e-0a1b2c3d4e5f", "n2": GUID}


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("billing", "billing"),
        ("billing.v2", "billing.v2"),
        ("a=b", "a=b"),
        ("DIRECT=OS:.\\billing", "billing"),
        ("direct=os:N1\\private$\\billing", "billing"),
        ("DIRECT=TCP:127.0.0.1\\billing", "billing"),
        (".\\private$\\billing", "billing"),
        ("n1\\billing;retry", "billing;retry"),
        ("FormatName:DIRECT=OS:.\\billing", "billing"),
        ("system$;DEADLETTER", "system$;DEADLETTER"),
    ],
)
def test_names_of_a_queue_are_that_queue(text: str, queue: str) -> None:
    assert resolve(text, "n1", nodes) == QueueAddress(queue)
    assert destination(text, "n1", nodes) == queue


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("DIRECT=OS:.\\SYSTEM$;DEADLETTER", NodeQueueAddress("n1", NodeQueue.DEADLETTER)),
        ("DIRECT=OS:n2\\SYSTEM$;DEADXACT", NodeQueueAddress("n2", NodeQueue.DEADXACT)),
        (f"MACHINE={GUID};DEADXACT", NodeQueueAddress("n2", NodeQueue.DEADXACT)),
        (f"MACHINE={GUID.upper()};JOURNAL", NodeQueueAddress("n2", NodeQueue.JOURNAL)),
        ("DIRECT=OS:.\\billing;JOURNAL", NodeQueueAddress("n1", NodeQueue.JOURNAL, "billing")),
        (".\\XactDeadletter$", NodeQueueAddress("n1", NodeQueue.DEADXACT)),
        ("N2\\Journal$", NodeQueueAddress("n2", NodeQueue.JOURNAL)),
        ("n2\\system$;DEADLETTER", NodeQueueAddress("n2", NodeQueue.DEADLETTER)),
        (".\\billing\\Journal$", NodeQueueAddress("n1", NodeQueue.JOURNAL, "billing")),
        (f"FormatName:MACHINE={GUID};DEADXACT", NodeQueueAddress("n2", NodeQueue.DEADXACT)),
    ],
)
def test_names_of_a_nodes_own_queues_are_readable(text: str, address: NodeQueueAddress) -> None:
    assert resolve(text, "n1", nodes) == address
    with pytest.raises(InvalidMessage, match="read-only"):
        destination(text, "n1", nodes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("DIRECT=OS:elsewhere\\billing", "has host 'elsewhere'"),
        ("DIRECT=HTTP://n1/MSMQ/billing", "has host 'n1'"),
        ("DIRECT=OS:elsewhere\\SYSTEM$;DEADXACT", "known: n1, n2"),
        (f"MACHINE={GUID[:-1]}0;DEADXACT", "no dead letters here"),
        ("DIRECT=OS:.\\a,DIRECT=OS:.\\b", "several queues"),
        (f"PUBLIC={GUID}", "directory service"),
        ("MULTICAST=224.0.0.1:80", "directory service"),
        (f"DL={GUID}", "directory service"),
        (f"FormatName:MACHINE={GUID}", "expected ';' and one of JOURNAL"),
        ("FormatName:billing", "expected PUBLIC="),
    ],
)
def test_a_name_without_a_queue_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        destination(text, "n1", nodes)


def test_a_broken_name_points_at_the_character() -> None:
    with pytest.raises(InvalidQueueName) as caught:
        destination("DIRECT=OS:.\\billing\0", "n1", nodes)

    assert caught.value.at == 19


def test_plain_names_need_no_lookup() -> None:
    def never() -> Mapping[str, str]:
        raise AssertionError("asked for nodes")

    assert destination("billing", "n1", never) == "billing"
    assert destination("DIRECT=OS:.\\billing", "n1", never) == "billing"
