from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from timeoutmgr.database import Database
from timeoutmgr.database.places import make_private, refuse_unsafe_file
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import CombinationRefused

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /srv nfs4 rw 0 0
//server/share /srv/local\\040disk/share cifs rw 0 0
/dev/sdb1 /srv/local\\040disk ext4 rw 0 0
tmpfs /srvx tmpfs rw 0 0
broken
"""


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def fake(path: Path, *args: str, **options: str) -> str:
        return MOUNTS if str(path) == "/proc/self/mounts" else read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", fake)


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("path", ["/srv/a.db", "/srv/deep/er/a.db", "/srv/local disk/share/a.db"])
def test_a_file_on_a_network_file_system_is_refused(path: str) -> None:
    with pytest.raises(CombinationRefused, match="local disk") as refused:
        refuse_unsafe_file(Path(path))

    assert "file locks do not hold" in refused.value.reason


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("path", ["/a.db", "/srvx/a.db", "/srv/local disk/a.db", "/srv2/a.db"])
def test_a_file_on_a_local_disk_is_accepted(path: str) -> None:
    refuse_unsafe_file(Path(path))


@pytest.mark.usefixtures("mounts")
def test_a_database_on_a_network_file_system_is_refused_before_it_is_opened() -> None:
    with pytest.raises(CombinationRefused):
        Database("sqlite:////srv/a.db")


def test_a_file_with_two_hard_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")

    with pytest.raises(CombinationRefused, match=r"a\.db' with 2 names") as refused:
        Database(f"sqlite:///{tmp_path / 'a.db'}")

    assert "commits of other names are lost" in refused.value.reason


def test_a_file_on_an_unknown_file_system_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def deny(*_: object, **__: object) -> str:
        raise PermissionError("no /proc")

    monkeypatch.setattr(Path, "read_text", deny)

    refuse_unsafe_file(tmp_path / "a.db")


def test_an_embedded_file_and_its_companions_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        database = Database(f"sqlite:///{tmp_path / 'timeoutmgr.db'}")
        database.run(lambda connection: connection.exec_driver_sql("CREATE TABLE t (n INTEGER)"))
        locks = SessionLocks(database)
        locks.acquire("owner")
        found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
        locks.release("owner")
        database.dispose()
    finally:
        os.umask(before)

    assert {"timeoutmgr.db", "timeoutmgr.db-wal", "timeoutmgr.db-shm"} <= found.keys()
    assert len(found) > 3, "the folder of owners and a file in it"
    folders = {path.name for path in tmp_path.rglob("*") if path.is_dir()}
    assert {name: oct(mode) for name, mode in found.items()} == {
        name: oct(0o700 if name in folders else 0o600) for name in found
    }


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch(mode=0o660)
    path.chmod(0o660)

    make_private(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_file_that_was_named_from_a_folder_stays_there_when_the_process_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    database = Database("sqlite:///here.db")
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))

    monkeypatch.chdir(elsewhere)
    with database.begin() as connection:
        connection.execute(text("INSERT INTO notes VALUES ('there')"))
    database.dispose()

    assert database.path == tmp_path / "here.db"
    assert not [*elsewhere.iterdir()]
