"""Prometheus for the tests: it scrapes and evaluates several times a second."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.services.private import PrivateServer

APT = ["prometheus"]
_EVERY: Final = "500ms"


class PrivatePrometheus(PrivateServer):
    """A Prometheus that watches one *target* by *rules*."""

    def __init__(self, folder: Path, target: str, rules: dict[str, Any]) -> None:
        self._target = target
        self._rules = rules
        super().__init__(folder)

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return [] if shutil.which("prometheus") else ["prometheus"]

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of each sample that *expression* has now."""
        answer = self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        return [each["metric"] for each in answer["data"]["result"]]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def _prepare(self) -> None:
        (self.folder / "alerts.yml").write_text(yaml.safe_dump(self._rules))
        configuration = {
            "global": {
                "scrape_interval": _EVERY,
                "scrape_timeout": _EVERY,
                "evaluation_interval": "250ms",
            },
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {"job_name": "timeoutmgr", "static_configs": [{"targets": [self._target]}]}
            ],
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    def _command(self) -> list[str]:
        return [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _get(self, path: str) -> dict[str, Any]:
        with urlopen(self.url + path, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
