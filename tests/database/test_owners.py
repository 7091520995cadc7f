from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url, text

from chaos.forkserver_client import ForkServer
from tests.support.forked import forked
from tests.support.forks import Forks, ended_in_a_child
from tests.support.limits import no_descriptor
from tests.support.session_locks import end_session_of
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.database.session_locks import Liveness, SessionLocks, _FileLock, _ServerSession
from timeoutmgr.errors import StorageUnavailable

OWNER_PROCESS = """
import sys
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SessionLocks
SessionLocks(Database(sys.argv[1])).acquire(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["sqlite_url", "postgres_url", "mysql_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.getfixturevalue(request.param))
    yield made
    made.dispose()


@pytest.fixture
def mine(database: Database) -> SessionLocks:
    return SessionLocks(database)


@pytest.fixture
def others(database: Database) -> SessionLocks:
    """Session locks as another process has them: without our owners in its memory."""
    return SessionLocks(database)


@pytest.mark.behaviour(48)
def test_a_living_owner_is_not_dead(mine: SessionLocks, others: SessionLocks, unique: str) -> None:
    mine.acquire(unique)

    assert others.dead_owners([unique]) == set()
    mine.release(unique)


@pytest.mark.behaviour(48)
def test_an_owner_that_ended_is_dead(mine: SessionLocks, others: SessionLocks, unique: str) -> None:
    for _ in range(30):  # a server that only hears of it is late now and then
        mine.acquire(unique)
        mine.release(unique)

        assert others.dead_owners([unique]) == {unique}


@pytest.mark.behaviour(48)
def test_an_owner_that_never_lived_is_dead(others: SessionLocks, unique: str) -> None:
    assert others.dead_owners([unique]) == {unique}


@pytest.mark.behaviour(48)
def test_an_owner_of_a_killed_process_is_dead(
    database: Database, others: SessionLocks, unique: str, fork_server: ForkServer
) -> None:
    url = database.url.render_as_string(hide_password=False)
    with forked(fork_server, OWNER_PROCESS, url, unique) as process:
        assert process.stdout.readline() == "held\n"
        assert others.dead_owners([unique]) == set()

        process.kill()

    assert _eventually_dead(others, unique)


def test_an_idle_owner_keeps_its_lock_behind_a_short_wait_timeout(
    mysql_url: str, unique: str
) -> None:
    database = Database(mysql_url)
    opened: list[Any] = []

    def connected(connection: Any, _record: object) -> None:
        connection.query("SET SESSION wait_timeout = 1")
        opened.append(connection)

    event.listen(database.apart, "connect", connected)
    locks = SessionLocks(database)
    locks.acquire(unique)

    with opened[-1].cursor() as cursor:
        cursor.execute("SELECT @@SESSION.wait_timeout")
        assert cursor.fetchone() == (31_536_000,)
    locks.release(unique)
    database.dispose()


def test_an_idle_owner_keeps_its_lock_behind_a_short_idle_session_timeout(
    postgres_url: str, unique: str
) -> None:
    url = make_url(postgres_url).update_query_dict({"options": "-cidle_session_timeout=1min"})
    database = Database(url)
    locks = SessionLocks(database)
    locks.acquire(unique)
    lock = locks._mine[unique]
    assert isinstance(lock, _ServerSession)

    with database.read() as connection:
        assert connection.execute(text("SHOW idle_session_timeout")).scalar_one() == "1min"
    assert lock._execute("SHOW idle_session_timeout") == "0"
    locks.release(unique)
    database.dispose()


def test_a_child_has_no_lock_of_its_parent_and_releases_none(
    mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(unique)

    def release() -> int:
        held = mine.holds(unique)
        mine.release(unique)
        return int(held)

    assert ended_in_a_child(release) == 0
    assert mine.holds(unique)
    assert others.dead_owners([unique]) == set()
    mine.release(unique)


@pytest.mark.behaviour(48)
def test_an_owner_that_a_parent_released_is_dead_to_its_child(
    mine: SessionLocks, unique: str
) -> None:
    mine.acquire(unique)
    released, release = os.pipe()

    with Forks() as fork:
        if fork():
            os.read(released, 1)
            os._exit(int(_eventually_dead(mine, unique)))
        mine.release(unique)
        os.write(release, b".")

        assert fork.codes() == [1]


def test_a_child_claims_under_a_name_of_its_own(database: Database, unique: str) -> None:
    liveness = Liveness(database)
    name = liveness.name_of(unique)

    def claim() -> int:
        is_quiet, own = unique not in liveness._names, liveness.name_of(unique)
        liveness.release_all()
        return int(is_quiet and own != name)

    assert ended_in_a_child(claim) == 1
    assert liveness.name_of(unique) == name
    liveness.release_all()


@pytest.mark.behaviour(48)
def test_a_child_that_goes_on_keeps_no_session_lock_of_its_parent(
    tmp_path: Path, unique: str
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    lock, (ended, end), (running, runs) = _FileLock(database, unique), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(runs, b".")
        os.read(ended, 1)
        os._exit(0)
    os.read(running, 1)
    lock.after_fork()  # as the death of this process does

    try:
        assert _eventually_dead(SessionLocks(database), unique)
    finally:
        os.close(end)
        os.waitpid(child, 0)


@pytest.mark.behaviour(48)
def test_a_child_of_a_process_without_a_free_descriptor_has_no_lock_of_its_parent(
    mine: SessionLocks, unique: str
) -> None:
    mine.acquire(unique)

    with no_descriptor():
        code = ended_in_a_child(lambda: len(mine._mine))

    assert (code, mine.holds(unique)) == (0, True)
    mine.release(unique)


def test_only_the_dead_of_several_owners_are_returned(
    mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(f"{unique}-a")
    mine.acquire(f"{unique}-b")
    mine.release(f"{unique}-b")

    assert others.dead_owners([f"{unique}-a", f"{unique}-b"]) == {f"{unique}-b"}
    mine.release(f"{unique}-a")


def test_our_own_owners_are_never_dead(mine: SessionLocks, unique: str) -> None:
    mine.acquire(unique)

    assert mine.dead_owners([unique]) == set()
    mine.release(unique)


def test_an_empty_list_of_names_has_no_dead_owner(mine: SessionLocks) -> None:
    assert mine.dead_owners([]) == set()


def test_begin_and_end_twice_is_fine(mine: SessionLocks, unique: str) -> None:
    mine.acquire(unique)
    mine.acquire(unique)
    assert mine.holds(unique)

    mine.release(unique)
    mine.release(unique)
    assert not mine.holds(unique)


def test_a_renewed_session_lock_is_kept(
    mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(unique)
    mine.renew(unique)

    assert mine.holds(unique)
    assert others.dead_owners([unique]) == set()
    mine.release(unique)


def test_owners_differ_by_the_bytes_of_their_names(
    mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(unique.upper())

    assert others.dead_owners([unique.lower()]) == {unique.lower()}
    mine.release(unique.upper())


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_a_session_lock_does_not_wait_for_the_pool(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    settings = DatabaseSettings(pool_size=1, connect_timeout=1)
    database = Database(request.getfixturevalue(url), settings)
    locks = SessionLocks(database)

    # The pool may grow to twice its size, and a wait for it ends with an error.
    with database.begin(), database.begin(), suppress(StorageUnavailable):
        locks.acquire(unique)

    assert locks.holds(unique)
    locks.release(unique)
    database.dispose()


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_a_released_session_lock_leaves_no_connection_behind(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    database = Database(request.getfixturevalue(url))
    locks = SessionLocks(database)
    ended: list[object] = []
    event.listen(database.apart.pool, "close", lambda driver, _record: ended.append(driver))

    locks.acquire(unique)
    before = len(ended)
    locks.release(unique)

    assert (before, len(ended)) == (0, 1)
    database.dispose()


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_an_owner_sees_that_its_session_was_ended(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    database = Database(request.getfixturevalue(url))
    locks = SessionLocks(database)
    locks.acquire(unique)
    before = (locks.is_unbroken(unique), locks.holds(unique))

    end_session_of(database, unique)

    assert before == (True, True)
    assert not locks.is_unbroken(unique)
    assert not locks.holds(unique)
    locks.release(unique)
    database.dispose()


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_an_owner_behind_a_pooler_sees_that_its_session_has_lost_the_lock(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    settings = DatabaseSettings(pooler="session")
    database = Database(request.getfixturevalue(url), settings)
    locks = SessionLocks(database)
    locks.acquire(unique)
    lock = locks._mine[unique]
    assert isinstance(lock, _ServerSession)

    before = locks.is_unbroken(unique)
    # As a pooler does that resets a session.
    lock._execute(lock._sql.release, unique)

    assert before
    assert not locks.is_unbroken(unique)
    locks.release(unique)
    database.dispose()


# --- one session for the owners of a process

SERVERS = pytest.mark.parametrize("database", ["postgres_url", "mysql_url"], indirect=True)


def connections_apart(database: Database) -> list[object]:
    """Return the connections outside the pool that are open, now and later."""
    there: list[object] = []
    pool = database.apart.pool
    event.listen(pool, "connect", lambda driver, _record: there.append(driver))
    event.listen(pool, "close", lambda driver, _record: there.remove(driver))
    return there


@SERVERS
def test_the_owners_of_a_process_share_one_connection_until_the_last_is_released(
    database: Database, unique: str
) -> None:
    locks = [SessionLocks(database) for _ in range(3)]
    there = connections_apart(database)

    for number, each in enumerate(locks):
        each.acquire(f"{unique}-{number}")
    shared = len(there)
    for number, each in enumerate(locks):
        assert each.holds(f"{unique}-{number}")
        each.release(f"{unique}-{number}")

    assert shared == 1
    assert there == []


@SERVERS
def test_one_owner_dies_while_others_of_its_session_are_alive(
    database: Database, mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(f"{unique}-a")
    mine.acquire(f"{unique}-b")

    mine.release(f"{unique}-a")

    assert others.dead_owners([f"{unique}-a", f"{unique}-b"]) == {f"{unique}-a"}
    assert mine.is_unbroken(f"{unique}-b")
    mine.release(f"{unique}-b")


@SERVERS
def test_an_owner_of_this_process_is_refused_to_another_user_of_the_session(
    database: Database, mine: SessionLocks, others: SessionLocks, unique: str
) -> None:
    mine.acquire(unique)

    with pytest.raises(StorageUnavailable, match="an owner's name is used once"):
        others.acquire(unique)

    assert mine.holds(unique)
    mine.release(unique)


@SERVERS
def test_each_owner_sees_the_loss_of_its_session_after_another_owner_opened_the_next(
    database: Database, unique: str
) -> None:
    first, second = SessionLocks(database), SessionLocks(database)
    first.acquire(f"{unique}-1")
    second.acquire(f"{unique}-2")
    end_session_of(database, f"{unique}-1")

    first.renew(f"{unique}-1")

    assert first.is_unbroken(f"{unique}-1")
    assert not second.is_unbroken(f"{unique}-2")
    assert first.dead_owners([f"{unique}-2"]) == {f"{unique}-2"}
    second.renew(f"{unique}-2")
    assert first.dead_owners([f"{unique}-2"]) == set()
    first.release(f"{unique}-1")
    second.release(f"{unique}-2")


FORK = """
import os, sys
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SessionLocks

