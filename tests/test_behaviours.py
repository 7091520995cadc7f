"""The page of behaviours tells the truth."""

from tests.behaviours import (
    BEHAVIOURS,
    DIFFERENCES,
    PAGE,
    WITHOUT_TEST,
    marks,
    page,
)

_LISTED = set(range(1, 142))


def test_the_page_has_every_behaviour() -> None:
    assert set(BEHAVIOURS) == _LISTED


def test_every_behaviour_is_held_by_a_test_or_is_of_a_part_that_is_not_here() -> None:
    assert _LISTED - set(marks()) == WITHOUT_TEST


def test_a_behaviour_without_a_test_says_why() -> None:
    assert DIFFERENCES.keys() >= WITHOUT_TEST


def test_no_test_claims_a_number_that_is_not_on_the_list() -> None:
    assert set(marks()) <= _LISTED


def test_each_difference_is_of_a_listed_behaviour() -> None:
    assert DIFFERENCES.keys() <= _LISTED


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make approve`"
