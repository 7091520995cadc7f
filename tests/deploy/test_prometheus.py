"""Alert rules and dashboard: each expression is the catalogue's, and each alert is proved."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import house
from tests.deploy import dashboard
from tests.deploy.expressions import mistakes

FOLDER = house.ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PROOFS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run(
        [PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )


@needs_promtool
def test_the_rules_are_well_formed() -> None:
    checked = promtool("check", "rules", "alerts.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


@needs_promtool
def test_each_alert_fires_within_its_time_and_is_silent_otherwise() -> None:
    tested = promtool("test", "rules", "alerts_test.yml")

    assert tested.returncode == 0, tested.stdout + tested.stderr


def expected() -> Iterator[tuple[str, bool]]:
    """Yield the alerts that the proofs expect, and whether they expect them to be silent."""
    for case in PROOFS["tests"]:
        for each in case.get("alert_rule_test", ()):
            yield each["alertname"], not each["exp_alerts"]
        for each in case.get("promql_expr_test", ()):
            for name in re.findall(r"[A-Z]\w+[a-z]", each["expr"].removeprefix("ALERTS")):
                if not each["exp_samples"]:
                    yield name, True
            for sample in each["exp_samples"]:
                [name] = re.findall(r'alertname="(\w+)"', sample["labels"])
                yield name, False


def test_each_alert_is_proved_to_fire() -> None:
    fired = {name for name, is_silent in expected() if not is_silent}

    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_the_catalogue_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert mistakes(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert set(rule["annotations"]) == {"summary", "action"}
    assert rule["annotations"]["summary"].startswith("{{ $labels.endpoint }}: ")


def test_the_alerts_that_page_are_the_few_that_need_a_person_now() -> None:
    paging = [rule["alert"] for rule in RULES if rule["labels"]["severity"] == "page"]

    assert paging == [
        *("TimeoutsStuck", "TimeoutsEarly", "BreakerTriggered", "ClockApart", "NoProcess"),
    ]


@pytest.mark.parametrize("expression", sorted(dashboard.expressions()))
def test_a_panel_uses_the_catalogue(expression: str) -> None:
    assert mistakes(expression) == []


def parsed(folder: Path, expressions: Iterable[str]) -> str:
    """Return what promtool says of *expressions*, as rules that record their values."""
    rules = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(expressions)
    ]
    path = folder / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", str(path))
    return checked.stdout + checked.stderr


@needs_promtool
def test_the_expressions_of_the_panels_are_well_formed(tmp_path: Path) -> None:
    found = list(dashboard.expressions())

    assert f"SUCCESS: {len(found)} rules found" in parsed(tmp_path, found)
    assert "could not parse expression" in parsed(tmp_path, ["sum by (timeoutmgr_polls_total"])


def test_the_dashboard_is_up_to_date() -> None:
    assert dashboard.PATH.read_text() == dashboard.text(), "run python -m tests.deploy.dashboard"


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("timeoutmgr_no_such_total", "timeoutmgr_no_such_total"),
        ("timeoutmgr_polls", "timeoutmgr_polls"),
        ("sum by (queue) (timeoutmgr_polls_total)", "label queue"),
        ('timeoutmgr_polls_total{destination="x"}', "label destination"),
        ("up == 0", "no metric: up == 0"),
    ],
)
def test_a_wrong_name_in_an_expression_is_found(expression: str, mistake: str) -> None:
    assert mistakes(expression) == [mistake]
