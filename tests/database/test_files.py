from __future__ import annotations

from pathlib import Path

import pytest

from timeoutmgr.database import Database
from timeoutmgr.database.files import refuse_network_file_system
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
        refuse_network_file_system(Path(path))

    assert "file locks do not hold" in refused.value.reason


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("path", ["/a.db", "/srvx/a.db", "/srv/local disk/a.db", "/srv2/a.db"])
def test_a_file_on_a_local_disk_is_accepted(path: str) -> None:
    refuse_network_file_system(Path(path))


@pytest.mark.usefixtures("mounts")
def test_a_database_on_a_network_file_system_is_refused_before_it_is_opened() -> None:
    with pytest.raises(CombinationRefused):
        Database("sqlite:////srv/a.db")


def test_where_the_system_does_not_tell_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def deny(*_: object, **__: object) -> str:
        raise PermissionError("no /proc")

    monkeypatch.setattr(Path, "read_text", deny)

    refuse_network_file_system(tmp_path / "a.db")
