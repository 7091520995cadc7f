"""The page docs/how-to/test-your-code.md: each of its code blocks runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.projects import ROOT, install, run

PAGE = ROOT / "docs" / "how-to" / "test-your-code.md"


def test_the_blocks_of_the_page_are_a_project_whose_tests_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python")
    for name, text in blocks:
        with (tmp_path / name).open("a") as file:
            file.write(f"\n{text}")
    install(tmp_path)

    code, counts, said = run(tmp_path, "-p", "no:asyncio", "-W", "error", ".")

    assert (code, counts["passed"]) == (0, sum(text.count("def test_") for _, text in blocks)), said
