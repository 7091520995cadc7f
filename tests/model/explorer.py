"""Visits every state that actors and faults can bring a world into.

An actor is a plain function over ports. To advance it, the explorer runs it anew from its
beginning with the answers that it has had so far, and leaves it at its first port call without
an answer. So these answers are its whole local state, its next port call is computed once for
each state, and there is neither a thread nor a stack to copy.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .promises import Promise, PromiseBroken
from .world import Bounds, Op, Raised, World


class Paused(BaseException):
    """Leaves an actor at a port call that has no answer yet."""


class Player:
    """Gives a run the answers that it has had."""

    def __init__(self, answers: tuple[Hashable, ...]) -> None:
        self._answers = answers
        self._at = 0
        self.asked: Op | None = None

    def ask(self, op: Op) -> Any:
        if self._at == len(self._answers):
            # A context manager may ask again on the way out, to release rows: the first counts.
            self.asked = self.asked or op
            raise Paused
        answer = self._answers[self._at]
        self._at += 1
        if isinstance(answer, Raised):
            raise answer.kind(answer.reason)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """An actor repeats *activity*; *once* is for clients."""

    name: str
    kind: str
    activity: Callable[[Player], Hashable]
    once: bool = False
    may_begin: Callable[[World], bool] = lambda world: True
    begun: Callable[[World], World] = lambda world: world
    ended: Callable[[World, Hashable], World] = lambda world, result: world


class Node:
    """How far one actor has come: the answers had, and the port call or the result that follow."""

    def __init__(self, actor: Actor, answers: tuple[Hashable, ...] = ()) -> None:
        self.actor = actor
        self.fresh = not answers
        self._answers = answers
        self._children: dict[Hashable, Node] = {}
        self.op: Op | None = None
        self.result: Hashable = None
        player = Player(answers)
        try:
            self.result = actor.activity(player)
        except Paused:
            self.op = player.asked

    def after(self, answer: Hashable) -> Node:
        child = self._children.get(answer)
        if child is None:
            child = self._children[answer] = Node(self.actor, (*self._answers, answer))
        return child


Nodes: TypeAlias = tuple["Node | None", ...]
Successor: TypeAlias = tuple[str, World, Nodes]
Fault: TypeAlias = Callable[[World], Iterator[tuple[str, World]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A world, its actors, and the faults that may happen."""

    world: World
    actors: tuple[Actor, ...]
    bounds: Bounds
    crash: Callable[[World, str], World]
    faults: tuple[Fault, ...]
    check: Callable[[World], None]
    settle: Callable[[World], World]
    """Let time pass until every claim has lapsed, for the fair end."""
    check_end: Callable[[World], None]


@dataclass(frozen=True, slots=True)
class Explored:
    """What was seen; *ends* are the states from which a fair end was tried: all were idle."""

    states: int
    transitions: int
    ends: int
    most_delivered: int
    answers: frozenset[tuple[str, str]]


