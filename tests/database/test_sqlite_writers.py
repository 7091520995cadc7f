"""Use of a SQLite file beside forks, and writes into a file that is not there any more."""

from __future__ import annotations

import ctypes
import itertools
import linecache
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.support.forks import Forks, ended_in_a_child
from tests.support.waiting import eventually
from timeoutmgr.database import Database, DatabaseSettings, sqlite_writers
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.database.sqlite_writers import SQLITE
from timeoutmgr.errors import StorageUnavailable

CAN_WRITE, FAILED, IS_REFUSED = range(3)


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    made = Database(sqlite_url)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    yield made
    made.dispose()


def write(database: Database, note: str) -> None:
    insert = text("INSERT INTO notes VALUES (:note)")
    database.run(lambda connection: connection.execute(insert, {"note": note}))


def notes(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(text("SELECT note FROM notes")).scalars())


def forked(database: Database) -> int:
    """Have a child write; return how that ended."""
    return ended_in_a_child(lambda: _ended(lambda: write(database, "of a child")))


def _ended(use: Callable[[], object]) -> int:
    try:
        use()
    except StorageUnavailable as error:
        return IS_REFUSED if "it was forked while its parent used" in str(error) else FAILED
    return CAN_WRITE


def writing_without_end(database: Database, stop: threading.Event) -> None:
    while not stop.is_set():
        write(database, "of the parent")


def writing_for_long(database: Database) -> tuple[Callable[[], None], threading.Thread]:
    """Begin a write in another thread; return how to end it, and the thread."""
    begun, end = threading.Event(), threading.Event()

    def write_for_long() -> None:
        with database.begin():
            begun.set()
            end.wait()

    thread = threading.Thread(target=write_for_long)
    thread.start()
    begun.wait()
    return end.set, thread


def test_a_child_that_is_forked_beside_many_writes_can_write(database: Database) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=writing_without_end, args=(database, stop))
    thread.start()

    ended = [forked(database) for _ in range(10)]
    stop.set()
    thread.join()

    assert ended == [CAN_WRITE] * 10
    assert notes(database).count("of a child") == 10


def test_a_fork_waits_until_the_reads_of_other_threads_end(database: Database) -> None:
    begun, end, is_read = (threading.Event() for _ in range(3))

    def read() -> None:
        with database.read():
            begun.set()
            end.wait()
            notes(database)  # on one more connection, although a fork waits
        is_read.set()

    def write_in_the_child() -> int:
        return _ended(lambda: write(database, "of a child")) if is_read.is_set() else FAILED

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read)
        begun.wait()
        forking = threads.submit(ended_in_a_child, write_in_the_child)
        eventually(lambda: SQLITE._forking is not None or forking.done(), "the fork waits")
        end.set()

        assert forking.result() == CAN_WRITE
        reading.result()
    assert notes(database) == ["of a child"]


def test_what_a_child_commits_is_kept_when_its_parent_closes_the_file(database: Database) -> None:
    (opened, report), (closed, resume) = os.pipe(), os.pipe()
    with Forks() as forks:
        if forks():
            write(database, "before")
            os.write(report, b".")
            os.read(closed, 1)
            write(database, "after")
            os._exit(0)
        os.read(opened, 1)
        database.dispose()
        os.write(resume, b".")
        assert forks.codes() == [0]

    assert notes(database) == ["before", "after"]
    for each in (opened, report, closed, resume):
        os.close(each)


@pytest.mark.parametrize("use", [notes, lambda database: write(database, "of a child")])
@pytest.mark.parametrize("name", ["the same", "another"])
def test_a_child_whose_parent_wrote_for_longer_than_a_fork_waits_is_refused_at_once(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    use: Callable[[Database], object],
    name: str,
) -> None:
    monkeypatch.setattr(sqlite_writers, "_FORK_WAIT", 0.01)
    used = Database(f"sqlite:///{tmp_path}/other.db") if name == "another" else database
    connected = list[object]()
    event.listen(used.engine, "connect", lambda driver, _record: connected.append(driver))
    end, thread = writing_for_long(database)

    ended = ended_in_a_child(lambda: FAILED if connected else _ended(lambda: use(used)))
    end()
    thread.join()

    assert ended == IS_REFUSED
    write(database, "of the parent")
    assert notes(database) == ["of the parent"]


