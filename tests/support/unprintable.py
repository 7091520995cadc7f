"""Errors of handlers that have no text, or no traceback."""

from __future__ import annotations


class Unprintable(Exception):
    """An error whose text needs more than it was given."""

    def __str__(self) -> str:
        raise RuntimeError("there is no text")


class WithoutText(Exception):
    """An error whose text is no text."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # as the classes of some libraries do


UNPRINTABLE = {
    Unprintable: "<Unprintable: its text raised RuntimeError>",
    WithoutText: "<WithoutText: its text raised TypeError>",
}
"""Classes of errors without a text, and the text that stands for each."""


def without_traceback() -> SyntaxError:
    """Return an error whose traceback cannot be written: its line is no text."""
    return SyntaxError("a bad line", ("orders.txt", 1, 2, 5))  # type: ignore[arg-type]  # a wrong line is the point
