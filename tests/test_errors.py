"""Errors pass between processes: a pool pickles them, and a text replaces a part that cannot be."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from types import WrapperDescriptorType
from typing import Any, Final

import pytest

from tests.docs import generated
from timeoutmgr import SendOptions, ToSend
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import IdInUse, TimeoutManagerError

generated.classes()  # imports every module of an error


def _below(base: type[TimeoutManagerError]) -> Iterator[type[TimeoutManagerError]]:
    yield base
    for found in base.__subclasses__():
        if found.__module__.startswith("timeoutmgr"):
            yield from _below(found)


GIVEN: Final = {
    "message_class": 0x8006,
    "losses": {"sales": ["a limit"]},
    "missed": {"token": SendResult.UNKNOWN},
    "unsent": [ToSend("sales", "Due", {"order": 7}, SendOptions(delay=3.0))],
    "error": ValueError("seven"),
    "cause": ValueError("seven"),
}
"""Arguments that need more than the class of their annotation."""


def _made(kind: type[TimeoutManagerError]) -> TimeoutManagerError:
    """Return an error of *kind*, an argument for each parameter."""
    arguments: list[Any] = []
    if isinstance(kind.__init__, WrapperDescriptorType):
        return kind("seven", 7)
    for each in inspect.signature(kind).parameters.values():
        shown = str(each.annotation)
        is_number = any(name in shown for name in ("int", "float", "Micros"))
        plain: object = 7 if is_number else ["seven"] if "[" in shown else "seven"
        arguments.append(GIVEN.get(each.name, plain))
    return kind(*arguments)


KINDS: Final = sorted({*_below(TimeoutManagerError)}, key=lambda kind: kind.__name__)


def _differences(made: TimeoutManagerError, other: TimeoutManagerError) -> list[object]:
    pairs = [(type(made), type(other)), (str(made), str(other)), (made.args, other.args)]
    return [pair for pair in [*pairs, (vars(made), vars(other))] if pair[0] != pair[1]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_text_and_attributes_in_pickles_and_copies(
    kind: type[TimeoutManagerError],
) -> None:
    made = _made(kind)
    made.add_note("a note")
    pickled = [pickle.loads(pickle.dumps(made, each)) for each in range(6)]

    assert [_differences(made, each) for each in [*pickled, copy.copy(made)]] == [[]] * 7


class Unreadable:
    """A value whose pickle cannot be read, as that of a driver's error."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("seven",)


@pytest.mark.parametrize("value", [threading.Lock(), Unreadable(), lambda: None])
def test_a_text_replaces_an_attribute_that_cannot_be_pickled(value: object) -> None:
    made = IdInUse("id", "timeout")
    vars(made)["more"] = value
    read = pickle.loads(pickle.dumps(made))

    assert vars(read) == {**vars(made), "more": f"<{type(value).__name__}: cannot be pickled>"}


def _refused(message_id: str) -> None:
    raise IdInUse(message_id, "timeout")


def test_a_pool_of_processes_raises_the_error_of_its_process() -> None:
    with ProcessPoolExecutor(1) as pool:
        refused = pool.submit(_refused, "id")
        with pytest.raises(IdInUse) as raised:
            refused.result()

    assert str(raised.value) == str(IdInUse("id", "timeout"))
