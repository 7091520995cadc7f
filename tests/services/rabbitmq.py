"""RabbitMQ for the tests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

import amqp

from tests.services.private import PrivateServer
from tests.services.processes import free_port

APT = ["rabbitmq-server"]


def candidates() -> list[str]:
    """Return the URLs where a local server would answer with the password it comes with."""
    return ["amqp://guest:guest@127.0.0.1:5672//"]


def refusal(url: str) -> str | None:
    """Return why the server at *url* will not do, or None if it will."""
    return _connection_error(url) or _NO_ADMIN * (_admin(url) is None) or None


def create(url: str, name: str) -> str:
    """Create the virtual host *name* and return its URL."""
    admin = _admin(url)
    if admin is None:
        raise RuntimeError(f"{url}: {_NO_ADMIN}")
    admin.add(name, urlsplit(url).username or "guest")
    made = _on(url, name)
    error = _connection_error(made)
    if error is not None:
        admin.delete(name)
        raise RuntimeError(f"the virtual host that was made at {url} refuses: {error}")
    return made


def sweep(url: str, ours: Callable[[str], bool]) -> None:
    """Delete the virtual hosts that are *ours*, with all queues in them."""
    admin = _admin(url)
    if admin is not None:
        for name in filter(ours, admin.names()):
            admin.delete(name)


_NO_ADMIN = "neither rabbitmqctl nor the management API (port 15672) can make virtual hosts there"


class _Admin(Protocol):
    """A way to make virtual hosts."""

    def names(self) -> list[str]: ...
    def add(self, name: str, user: str) -> None: ...
    def delete(self, name: str) -> None: ...


class _Ctl:
    """``rabbitmqctl``, for a broker of this machine."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self._command = command
        self._env = {**os.environ, **env}

    def names(self) -> list[str]:
        return self("-q", "list_vhosts", "name", "--no-table-headers").split("\n")

    def add(self, name: str, user: str) -> None:
        # One command: each starts an Erlang machine, which takes half a second.
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        made = {
            "vhosts": [{"name": name}],
            "permissions": [{"user": user, "vhost": name, **rights}],
        }
        self("-q", "import_definitions", given=json.dumps(made))

    def delete(self, name: str) -> None:
        self("-q", "delete_vhost", name)

    def __call__(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._command, *words],
            env=self._env,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(f"rabbitmqctl {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout.strip()


class _Api:
    """The management plug-in's HTTP API."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._base = f"http://{parts.hostname}:15672/api"
        credentials = f"{parts.username or 'guest'}:{parts.password or 'guest'}"
        self._headers = {
            "Authorization": f"Basic {b64encode(credentials.encode()).decode()}",
            "Content-Type": "application/json",
        }

    def names(self) -> list[str]:
        return [vhost["name"] for vhost in json.loads(self._call("GET", "/vhosts"))]

    def add(self, name: str, user: str) -> None:
        self._call("PUT", f"/vhosts/{quote(name, safe='')}")
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        self._call("PUT", f"/permissions/{quote(name, safe='')}/{quote(user, safe='')}", rights)

    def delete(self, name: str) -> None:
        self._call("DELETE", f"/vhosts/{quote(name, safe='')}")

    def _call(self, method: str, path: str, body: object = None) -> bytes:
        request = urllib.request.Request(
            self._base + path,
            method=method,
            headers=self._headers,
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: bytes = response.read()
            return answer


def _admin(url: str) -> _Admin | None:
    for admin in _admins(url):
        with contextlib.suppress(OSError):  # not this way
            admin.names()
            return admin
    return None


def _admins(url: str) -> list[_Admin]:
    parts = urlsplit(url)
    admins: list[_Admin] = []
    private = PrivateRabbitMQ.folders().get(parts.port or 5672)
    if private is not None:
        return [_Ctl([str(_script("rabbitmqctl"))], _environment(private))]
    # Without options rabbitmqctl speaks to the broker on the standard port of this machine.
    local = parts.hostname in ("localhost", "127.0.0.1", "::1") and (parts.port or 5672) == 5672
    ctl = shutil.which("rabbitmqctl", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if local and ctl is not None:
        admins.append(_Ctl([ctl], {}))
    return [*admins, _Api(url)]


def _connection_error(url: str) -> str | None:
    parts = urlsplit(url)
    try:
        with amqp.Connection(
            host=f"{parts.hostname}:{parts.port or 5672}",
            userid=parts.username or "guest",
            password=parts.password or "guest",
            virtual_host=parts.path[1:] or "/",
            connect_timeout=5,
        ):
            return None
    except (OSError, amqp.AMQPError) as error:
        return str(error)


def _on(url: str, vhost: str) -> str:
    return urlsplit(url)._replace(path=f"/{vhost}").geturl()


_SOON_AGAIN = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
"""A dead letter that a killed broker had under way goes again after five seconds, not three
minutes: the messages of the levels would come that late, and a run would wait for them."""

_MANAGED = (
    """[{{rabbitmq_management, [{{listener, [{{port, {port}}}, {{ip, "127.0.0.1"}}]}}]}}].\n"""
)


class PrivateRabbitMQ(PrivateServer):
    """A RabbitMQ node of our own, with a cookie, an epmd and a distribution port of its own."""

    seconds_to_start = 90

    @staticmethod
    def folders() -> dict[int, Path]:
        """Return the private nodes of this run by port."""
        run = os.environ.get("TIMEOUTMGR_TEST_RUN")
        found = Path(run).glob("**/node.json") if run else []
        return {int(json.loads(path.read_text())["port"]): path.parent for path in found}

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        scripts = [name for name in ("rabbitmq-server", "rabbitmqctl") if _script(name) is None]
        return scripts if shutil.which("epmd") else [*scripts, "epmd"]

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def control(self, *words: str) -> str:
        """Return the answer of ``rabbitmqctl``."""
        return _Ctl([str(_script("rabbitmqctl"))], self._env())(*words)

    def with_management(self) -> str:
        """Start it again with its management API; return where that answers."""
        self.stop()
        port = free_port()
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "advanced.config").write_text(_MANAGED.format(port=port))
        self.start()
        return f"http://127.0.0.1:{port}"

    def _prepare(self) -> None:
        home = self.folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10).upper())
        cookie.chmod(0o400)
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "advanced.config").write_text(_SOON_AGAIN)
        ports = {"port": self.port, "distribution": free_port(), "epmd": free_port()}
        (self.folder / "node.json").write_text(json.dumps(ports))

    def _env(self) -> Mapping[str, str]:
        return _environment(self.folder)

    def _companions(self) -> list[list[str]]:
        # Otherwise the node starts an epmd that outlives the node.
        return [["epmd", "-port", self._env()["ERL_EPMD_PORT"], "-address", "127.0.0.1"]]

    def _command(self) -> list[str]:
        return [str(_script("rabbitmq-server"))]

    def _answers(self) -> bool:
        return _connection_error(self.url) is None


def _environment(folder: Path) -> dict[str, str]:
    ports = json.loads((folder / "node.json").read_text())
    return {
        "HOME": str(folder / "home"),
        "ERL_EPMD_PORT": str(ports["epmd"]),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"tmtest{ports['port']}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(ports["port"]),
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        # Files that do not exist: the machine's own settings are for the machine's own broker.
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
    }


def _script(name: str) -> Path | None:
    """Return the script itself; Debian's wrapper on the path insists on the machine's own node."""
    behind_wrapper = Path("/usr/lib/rabbitmq/bin", name)
    if behind_wrapper.exists():
        return behind_wrapper
    found = shutil.which(name)
    return None if found is None else Path(found)
