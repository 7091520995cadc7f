"""Converts rows of messages to send into timeouts to store, as an endpoint composes them.

Workers of the data source's sink have no Spark whose expressions could judge a row. Instead, the
composer of ``Endpoint.send_many`` judges rows, and refuses the same messages as an endpoint.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros
from timeoutmgr.message.routes import Clearing, timeout_id, to_timeout_manager
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.stores import limits_of
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.sender.composer import Composer, SendOptions

NEEDED: Final = ("destination", "due", "body", "key")
READ: Final = (*NEEDED, "saga_id", "message_type", "content_type", "headers")
_ROUTING: Final = (headers.EXPIRE, headers.DESTINATION)


def is_to_send(names: Sequence[str]) -> bool:
    """Return whether rows with these columns are messages to send, not complete timeouts."""
    return not set(TO_STORE.names) <= set(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRows:
    """Messages of the data set *dataset*, sent by *endpoint* to its own timeout manager.

    The message id of a row is the data set and the row's key, so that a row that is written again,
    by another attempt or from another checkpoint, is the same timeout.
    """

    endpoint: str
    dataset: str
    message_type: str | None
    clock: Clock
    store: str
    """The name of the store; limits come from its settings, which are not sent to workers."""

    def require(self, names: Sequence[str]) -> None:
        """Raise WrongColumns unless rows with the columns *names* can be sent."""
        problems = [f"have no column {name!r}" for name in NEEDED if name not in names]
        problems += [
            f"have a column {name!r}, which is not read; known: {', '.join(READ)}"
            for name in names
            if name not in READ
        ]
        if problems:
            raise WrongColumns("the rows to send", problems)

    def timeouts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the timeouts of *batch*; raise InvalidMessage, with the key, for a bad row."""
        composer = self._composer()
        try:
            found = [self._timeout(composer, row) for row in batch.to_pylist()]
        except (InvalidMessage, ValueError, OverflowError) as error:
            if batch.num_rows > 1:
                for at in range(batch.num_rows):
                    self.timeouts(batch.slice(at, 1))
            raise InvalidMessage(
                f"the row with the key {batch['key'][0].as_py()!r} cannot be sent: {error}"
            ) from error
        return pa.RecordBatch.from_pylist(found, schema=TO_STORE)

    def _composer(self) -> Composer:
        return Composer(
            endpoint=self.endpoint,
            clearing=Clearing(endpoint=self.endpoint),
            reply_to=self.endpoint,
            limits=limits_of(self.store),
            clock=self.clock,
            new_id=lambda: "",  # each row has an id
            timeout_id_of=lambda message_id: timeout_id(self.endpoint, message_id),
            delays=lambda outgoing, due: to_timeout_manager(outgoing, due, self.endpoint),
        )

    def _timeout(self, composer: Composer, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["key"] in (None, "") or row["due"] is None or row["body"] is None:
            raise InvalidMessage("key, due and body are needed, and one of the three is empty")
        body, content_type = row["body"], row.get("content_type") or None
        if isinstance(body, str):
            body, content_type = body.encode(), content_type or "application/json"
        message_type = row.get("message_type") or self.message_type
        options = SendOptions(
            deliver_at=_due(row["due"]),
            message_id=f"{self.dataset}/{row['key']}",
            saga_id=row.get("saga_id"),
            headers=_headers(row.get("headers")),
            content_type=content_type,
        )
        composed = composer.compose(row["destination"], message_type or "", body, options)
        message, sent = composed.outgoing.message, composed.sent
        given = {name: text for name, text in message.headers.items() if name not in _ROUTING}
        return {
            "endpoint": self.endpoint,
            "id": sent.id,
            "due": sent.due,
            "destination": row["destination"],
            "saga_id": row.get("saga_id"),
            "message_id": message.id,
            "headers": json.dumps(given, ensure_ascii=False),
            "body": message.body,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "created": from_micros(self.clock.now()),
        }


def _due(given: object) -> datetime:
    if isinstance(given, str):
        given = datetime.fromisoformat(given)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidMessage(
            f"due is a timestamp, or a text of ISO 8601 with a zone; got {given!r}"
        )
    return given.astimezone(UTC)


def _headers(given: Any) -> dict[str, str]:
    """Return *given*, an Arrow map (pairs) or a JSON object, as headers."""
    given = json.loads(given) if isinstance(given, str) else given
    is_map = isinstance(given, list) and all(isinstance(one, tuple) for one in given)
    if not is_map and not isinstance(given, dict | None):
        raise InvalidMessage(f"headers are a map or a JSON object of texts, got {given!r:.80}")
    return dict(given or {})
