"""Places for an embedded database, and its file mode."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from timeoutmgr.errors import CombinationRefused

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs"}
)


def refuse_network_file_system(path: Path) -> None:
    """Raise CombinationRefused where *path* would lie on a network file system.

    SQLite's locks and shared memory do not hold there, so that two writers could meet. Where the
    system does not tell its mounts (no /proc), nothing is refused.
    """
    folder = path.resolve().parent
    kind = _file_system(folder)
    if kind in _NETWORK:
        raise CombinationRefused(
            f"SQLite file {str(path)!r} on {kind}",
            "file locks do not hold on network file systems",
            "Put it on a local disk, or use PostgreSQL or MySQL.",
        )


def make_private(path: Path) -> None:
    """Create the database file *path*, readable by its owner alone, if it is not there.

    SQLite gives its WAL and shared memory the mode of the file. The file is made without being
    opened: to close it would take the locks of every other connection of this process from it.
    """
    if not path.exists():
        # Where a file system makes no node, SQLite makes the file, or says why it cannot.
        with suppress(OSError):
            os.mknod(path, stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR)


def _file_system(folder: Path) -> str:
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        inside = str(folder) == mount or f"{folder}/".startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind
