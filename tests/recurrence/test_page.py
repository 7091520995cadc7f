"""Each form of a schedule that the page names is understood."""

from __future__ import annotations

import re
from pathlib import Path

from timeoutmgr.recurrence.occurrences import parse

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "recurring.md").read_text()


def test_each_form_of_the_table_is_understood() -> None:
    table = PAGE.partition("| `every` | runs |")[2].partition("\n\n")[0]

    forms = re.findall(r'`"([^"]+)"`', table)

    assert len(forms) == 6
    for form in forms:
        parse(form)
