"""A Galera cluster for the tests: a MariaDB node of our own, and an arbitrator as second member.

The arbitrator holds no data, and counts as a member like any node.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.services import mysql
from tests.services.private import write_processes
from tests.services.processes import free_port, spawn, wait_until

APT = ["mariadb-server", "galera-4", "galera-arbitrator-4"]

_PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
_GROUP = "timeoutmgr"


class PrivateGalera(mysql.PrivateMariaDB):
    """A cluster of two members, of which one takes writes."""

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        missing = super().missing_programs()
        if not _PROVIDER.exists():
            missing.append(_PROVIDER.name)
        return missing if shutil.which("garbd") else [*missing, "garbd"]

    def start(self) -> None:
        """Start the node, then the arbitrator, and return when the cluster has both."""
        super().start()
        output = self.folder / "arbitrator.txt"
        command = ["garbd", "--address", f"gcomm://127.0.0.1:{self._group_port}", "--group", _GROUP]
        command += ["--options", _provider_options(free_port())]
        arbitrator = spawn(command, folder=self.folder, output=output)
        self._processes.append(arbitrator)
        write_processes(self.folder, self._processes, self.ask_to_stop)
        seconds = self.seconds_to_start
        wait_until(lambda: self.members == 2, arbitrator, seconds=seconds, output=output)

    @property
    def members(self) -> int:
        """How many members the cluster has, by the node."""
        [(_, size)] = mysql.execute(self.url, "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
        return int(size)

    def _prepare(self) -> None:
        super()._prepare()
        self._group_port = free_port()

    def _command(self) -> list[str]:
        return [
            *super()._command(),
            "--wsrep-on=ON",
            f"--wsrep-provider={_PROVIDER}",
            "--wsrep-cluster-address=gcomm://",
            f"--wsrep-cluster-name={_GROUP}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-provider-options={_provider_options(self._group_port)}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def _answers(self) -> bool:
        return super()._answers() and self.members == 1


def _provider_options(port: int) -> str:
    return f"base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port}"
