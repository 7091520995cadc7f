"""The files of deployment: each setting in them is the product's, and each promise is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes_validate import ValidationError, latest_version, validate

from tests import house
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.metrics.catalogue import CATALOGUE
from timeoutmgr.metrics.probes import PROBES
from timeoutmgr.settings.file import configuration_from

DEPLOY = house.ROOT / "deploy"
PORT = "9464"
OBJECTS: dict[str, dict[str, Any]] = {
    each["kind"]: each
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text())
}
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text()
UNIT = DEPLOY / "systemd" / "timeoutmgr@.service"


OF_OTHERS: tuple[str, ...] = ("PodMonitor",)
"""Kinds of Prometheus' operator, whose schemas Kubernetes does not have."""


def systemd_unit() -> RawConfigParser:
    """Return the parsed unit."""
    unit = RawConfigParser(strict=False)
    unit.read_string(UNIT.read_text())
    return unit


def pods() -> list[dict[str, Any]]:
    """Return the specification of each pod."""
    return [OBJECTS[kind]["spec"]["template"]["spec"] for kind in ("Job", "Deployment")]


def arguments() -> list[list[str]]:
    """Return the arguments of every command in the files."""
    [command] = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    [start] = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
    return [
        yaml.safe_load(command),
        start.split(),
        COMPOSE["services"]["install"]["command"],
        *(container["args"] for pod in pods() for container in pod["containers"]),
    ]


@pytest.mark.parametrize("given", arguments(), ids=" ".join)
def test_the_command_line_of_each_file_is_accepted(given: list[str], tmp_path: Path) -> None:
    # The names of all options are parsed before the help is shown.
    said = CliRunner().invoke(cli, [*given, "--help"])

    assert said.exit_code == 0, said.output
    refused = CliRunner().invoke(cli, [*given, "--no-such-option"])
    assert refused.exit_code == Exit.USAGE


@pytest.mark.parametrize("version", ["1.27", latest_version()])
@pytest.mark.parametrize("kind", sorted(OBJECTS.keys() - set(OF_OTHERS)))
def test_kubernetes_own_schema_accepts_each_object(kind: str, version: str) -> None:
    validate(OBJECTS[kind], version, strict=True)

    with pytest.raises(ValidationError):
        validate({**OBJECTS[kind], "specs": {}}, version, strict=True)


@pytest.mark.parametrize("service", ["install", "worker"])
def test_the_settings_of_compose_make_an_endpoint(service: str) -> None:
    settings = configuration_from(None, COMPOSE["services"][service]["environment"]).settings()

    assert settings.name == "shop"
    assert settings.install is (service == "install")


def test_pods_are_not_root_and_write_nothing_on_their_root() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "limits" in container["resources"]


def test_probes_ask_paths_and_a_port_that_there_are() -> None:
    [container] = OBJECTS["Deployment"]["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]

    assert [probe["path"] for probe in probes] == ["/startupz", "/livez", "/readyz"]
    assert {probe["path"] for probe in probes} == set(PROBES)
    assert {probe["port"] for probe in probes} == {"metrics"}
    [port] = container["ports"]
    assert f"0.0.0.0:{port['containerPort']}" in container["args"]


def test_each_selector_finds_the_pods_of_the_worker() -> None:
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        OBJECTS["Deployment"]["spec"]["selector"],
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"],
        OBJECTS["NetworkPolicy"]["spec"]["podSelector"],
        OBJECTS["PodMonitor"]["spec"]["selector"],
    ]

    for selector in selectors:
        assert selector["matchLabels"].items() <= labels.items()


def test_a_worker_leaves_the_schema_to_the_job_and_has_time_to_drain() -> None:
    spec = OBJECTS["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]

    assert {"name": "TIMEOUTMGR_INSTALL", "value": "false"} in container["env"]
    assert spec["terminationGracePeriodSeconds"] == 75
    assert COMPOSE["services"]["worker"]["stop_grace_period"] == "75s"
    assert "TimeoutStopSec=75" in UNIT.read_text()


def test_a_deployment_scales_by_a_metric_of_the_catalogue() -> None:
    [metric] = OBJECTS["HorizontalPodAutoscaler"]["spec"]["metrics"]

    name = metric["external"]["metric"]["name"]
    assert name in {each.exported for each in CATALOGUE}


def test_the_image_is_not_root_and_its_worker_gets_the_signal() -> None:
    assert re.search(r"^USER 65532", CONTAINERFILE, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", CONTAINERFILE, re.MULTILINE)
    # A shell between would keep the signal from the worker.
    assert re.search(r'^ENTRYPOINT \["/app/bin/timeoutmgr"\]$', CONTAINERFILE, re.MULTILINE)
    assert f"EXPOSE {PORT}" in CONTAINERFILE


def test_the_unit_restarts_a_worker_that_started_before_the_installation(tmp_path: Path) -> None:
    worker = subprocess.run(
        [sys.executable, "-m", "timeoutmgr", "run"],
        env={**os.environ, "TIMEOUTMGR_ENDPOINT": "shop", "TIMEOUTMGR_INSTALL": "false"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    unit = systemd_unit()
    service = unit["Service"]

    assert worker.returncode == Exit.CONFIGURATION
    assert "run `timeoutmgr install`" in worker.stderr
    assert service["restart"] == "on-failure"
    final = {int(code) for code in service["restartpreventexitstatus"].split()}
    assert final == {Exit.USAGE.value}
    # A wrong configuration has the same code: without a pause it would be started all the time.
    assert unit["Unit"]["startlimitintervalsec"] == "0"
    assert int(service["restartsec"]) >= 5


def test_the_unit_watches_the_worker() -> None:
    service = systemd_unit()["Service"]

    assert service["type"] == "notify"
    assert service["watchdogsec"] == "30"
    assert service["protectsystem"] == "strict"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "timeoutmgr"
    program.touch(mode=0o755)
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/timeoutmgr/bin/timeoutmgr", str(program)))

    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )

    about_it = [line for line in checked.stderr.splitlines() if "timeoutmgr@" in line]
    assert about_it == []


MEGABYTES = 60
"""Of the packages in the image: without pip, and without compiled files."""


@pytest.mark.slow
def test_the_steps_of_the_image_make_a_small_worker_that_runs(tmp_path: Path) -> None:
    app, source = tmp_path / "app", tmp_path / "source"
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=house.ROOT, capture_output=True, check=True
    )
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    [steps] = re.findall(r"^RUN (.+?)^\n", f"{CONTAINERFILE}\n", re.MULTILINE | re.DOTALL)
    script = steps.replace("\\\n", " ").replace("/app", str(app)).replace("/source", str(source))
    subprocess.run(["bash", "-euc", f'python() {{ {sys.executable} "$@"; }}; {script}'], check=True)

    said = subprocess.run(
        [str(app / "bin" / "timeoutmgr"), "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--metrics-address" in said.stdout
    files = [path for path in (app / "lib").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    assert size <= MEGABYTES * 1_000_000, size