url, owner = sys.argv[1:]
database = Database(url)
locks = SessionLocks(database)
locks.acquire(owner)
if os.fork() == 0:
    held = locks.is_unbroken(owner), locks.holds(owner)
    locks.release(owner)
    SessionLocks(database).acquire(f"{owner} of the child")
    print(*held, os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@SERVERS
def test_a_forked_child_neither_has_nor_releases_nor_prolongs_a_session_lock_of_its_parent(
    database: Database, others: SessionLocks, unique: str
) -> None:
    url = database.url.render_as_string(hide_password=False)
    childs = f"{unique} of the child"
    with subprocess.Popen(
        [sys.executable, "-c", FORK, url, unique],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        said = parent.stdout.readline().split()
        before = others.dead_owners([unique, childs])

        parent.kill()
        parent.wait()
        is_dead = _eventually_dead(others, unique)
        after = others.dead_owners([unique, childs])
        os.kill(int(said[2]), signal.SIGKILL)

    assert said[:2] == ["False", "False"]
    assert before == set()
    assert is_dead
    assert after == {unique}


# --- the files of a SQLite database's owners


@pytest.fixture
def file(sqlite_url: str) -> Iterator[Database]:
    made = Database(sqlite_url)
    yield made
    made.dispose()


def owner_files(database: Database) -> list[Path]:
    return sorted(Path(f"{database.path}-owners").glob("*"))


def left_by_the_dead(database: Database, amount: int) -> list[Path]:
    """Make the files that so many killed processes leave behind."""
    folder = Path(f"{database.path}-owners")
    folder.mkdir()
    left = [folder / f"timeoutmgr-{number:040x}" for number in range(amount)]
    for each in left:
        each.touch()
    return left


def test_the_next_session_lock_removes_the_file_of_a_killed_process(
    file: Database, fork_server: ForkServer
) -> None:
    url = file.url.render_as_string(hide_password=False)
    with forked(fork_server, OWNER_PROCESS, url, "killed") as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
    [left] = owner_files(file)
    locks = SessionLocks(file)

    locks.acquire("next")

    assert left not in owner_files(file)
    assert len(owner_files(file)) == 1
    assert SessionLocks(file).dead_owners(["killed", "next"]) == {"killed"}
    locks.release("next")


def test_a_new_session_lock_leaves_living_owners_alone(file: Database) -> None:
    ours, theirs = SessionLocks(file), SessionLocks(file)
    theirs.acquire("theirs")

    ours.acquire("one")
    ours.acquire("two")

    assert ours.dead_owners(["theirs"]) == theirs.dead_owners(["one", "two"]) == set()
    for locks, owner in ((theirs, "theirs"), (ours, "one"), (ours, "two")):
        locks.release(owner)
    assert owner_files(file) == []


def test_a_beginning_removes_a_bounded_number_of_files(file: Database) -> None:
    left_by_the_dead(file, 250)
    locks = SessionLocks(file)

    there = []
    for owner in "abc":
        locks.acquire(owner)
        there.append(len(owner_files(file)))

    assert there == [151, 52, 3]
    for owner in "abc":
        locks.release(owner)


def test_a_file_that_is_not_a_session_lock_is_kept(file: Database) -> None:
    [left] = left_by_the_dead(file, 1)
    others = {left.with_suffix(".new"), left.with_name("timeoutmgr-notes"), left.with_name("x")}
    for each in others:
        each.touch()
    locks = SessionLocks(file)

    locks.acquire("a")
    locks.release("a")

    assert set(owner_files(file)) == others


def too_many_files(_path: Path, _how: int) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_session_lock_that_found_no_descriptor_is_acquired_later(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, flock = SessionLocks(file), fcntl.flock
    monkeypatch.setattr("timeoutmgr.database.session_locks._locked", too_many_files)
    with pytest.raises(StorageUnavailable, match="Too many open files"):
        locks.acquire("a")
    monkeypatch.undo()
    # A lock that is left over would be waited for without an end.
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: flock(fd, how | fcntl.LOCK_NB))

    locks.acquire("a")

    assert locks.holds("a")
    locks.release("a")


def test_a_session_lock_survives_the_removal_of_a_dead_lock_of_its_name(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = SessionLocks(file), SessionLocks(file), SessionLocks(file)
    first.acquire("name")
    lock = first._mine["name"]
    assert isinstance(lock, _FileLock)
    lock.after_fork()  # as the end of its process does
    begins = threading.Thread(target=again.acquire, args=("name",))
    unlink = os.unlink

    def unlink_late(path: str) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        begins.start()
        begins.join(0.5)  # it has to wait; without a lock it would be there by now
        unlink(path)

    monkeypatch.setattr(os, "unlink", unlink_late)
    other.acquire("other")
    begins.join()

    assert other.dead_owners(["name"]) == set()
    again.release("name")
    other.release("other")


def test_a_reader_of_a_lock_file_is_not_its_owner(file: Database) -> None:
    locks = SessionLocks(file)
    locks.acquire("dead")
    [path] = owner_files(file)
    locks.release("dead")
    path.touch()

    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)

        assert SessionLocks(file).dead_owners(["dead"]) == {"dead"}


def test_an_owner_whose_file_is_of_another_user_counts_as_alive(
    file: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = SessionLocks(file)
    theirs.acquire("theirs")
    [path] = owner_files(file)
    opened = os.open

    def refuse(name: Any, *given: Any) -> int:  # to root every file is readable
        if name == path:
            raise PermissionError
        return opened(name, *given)

    monkeypatch.setattr(os, "open", refuse)

    assert SessionLocks(file).dead_owners(["theirs", "dead"]) == {"dead"}
    theirs.release("theirs")


def _eventually_dead(locks: SessionLocks, owner: str) -> bool:
    # A server notices the end of a connection a moment after the kernel does.
    return any(locks.dead_owners([owner]) == {owner} for _ in range(2000))


UNWRITABLE = """
import os, sys
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import StorageUnavailable
locks = SessionLocks(Database(sys.argv[1]))
if os.getuid() == 0:
    os.setuid(65534)  # to root every folder is writable
try:
    locks.acquire("mine")
except StorageUnavailable as error:
    print(error)
"""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    url = f"sqlite:///{tmp_path / 'some.db'}"

    said = subprocess.run(
        [sys.executable, "-c", UNWRITABLE, url], capture_output=True, text=True, check=True
    ).stdout

    tmp_path.chmod(0o755)
    assert f"meet in the folder '{tmp_path / 'some.db-owners'}', which cannot be written" in said
