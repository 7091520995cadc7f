"""The limit: the same steps on the same rows with py-amqp and psycopg, without a framework.

The code is not safe: without retries, claims, an error queue or handling of outages, in one
process. Only the necessary work remains.
"""

import json
import multiprocessing
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import amqp
from sqlalchemy import make_url

from timeoutmgr.message import headers

from .figures import Sample
from .pending import PREFIX
from .servers import connect

_SPAWN = multiprocessing.get_context("spawn")
_NAMESPACE = uuid.uuid4()
_ROUTING = (headers.EXPIRE, headers.DESTINATION)
_TYPES = ["text", "int8", *["text"] * 4, "bytea", "text", "text", "int8"]
_COPY = "COPY incoming FROM STDIN (FORMAT BINARY)"
_INCOMING = """
CREATE TEMP TABLE incoming (endpoint text, due bigint, id text, destination text, message_id text,
    headers text, body bytea, content_type text, content_encoding text, created bigint)
ON COMMIT DELETE ROWS
"""
_STORE = f"""
WITH fresh AS (
    INSERT INTO {PREFIX}timeout_keys (endpoint, id, due, version, state)
    SELECT endpoint, id, due, 0, 'pending' FROM incoming ON CONFLICT DO NOTHING RETURNING id
)
INSERT INTO {PREFIX}timeouts (endpoint, due, id, destination, message_id, headers, body,
    content_type, content_encoding, created, version, attempts)
SELECT incoming.*, 0, 0 FROM incoming JOIN fresh USING (id)
"""
_NEXT = f"""
SELECT due, id FROM {PREFIX}timeouts
WHERE endpoint = %s AND (due, id) > (%s, %s) AND due <= %s ORDER BY due, id LIMIT %s
"""
_KEYS = "unnest(%s::bigint[], %s::text[]) AS key (due, id)"
_LOCK_ROWS = f"""
SELECT t.id, t.due, t.destination, t.message_id, t.headers, t.body, t.content_type,
    t.content_encoding, t.attempts
FROM {PREFIX}timeouts t JOIN {_KEYS} ON t.due = key.due AND t.id = key.id
WHERE t.endpoint = %s FOR UPDATE OF t SKIP LOCKED
"""
_CLOSE = f"""
WITH gone AS (
    DELETE FROM {PREFIX}timeouts t USING {_KEYS}
    WHERE t.endpoint = %s AND t.due = key.due AND t.id = key.id
    RETURNING t.id, t.due, t.endpoint, t.destination
), closed AS (
    UPDATE {PREFIX}timeout_keys k SET state = 'dispatched', closed_at = %s
    FROM gone WHERE k.endpoint = gone.endpoint AND k.id = gone.id
)
INSERT INTO {PREFIX}timeout_history (id, event, at, due, endpoint, destination, attempt, node)
SELECT id, 'dispatched', %s, due, endpoint, destination, 0, 'bare' FROM gone
"""


