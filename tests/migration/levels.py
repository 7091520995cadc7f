"""Delay levels of a test's own."""

from dataclasses import replace

from timeoutmgr.native.names import OURS, NameSet


def names_of(stem: str) -> NameSet:
    """Names like ours, used by a single test."""
    return replace(
        OURS,
        level=f"{stem}.delay-level-{{:02}}",
        delivery=f"{stem}.delay-delivery",
        fraction=f"{stem}.delay-part-{{}}-of-{{}}",
        entrance=f"{stem}.delay-entrance",
    )


def queues_of(names: NameSet) -> list[str]:
    """All queues in which a delayed message may be."""
    return [*(names.fraction_name(part) for part in range(1, names.parts)), *names.level_names]
