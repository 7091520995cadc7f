"""The same messages as rows of a frame, and as an endpoint sends them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from timeoutmgr import Endpoint
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.sender.composer import SendOptions, ToSend
from timeoutmgr.settings.file import configuration_from

INSTANT = pa.timestamp("us", tz="UTC")
_zones = st.sampled_from([UTC, timezone(timedelta(hours=-5)), timezone(timedelta(hours=5.5))])
row_to_send = st.fixed_dictionaries(
    {
        "destination": st.sampled_from(["billing", "mail.out", "é"]),
        "due": st.datetimes(datetime(2031, 1, 1), datetime(2090, 1, 1), timezones=_zones),
        "body": st.text(st.characters(codec="utf-8"), max_size=20),
        "message_type": st.sampled_from(["Reminder", "Trial.Ended"]),
        "saga_id": st.none() | st.sampled_from(["s1", "s2"]),
        "content_type": st.none() | st.sampled_from(["text/plain", "application/json"]),
    }
)
"""A row that can be sent."""


def are_mixed(rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether *rows* differ: Hypothesis first tries the simplest row, many times."""
    return len({row["destination"] for row in rows}) > 1


def as_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return *rows* with a key each."""
    schema = pa.schema(
        [(name, INSTANT if name == "due" else pa.string()) for name in (*rows[0], "key")]
    )
    keyed = [row | {"key": f"k{number}"} for number, row in enumerate(rows)]
    return pa.Table.from_pylist(keyed, schema=schema)


def messages(rows: Sequence[dict[str, Any]]) -> list[ToSend]:
    """Return the messages of *rows*, with the ids that their keys give."""
    return [
        ToSend(
            row["destination"],
            row["message_type"],
            row["body"].encode(),
            SendOptions(
                deliver_at=row["due"],
                message_id=f"spring/k{number}",
                saga_id=row["saga_id"],
                content_type=row["content_type"] or "application/json",
            ),
        )
        for number, row in enumerate(rows)
    ]


def sent_by_an_endpoint(store: Store, sent: Sequence[ToSend]) -> None:
    """Have the endpoint of the settings that name *store* store *sent*."""
    configuration = configuration_from(Path(store.name))
    configuration.check_destinations = False
    with Endpoint(configuration) as endpoint:
        endpoint.store_many(sent)
