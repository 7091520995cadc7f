"""Chunks one behind the other: looked up ahead of time, and sent one at a time."""

from __future__ import annotations

import pytest

from timeoutmgr.satellites.delivery.dispatch import DispatchSteps, OverlappedDispatch


class Journal(list[str]):
    """Chunks that note their fate."""

    def chunk(self, name: str, fails_to: str = "") -> DispatchSteps:
        try:
            for stage in ("take", "send", "close"):
                if stage == fails_to:
                    raise OSError(f"{stage} {name}")
                self.append(f"{stage} {name}")
                if stage != "close":
                    yield
        except GeneratorExit:
            self.append(f"let go {name}")
            raise


def lined_up(*chunks: DispatchSteps) -> None:
    with OverlappedDispatch(overlaps=True) as line:
        for chunk in chunks:
            line.add(chunk)


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_a_chunk_is_locked_while_its_predecessor_is_confirmed_and_sent_behind_it(
    journal: Journal,
) -> None:
    lined_up(*map(journal.chunk, "abc"))

    assert ", ".join(journal) == (
        "take a, send a, take b, close a, send b, take c, close b, send c, close c"
    )


def test_a_shared_transaction_locks_a_chunk_after_its_predecessor_is_closed(
    journal: Journal,
) -> None:
    with OverlappedDispatch(overlaps=False) as line:
        line.add(journal.chunk("a"))
        line.add(journal.chunk("b"))

    assert ", ".join(journal) == "take a, send a, close a, take b, send b, close b"


@pytest.mark.parametrize("fails_to", ["take", "send"])
def test_a_sent_chunk_is_closed_if_the_next_chunk_fails(journal: Journal, fails_to: str) -> None:
    with pytest.raises(OSError, match=f"{fails_to} b"):
        lined_up(journal.chunk("a"), journal.chunk("b", fails_to))

    assert journal.count("close a") == 1
    assert "send b" not in journal


def test_a_chunk_is_released_unsent_if_its_predecessor_cannot_be_closed(
    journal: Journal,
) -> None:
    with pytest.raises(OSError, match="close a"):
        lined_up(journal.chunk("a", "close"), journal.chunk("b"))

    assert ", ".join(journal) == "take a, send a, take b, let go b"


def test_nothing_is_closed_twice_where_the_last_cannot_be_closed(journal: Journal) -> None:
    with pytest.raises(OSError, match="close a"):
        lined_up(journal.chunk("a", "close"))

    assert ", ".join(journal) == "take a, send a"
