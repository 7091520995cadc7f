"""Labels are names and values, carried by one header."""

from __future__ import annotations

import pytest

from tests.support.nested import NESTED
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.labels import check_labels, label_headers, label_texts, labels_of
from timeoutmgr.message.message import Message


def test_labels_travel_in_a_header_with_any_printable_value() -> None:
    labels = {"tenant": ['b="', "a,é"], "task": "proj.charge"}

    message = Message(id="m", headers=label_headers(labels))

    assert labels_of(message) == ("task=proj.charge", "tenant=a,é", 'tenant=b="')
    assert (label_headers({}), labels_of(Message(id="m"))) == ({}, ())


@pytest.mark.parametrize(
    "labels",
    [
        {"": "a"},
        {"a=b": "c"},
        {"a": ""},
        {"a": "b\n"},
        {"a": "b" * 240},
        {"a": [f"{n}" for n in range(51)]},
        {"a": [1]},
        {"a": 1},
        ["a=b"],
        {"a": NESTED},
        [NESTED],
    ],
)
def test_a_wrong_label_is_refused(labels: object) -> None:
    with pytest.raises(InvalidMessage, match="label"):
        label_texts(labels)  # type: ignore[arg-type]  # as a program without types gives it


@pytest.mark.parametrize("text", ["", "{}", '["a"]', "[1]", '["=b"]', "[" * 5000])
def test_a_strangers_header_is_refused_at_the_door_and_read_as_no_label_behind_it(
    text: str,
) -> None:
    message = Message(id="m", headers={headers.LABELS: text})

    assert labels_of(message) == ()
    with pytest.raises(InvalidMessage, match="expected a JSON list of texts name=value"):
        check_labels(message)
