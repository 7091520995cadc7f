"""The jobs that the examples for schedulers name are jobs of the command line, with its options."""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import click
import pytest
import yaml

from timeoutmgr.cli.pipeline.group import pipeline

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"


class Operator:
    """Stands for the operator of Airflow, which brings 100 packages: it keeps its command."""

    made: ClassVar[list[str]] = []

    def __init__(self, *, task_id: str, bash_command: str) -> None:
        self.made.append(bash_command.replace("{{ ds }}", "2030-01-31"))
        assert task_id in bash_command


class Dag:
    def __init__(self, dag_id: str, **_options: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the commands of the tasks."""
    for name, held in (
        ("airflow.sdk", {"DAG": Dag, "chain": lambda *_tasks: None}),
        ("airflow.providers.standard.operators.bash", {"BashOperator": Operator}),
    ):
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
    yield Operator.made
    Operator.made.clear()


def parsed(words: list[str]) -> str | None:
    """Return the job of *words*, whose options are parsed as the command line does."""
    assert words[0] == "pipeline"
    command = pipeline.commands[words[1]]
    return command.make_context(words[1], words[2:], parent=click.Context(pipeline)).info_name


def test_the_tasks_of_airflow_are_jobs(airflow: list[str]) -> None:
    runpy.run_path(str(PIPELINE / "airflow_dag.py"))

    found = [parsed(shlex.split(one)[1:]) for one in airflow]
    assert found == ["archive", "compact", "reconcile", "report"]


def test_the_tasks_of_databricks_are_jobs_in_their_order() -> None:
    bundle = yaml.safe_load((PIPELINE / "databricks.yml").read_text())

    tasks = bundle["resources"]["jobs"]["timeoutmgr_nightly"]["tasks"]
    keys = [one["task_key"] for one in tasks]
    assert [parsed(one["python_wheel_task"]["parameters"]) for one in tasks] == keys
    assert [one["depends_on"][0]["task_key"] for one in tasks[1:]] == keys[:-1]


def test_the_notebook_is_a_program() -> None:
    text = (PIPELINE / "notebook.py").read_text()

    compile(text, "notebook.py", "exec")
    assert text.startswith("# Databricks notebook source\n")
