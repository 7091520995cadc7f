"""Where an embedded database may lie."""

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