def test_after_a_fork_the_parent_keeps_its_connections_open_as_before(database: Database) -> None:
    opened: list[object] = []
    event.listen(database.engine, "connect", lambda connection, _record: opened.append(connection))
    assert forked(database) == CAN_WRITE

    for note in "ab":
        write(database, note)

    assert len(opened) == 1


def test_a_thread_that_forks_within_its_own_write_goes_on_writing(database: Database) -> None:
    with database.begin():
        ended = forked(database)
    write(database, "of the parent")

    assert ended == IS_REFUSED
    assert notes(database) == ["of the parent"]


def test_nothing_is_written_into_a_file_that_was_renamed_until_it_is_back(
    database: Database, tmp_path: Path
) -> None:
    path = database.path
    assert path is not None
    write(database, "before")

    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        write(database, "meanwhile")
    (tmp_path / "elsewhere.db").rename(path)
    write(database, "after")

    assert notes(database) == ["before", "after"]


@pytest.fixture
def linked(database: Database, tmp_path: Path) -> Iterator[Database]:
    """The database as a process has it that names its file by a link."""
    assert database.path is not None
    (tmp_path / "link.db").symlink_to(database.path)
    made = Database(f"sqlite:///{tmp_path / 'link.db'}")
    yield made
    made.dispose()


def point_to(file: Path, link: Path) -> None:
    (new := link.with_suffix(".new")).symlink_to(file)
    new.rename(link)


def test_an_owner_is_alive_for_a_process_that_names_the_file_by_a_link(
    database: Database, linked: Database
) -> None:
    direct, through_the_link = SessionLocks(database), SessionLocks(linked)
    direct.acquire("one")
    through_the_link.acquire("two")

    assert through_the_link.dead_owners(["one", "three"]) == {"three"}
    assert direct.dead_owners(["two", "three"]) == {"three"}
    direct.release("one")
    through_the_link.release("two")


def test_nothing_is_written_through_a_link_that_names_another_file_until_it_is_back(
    database: Database, linked: Database, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    write(linked, "before")
    with closing(sqlite3.connect(tmp_path / "another.db")) as another:
        another.execute("CREATE TABLE notes (note TEXT)")

    point_to(tmp_path / "another.db", link)
    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        write(linked, "meanwhile")
    assert database.path is not None
    point_to(database.path, link)
    write(linked, "after")

    assert notes(database) == ["before", "after"]


def test_nothing_is_written_through_a_link_that_followed_its_file_to_another_name(
    database: Database, linked: Database, tmp_path: Path
) -> None:
    write(linked, "before")

    assert database.path is not None
    database.path.rename(tmp_path / "elsewhere.db")
    point_to(tmp_path / "elsewhere.db", tmp_path / "link.db")

    # Its log has the name of before, where the next process would not look for it.
    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        write(linked, "meanwhile")


def replace_file(database: Database, tmp_path: Path) -> None:
    assert database.path is not None
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        backup.execute("CREATE TABLE notes (note TEXT)")
    (tmp_path / "backup.db").rename(database.path)


def test_nothing_is_written_beside_a_file_that_replaced_the_first(
    database: Database, tmp_path: Path
) -> None:
    replace_file(database, tmp_path)

    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        write(database, "meanwhile")


def test_a_process_that_has_only_read_a_file_knows_that_another_replaced_it(
    database: Database, tmp_path: Path
) -> None:
    write(database, "before")
    reader = Database(database.url)
    assert notes(reader) == ["before"]

    replace_file(database, tmp_path)

    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        write(reader, "meanwhile")
    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        notes(reader)
    reader.dispose()


def test_no_connection_to_another_file_is_lent_once_the_first_is_put_back(
    database: Database, tmp_path: Path
) -> None:
    path = database.path
    assert path is not None
    write(database, "before")
    with database.engine.connect():  # so that a read needs one more
        path.rename(tmp_path / "elsewhere.db")
        replace_file(database, tmp_path)
        with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
            notes(database)
        (tmp_path / "elsewhere.db").rename(path)

        write(database, "after")
        assert notes(database) == ["before", "after"]

    write(database, "at last")
    with closing(sqlite3.connect(path)) as other:
        found = other.execute("SELECT note FROM notes").fetchall()
    assert found == [("before",), ("after",), ("at last",)]


def test_a_file_that_is_replaced_while_a_write_waits_gets_nothing(
    database: Database, tmp_path: Path
) -> None:
    write(database, "before")
    writers = database._writers
    assert writers is not None
    with closing(sqlite3.connect(database.path or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(write, database, "meanwhile")
            eventually(writers._lock.locked, "the write waits")
            replace_file(database, tmp_path)
            other.rollback()
            with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
                waiting.result()
        assert other.execute("SELECT note FROM notes").fetchall() == [("before",)]


def test_a_transaction_amid_which_its_file_was_replaced_is_undone(
    database: Database, tmp_path: Path
) -> None:
    write(database, "before")
    with closing(sqlite3.connect(database.path or "", isolation_level=None)) as other:
        with (  # noqa: PT012 - the error comes at the end of the transaction
            pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"),
            database.begin() as connection,
        ):
            connection.exec_driver_sql("INSERT INTO notes VALUES ('meanwhile')")
            replace_file(database, tmp_path)
        assert other.execute("SELECT note FROM notes").fetchall() == [("before",)]


def test_a_file_that_was_replaced_while_no_connection_was_open_is_written(
    database: Database, tmp_path: Path
) -> None:
    write(database, "before")
    database.dispose()

    replace_file(database, tmp_path)
    write(database, "after")

    assert notes(database) == ["after"]


def test_nothing_is_written_beside_a_file_that_is_read_since_before_it_was_replaced(
    database: Database, tmp_path: Path
) -> None:
    write(database, "before")
    with database.engine.connect():
        database.dispose()
        replace_file(database, tmp_path)

        with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
            write(database, "meanwhile")


def test_a_file_that_another_process_writes_for_too_long_is_not_written_anew(
    database: Database,
) -> None:
    impatient = Database(database.url, DatabaseSettings(write_wait=0.01))
    with closing(sqlite3.connect(database.path or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StorageUnavailable, match="database is locked"):
            impatient.write_anew()
    impatient.dispose()


def test_a_file_that_replaced_another_is_not_written_anew(
    database: Database, tmp_path: Path
) -> None:
    replace_file(database, tmp_path)

    with pytest.raises(StorageUnavailable, match="was removed, renamed or replaced"):
        database.write_anew()


class Interrupted(BaseException):
    """Raised by the handler of a signal, before any line."""


@pytest.mark.parametrize("line", range(1, 25))
def test_a_signal_before_any_line_keeps_no_other_writer_out(line: int) -> None:
    writers = sqlite_writers.SqliteWriters("a file", ())
    one: Any = sqlite_writers.SqliteWriters.one
    code, lines = one.__wrapped__.__code__, itertools.count(1)
    interrupted = list[str]()

    def interrupt(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is code and event == "line" and next(lines) == line:
            interrupted.append(linecache.getline(code.co_filename, frame.f_lineno).strip())
            raise Interrupted
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with suppress(Interrupted), writers.one(0):
            pass
    finally:
        sys.settrace(before)

    if not {*interrupted} & {"if acquired and acquired[0]:", "lock.release()"}:  # the end itself
        with ThreadPoolExecutor(1) as others:
            others.submit(lambda: writers.one(0.1).__enter__()).result()


def test_an_exception_set_in_a_thread_that_waits_to_write_keeps_no_other_writer_out() -> None:
    writers, waits = sqlite_writers.SqliteWriters("a file", ()), threading.Event()

    def wait_to_write() -> None:
        waits.set()
        with suppress(Interrupted), writers.one(60):
            threading.Event().wait()

    with writers.one(0):
        thread = threading.Thread(target=wait_to_write)
        thread.start()
        waits.wait()
        eventually(lambda: _is_waiting(thread), "the thread waits")
        set_exception(thread.ident or 0, Interrupted)  # as a time limit of dramatiq
    thread.join()

    with writers.one(0):
        pass


def _is_waiting(thread: threading.Thread) -> bool:
    frame = sys._current_frames()[thread.ident or 0]
    return "lock.acquire" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def set_exception(thread: int, error: type[BaseException]) -> None:
    """Have *thread* raise *error* as soon as it runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_long(thread), ctypes.py_object(error))
