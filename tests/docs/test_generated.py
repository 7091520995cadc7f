"""Generated pages are up to date, and each error has a section to which the command line leads."""

from __future__ import annotations

import json
import pydoc
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.docs import generated
from tests.docs.pages import DOCS
from timeoutmgr.cli.main import cli


@pytest.mark.parametrize("name", generated.PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    page = (DOCS / "reference" / name).read_text()

    assert page == generated.PAGES[name](), "run python -m tests.docs.generated"


def test_the_command_line_leads_to_a_section_that_exists() -> None:
    text = (DOCS / "reference" / "errors.md").read_text()

    for found in generated.classes():
        assert found.help_page() == f"reference/errors.md#{found.__name__.lower()}"
        assert f"## {found.__name__}\n" in text
        assert pydoc.locate(f"{found.__module__}.{found.__name__}") is found


def test_a_command_that_fails_names_the_section_of_its_error(tmp_path: Path) -> None:
    settings = tmp_path / "sales.toml"
    settings.write_text('endpoint = "sales"\nconcurency = 2\n')

    said = CliRunner().invoke(cli, ["--config", str(settings), "list"])
    document = CliRunner().invoke(cli, ["--json", "--config", str(settings), "list"])

    assert said.exit_code == 4
    assert said.stderr.splitlines()[-1] == (
        "help: section UnknownSetting of the page Errors; "
        "python -m pydoc timeoutmgr.errors.UnknownSetting"
    )
    assert json.loads(document.stdout)["help"] == "reference/errors.md#unknownsetting"
