"""The page of behaviours tells the truth."""

from tests.behaviours import BEHAVIOURS, DIFFERENCES, PAGE, marks, page

_WITHOUT_TEST = {14}
"""Behaviours of parts that this product does not have (yet): their line says so."""


def test_every_behaviour_is_held_by_a_test_or_is_of_a_part_that_is_not_here() -> None:
    open_ones = set(BEHAVIOURS) - set(marks())

    assert open_ones <= _WITHOUT_TEST


def test_no_test_claims_a_number_that_is_not_on_the_list() -> None:
    unknown = {number for number in marks() if number not in BEHAVIOURS and number < 100}

    assert not unknown


def test_each_difference_is_of_a_listed_behaviour() -> None:
    assert set(DIFFERENCES) <= set(BEHAVIOURS)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make approve`"