@dataclass(slots=True)
class _Run:
    """One exploration."""

    model: Model
    roots: tuple[Node, ...]
    visited: set[tuple[World, Nodes]] = field(default_factory=set)
    came: list[tuple[int, str]] = field(default_factory=list)
    finished: set[tuple[World, Nodes]] = field(default_factory=set)

    def explore(self) -> Explored:
        start: Nodes = self.roots
        waiting: deque[tuple[World, Nodes]] = deque()
        self._note(self.model.world, start, -1, "", waiting)
        transitions, ends, most = 0, 0, 0
        answers: set[tuple[str, str]] = set()
        here = -1
        while waiting:
            world, nodes = waiting.popleft()
            here += 1
            try:
                moved = False
                for label, after, then in self.moves(world, nodes):
                    moved = moved or (after, then) != (world, nodes)
                    transitions += 1
                    self._note(after, then, here, label, waiting)
                if all(node is None or node.fresh for node in nodes):
                    ends += 1
                    self._finish(world, nodes)
                elif not moved:
                    stuck = [n.actor.name for n in nodes if n is not None and not n.fresh]
                    raise PromiseBroken(
                        Promise.NOBODY_WAITS_FOR_EVER, f"{stuck} wait for each other"
                    )
                for label, after, then in self._faults(world, nodes):
                    transitions += 1
                    self._note(after, then, here, label, waiting)
            except PromiseBroken as broken:
                raise broken.along(self._path(here)) from None
            most = max(most, *world.delivered.values(), 0)
            answers.update(world.answers.items())
        return Explored(len(self.came), transitions, ends, most, frozenset(answers))

    def moves(self, world: World, nodes: Nodes, only: int | None = None) -> Iterator[Successor]:
        """Yield the successors of *world* after the next port call of an actor."""
        idle: set[str] = set()
        for place, node in enumerate(nodes):
            if node is None or only not in {None, place}:
                continue
            if node.fresh:
                actor = node.actor
                if actor.kind in idle or not actor.may_begin(world):
                    continue
                if not _owns(world, actor.name):
                    idle.add(actor.kind)  # of idle likes, one stands for all
                begun = node.actor.begun(world)
            else:
                begun = world
            for label, after, child in self._advance(begun, node):
                end = child
                if child.op is None:
                    after = node.actor.ended(after, child.result)
                    end = None if node.actor.once else self.roots[place]
                yield (
                    f"{node.actor.name}: {label}",
                    after,
                    (*nodes[:place], end, *nodes[place + 1 :]),
                )

    def _advance(self, world: World, node: Node) -> Iterator[tuple[str, World, Any]]:
        """Carry out quick calls up to and with the next call that is not."""
        while node.op is not None and node.op.quick:
            [(_, _, answer)] = node.op.outcomes(world)
            node = node.after(answer)
        if node.op is None:
            yield "goes on", world, node
            return
        for label, after, answer in node.op.outcomes(world):
            yield f"{node.op.name}{label}", after, node.after(answer)

    def _faults(self, world: World, nodes: Nodes) -> Iterator[Successor]:
        if world.crashes < self.model.bounds.crashes:
            for place, node in enumerate(nodes):
                if node is None:
                    continue
                name = node.actor.name
                if not node.fresh or _owns(world, name):
                    end = None if node.actor.once else self.roots[place]
                    yield (
                        f"{name} is killed",
                        self.model.crash(world, name),
                        (*nodes[:place], end, *nodes[place + 1 :]),
                    )
        for fault in self.model.faults:
            for label, after in fault(world):
                yield label, after, nodes

    def _note(
        self, world: World, nodes: Nodes, came_from: int, label: str, waiting: deque[Any]
    ) -> None:
        known = len(self.visited)
        self.visited.add(state := (world, nodes))
        if len(self.visited) == known:
            return
        self.came.append((came_from, label))
        try:
            self.model.check(world)
        except PromiseBroken as broken:
            raise broken.along([label]) from None
        waiting.append(state)

    def _path(self, here: int) -> list[str]:
        steps: list[str] = []
        while here > 0:
            here, label = self.came[here]
            steps.append(label)
        return steps[::-1]

    def _finish(self, world: World, nodes: Nodes) -> None:
        """Let everything go well from here, and see that nothing stays undone."""
        world = world._replace(polls=-1000)
        if (world, nodes) in self.finished:
            return
        self.finished.add((world, nodes))
        steps = ["from here on all goes well"]
        try:
            for _ in range(4):
                world = self.model.settle(world)
                for _ in range(3):
                    for place in range(len(nodes)):
                        world, nodes = self._one_step(world, nodes, place, steps)
            self.model.check_end(world)
        except PromiseBroken as broken:
            raise broken.along(steps) from None

    def _one_step(
        self, world: World, nodes: Nodes, place: int, steps: list[str]
    ) -> tuple[World, Nodes]:
        """Let one actor do its work to the end, with no fault."""
        for _ in range(50):
            step = next(self.moves(world, nodes, place), None)
            if step is None:
                break
            before = world, nodes
            label, world, nodes = step
            if before != (world, nodes):
                steps.append(label)
            self.model.check(world)
            node = nodes[place]
            if node is None or node.fresh:
                break
        return world, nodes


def _owns(world: World, name: str) -> bool:
    if not world.claims:
        return False
    return any(claim.owner == name and not claim.over for claim in world.claims.values())


def explore(model: Model) -> Explored:
    """Visit every state; raise PromiseBroken, with the shortest way there, for a broken promise."""
    # States refer to no other state: the collector would go through all of them in vain.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _Run(model, tuple(Node(actor) for actor in model.actors)).explore()
    finally:
        if was_enabled:
            gc.enable()
