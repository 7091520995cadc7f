"""Conditions of the figures: load, versions, settings of the servers; and a process' memory."""

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from timeoutmgr.transport.settings import KombuSettings

from .messages import QUEUE_TYPE

PACKAGES = ("timeoutmgr", "kombu", "amqp", "SQLAlchemy", "psycopg")
SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "shared_buffers",
    "max_wal_size",
)


def load() -> float:
    """Return the load average of the last minute: the influence of other programs."""
    return round(os.getloadavg()[0], 1)


def rss(pid: int | str = "self", *, peak: bool = False) -> float:
    """Return the resident memory of a process in MiB, now or at its highest."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def reset_peak(pid: int) -> None:
    """Reset the peak memory of *pid* to its present memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that *pid* has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def session_cpu_seconds(leader: int) -> float:
    """Return the processor time of the processes in the session of *leader* that still run."""
    used = 0.0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(folder.name)) == leader:
                    used += cpu_seconds(int(folder.name))
    return used


def described() -> dict[str, str]:
    """Return the machine and the versions of this process."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "load before": str(load()),
        "queues": os.environ.get(QUEUE_TYPE) or KombuSettings().queue_type,
        **versions,
    }


def postgres(url: str) -> dict[str, str]:
    """Return the version and the settings of a PostgreSQL server."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        found = {"PostgreSQL": connection.info.parameter_status("server_version") or "?"}
        for name in SETTINGS:
            row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            found[name] = str(row[0]) if row else "?"
    return found