def in_a_process(work: Callable[..., Sample], *values: Any) -> Sample:
    """Run *work* in a fresh process and return its sample."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_answer, args=(theirs, work, *values), daemon=True)
    process.start()
    theirs.close()
    try:
        sample: Sample = ours.recv()
    finally:
        process.join(10)
    return sample


def _answer(pipe: Any, work: Callable[..., Sample], *values: Any) -> None:
    pipe.send(work(*values))


def store(transport: str, database: str, endpoint: str, count: int, batch: int) -> Sample:
    """Consume *count* messages of ``<endpoint>.Timeouts``: COPY, insert new rows, commit, ack."""
    rows: list[tuple[Any, ...]] = []
    first = last = (0, 0.0, 0.0)
    total = 0
    with connect(database) as sql, broker(transport) as connection:
        sql.execute(_INCOMING)
        channel = connection.channel()
        channel.auto_decode = False

        def on_message(message: Any) -> None:
            nonlocal rows, first, last, total
            rows.append(_row(endpoint, message))
            if len(rows) < batch and total + len(rows) < count:
                return
            with sql.transaction():
                with sql.cursor().copy(_COPY) as copy:
                    copy.set_types(_TYPES)
                    for row in rows:
                        copy.write_row(row)
                sql.execute(_STORE)
            channel.basic_ack(message.delivery_tag, multiple=True)
            total += len(rows)
            last = (total, time.perf_counter(), time.process_time())
            first = first if first[0] else last
            rows = []

        channel.basic_qos(0, 2 * batch, False)
        channel.basic_consume(f"{endpoint}.Timeouts", callback=on_message)
        while total < count:
            connection.drain_events(timeout=30)
    return Sample(last[0] - first[0], last[1] - first[1], last[2] - first[2])


def _row(endpoint: str, message: Any) -> tuple[Any, ...]:
    found = message.headers
    kept = {name: value for name, value in found.items() if name not in _ROUTING}
    return (
        endpoint,
        _due(found[headers.EXPIRE]),
        str(uuid.uuid5(_NAMESPACE, message.properties["message_id"])),
        found[headers.DESTINATION],
        message.properties["message_id"],
        json.dumps(kept),
        message.body,
        message.properties["content_type"],
        message.properties["content_encoding"],
        0,
    )


def _due(text: str) -> int:
    whole = datetime.fromisoformat(f"{text[:19]}+00:00")
    return int(whole.timestamp()) * 1_000_000 + int(text[20:26])


def dispatch(transport: str, database: str, endpoint: str, count: int, chunk: int) -> Sample:
    """Send the keys of due rows through a queue, and the rows to their destination.

    Use two threads, like the product: one reads keys while the other waits for confirms.
    """
    control = f"{endpoint}.TimeoutsDispatcher"
    first = last = (0, 0.0, 0.0)
    with connect(database) as sql, broker(transport) as connection:
        _plan_by_key(sql)
        channel, window = connection.channel(), Window(connection)

        def on_order(message: Any) -> None:
            nonlocal first, last
            keys = json.loads(message.body)
            dues, ids = [due for due, _ in keys], [name for _, name in keys]
            with sql.transaction():
                locked = sql.execute(_LOCK_ROWS, [dues, ids, endpoint], binary=True).fetchall()
                for row in locked:
                    window.publish(row)
                window.wait()
                now = time.time_ns() // 1000
                sql.execute(_CLOSE, [dues, ids, endpoint, now, now])
            channel.basic_ack(message.delivery_tag)
            last = (last[0] + len(locked), time.perf_counter(), time.process_time())
            first = first if first[0] else last

        channel.basic_qos(0, 2, False)
        channel.basic_consume(control, callback=on_order)
        poller = threading.Thread(
            target=_poll, args=(transport, database, endpoint, control, chunk), daemon=True
        )
        poller.start()
        while last[0] < count:
            connection.drain_events(timeout=30)
        poller.join()
    return Sample(last[0] - first[0], last[1] - first[1], last[2] - first[2])


def _poll(transport: str, database: str, endpoint: str, control: str, chunk: int) -> None:
    due, name = 0, ""
    with connect(database) as sql, broker(transport) as connection:
        _plan_by_key(sql)
        window = Window(connection)
        while True:
            now = time.time_ns() // 1000
            keys = sql.execute(_NEXT, [endpoint, due, name, now, chunk], binary=True).fetchall()
            if not keys:
                return
            due, name = keys[-1]
            message = amqp.Message(json.dumps(keys).encode(), delivery_mode=2)
            window.send(message, control)
            window.wait()


def _plan_by_key(sql: Any) -> None:
    # A new table has no statistics: without these settings, each chunk would read all of it.
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan"):
        sql.execute(f"SET {name} = off")


class Window:
    """Many publishes with a single wait for all confirms."""

    def __init__(self, connection: amqp.Connection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._sent = self._confirmed = 0

    def publish(self, row: Any) -> None:
        name, _, destination, message_id, text, body, content_type, encoding, _ = row
        message = amqp.Message(
            body,
            message_id=message_id,
            content_type=content_type,
            content_encoding=encoding,
            delivery_mode=2,
            application_headers={**json.loads(text), headers.RELATED_TO_TIMEOUT: name},
        )
        self.send(message, destination)

    def send(self, message: amqp.Message, queue: str) -> None:
        self._channel.basic_publish(message, routing_key=queue, mandatory=True)
        self._sent += 1

    def wait(self) -> None:
        while self._confirmed < self._sent:
            self._connection.drain_events(timeout=30)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._confirmed = tag if multiple else self._confirmed + 1


def broker(url: str) -> amqp.Connection:
    """Return an open py-amqp connection."""
    parts = make_url(url)
    connection = amqp.Connection(
        host=f"{parts.host}:{parts.port or 5672}",
        userid=parts.username or "guest",
        password=parts.password or "guest",
        virtual_host=parts.database or "/",
    )
    connection.connect()
    return connection
