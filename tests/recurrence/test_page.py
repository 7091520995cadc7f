"""The code of docs/howto-recurring.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from timeoutmgr import Endpoint
from timeoutmgr.cli.main import cli
from timeoutmgr.recurrence.occurrences import parse
from timeoutmgr.settings.file import configuration_from

PAGE = (Path(__file__).parents[2] / "docs" / "howto-recurring.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIMEOUTMGR_DATA", str(tmp_path / "timeoutmgr.db"))
    names: dict[str, Any] = {}

    for block in _blocks("python"):
        exec(block, names)  # the page is ours, and its code is to be run

    assert "('daily-report', None, True)" in capsys.readouterr().out
    assert [one.name for one in names["config"].settings().recurring] == [
        *("daily-report", "heartbeat"),
    ]


def test_the_settings_and_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEOUTMGR_DATA", str(tmp_path / "timeoutmgr.db"))
    path = tmp_path / "timeoutmgr.toml"
    [table] = _blocks("toml")
    path.write_text(f'endpoint = "reports"\nfeatures = ["timeout-manager"]\n{table}')
    endpoint = Endpoint(configuration_from(path))
    endpoint.install()
    endpoint.close()
    [commands] = _blocks("sh")

    for command in commands.splitlines():
        ended = CliRunner().invoke(cli, ["--config", str(path), *command.split()[1:]])
        assert ended.exit_code == 0, ended.output


def test_each_form_of_the_table_is_understood() -> None:
    table = PAGE.partition("| `every` | runs |")[2].partition("\n\n")[0]

    forms = re.findall(r'`"([^"]+)"`', table)

    assert len(forms) == 6
    for form in forms:
        parse(form)
