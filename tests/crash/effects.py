"""Reads the source of steps: where may two side effects follow each other with no point between?

Each path through a function is followed, its loops twice. Functions of the same module are
followed where they are called, and the function that ``run`` gets where it runs. The commit counts
as part of the last write before it: a crash in between has the effect of a crash before that write.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

Place: TypeAlias = tuple[int, str]
State: TypeAlias = frozenset[Place | None]
"""The side effects that may have been the last thing to happen; None where it was a point."""

CLEAN: Final[State] = frozenset({None})

EFFECTS: Final = {
    # ports: stores, sessions, receivers, transports
    *("store_many", "claim", "release", "lock_for_dispatch", "heartbeat", "purge"),
    *("cancel_saga", "clear_saga", "reroute"),
    *(
        "send",
        "send_isolated",
        "start_isolated",
        "start_sending",
        "ack",
        "create_queues",
        "delete_queues",
        "install",
    ),
    *("store", "remove_many", "increment_failure_count", "setup_infrastructure"),
    *("reserve", "free", "let_go"),
    # between modules of the SQL store and of the SQL queue
    *("move_many", "announce"),
    *(
        "insert_missing",
        "execute_many",
        "flag_maybe_sent",
        "flag_free_rows",
        "remove_claims",
        "add_claims",
        "record",
    ),
    *("insert_keys", "insert_rows", "close_keys", "lapse", "send_each", "move_to_error_queue"),
    # dead letters
    *("dead_letter", "divert", "try_send", "place", "keep", "acknowledge", "arrived", "journal"),
    *("before_sending", "after_sending", "save"),
    *("notify", "put", "take", "lease_rows", "free_dead_owners", "create_table", "create_index"),
}
_EFFECTS_OF: Final = frozenset(
    {
        *(
            ("taken", "close"),
            ("locked", "close"),
            ("_connection", "write"),
            ("command", "upgrade"),
        ),
        ("channel", "queue_declare"),
        *(("source", name) for name in ("prepare", "hide", "remove", "restore")),
        *(("target", name) for name in ("open", "deliver", "shut")),
        *(("ledger", name) for name in ("create", "acquire", "move_run", "move_batch")),
        ("sink", "accept"),
        *(("_rows", name) for name in ("insert", "change")),
        *(("store", "remove"), ("_rows", "remove"), ("batches", "remove")),
    }
)
"""Names that are side effects of just that object's."""

_READS: Final = re.compile(
    r"\(?select\(|OnKeys\(context, (select\(|lambda keyed: locked\b)|text\(f?[\"']"
    r"(SELECT (pg_advisory|\{lock|1|GET_LOCK|count|\(SELECT count|CAST|to_regclass)|SET LOCAL)"
)
"""How a statement begins that writes nothing; the locks and settings are the transaction's own."""

_OF_KEYS: Final = re.compile(r"\*(self\.\w+)\.of\(.*\)")
"""A statement with its parameters, see ``OnKeys``."""


@dataclass(slots=True)
class Reading:
    """One module, being read."""

    reads: frozenset[str]
    """Statements by the expression that names them, which write nothing."""
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    found: dict[tuple[Place, Place], str] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _local: list[dict[str, ast.FunctionDef]] = field(default_factory=list)
    _returned: list[set[Place | None]] = field(default_factory=list)

    def read(self, function: ast.FunctionDef, state: State) -> State:
        """Follow *function* from *state*; return in which states it may return."""
        if function.name in self._open:
            return state
        self._open.append(function.name)
        nested = (node for node in ast.walk(function) if isinstance(node, ast.FunctionDef))
        self._local.append({node.name: node for node in nested if node is not function})
        self._returned.append(set())
        ended = self._block(function.body, state)
        ended |= self._returned.pop()
        self._local.pop()
        self._open.pop()
        return ended

    def _block(self, body: Sequence[ast.stmt], state: State) -> State:
        for statement in body:
            state = self._statement(statement, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                return state
            case ast.If():
                state = self._expression(node.test, state)
                return self._block(node.body, state) | self._block(node.orelse, state)
            case ast.For() | ast.While():
                state = self._expression(
                    node.iter if isinstance(node, ast.For) else node.test, state
                )
                once = self._block(node.body, state)
                return state | once | self._block(node.body, once) | self._block(node.orelse, once)
            case ast.Try():
                done = self._block(node.body, state)
                ways = self._block(node.orelse, done)
                for handler in node.handlers:
                    ways |= self._block(handler.body, state | done)
                return self._block(node.finalbody, ways)
            case ast.With():
                for item in node.items:
                    state = self._expression(item.context_expr, state)
                return self._block(node.body, state)
            case ast.Return():
                state = self._expression(node.value, state) if node.value else state
                self._returned[-1] |= state
                return frozenset()
            case ast.Raise() | ast.Continue() | ast.Break():
                # The handler of an error has to mend it; a loop is followed twice anyway.
                return frozenset() if isinstance(node, ast.Raise) else state
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        state = self._expression(child, state)
                return state

    def _expression(self, node: ast.AST, state: State) -> State:
        if not state:
            return state
        match node:
            case ast.Lambda():
                return state
            case ast.Yield() | ast.YieldFrom():
                return CLEAN  # the caller's code runs here; it is read in its own function
            case ast.IfExp():
                state = self._expression(node.test, state)
                return self._expression(node.body, state) | self._expression(node.orelse, state)
            case ast.Call():
                return self._call(node, state)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for _ in range(2):
                    for child in ast.iter_child_nodes(node):
                        state = state | self._expression(child, state)
                return state
        for child in ast.iter_child_nodes(node):
            state = self._expression(child, state)
        return state

    def _call(self, node: ast.Call, state: State) -> State:
        for part in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
            state = self._expression(part, state)
        name = _name(node.func)
        place = (node.lineno, name)
        if name == "reach":
            return CLEAN
        if name == "run":
            given = node.args[0]
            if isinstance(given, ast.Lambda):
                return self._expression(given.body, state)
            return self._follow(_name(given), state) or self._happens(place, state)
        if name == "move" and _name(getattr(node.func, "value", node)) == "error_queue":
            return self._moves(node.args[-1], state) or self._happens(place, state)
        if name == "execute":
            statement = ast.unparse(node.args[0])
            return state if self._is_read(statement) else self._happens(place, state)
        if (_name(getattr(node.func, "value", node)), name) in _EFFECTS_OF:
            looks = any(keyword.arg == "passive" for keyword in node.keywords)
            return state if looks else self._happens(place, state)
        if _is_own(node.func):
            followed = self._follow(name, state)
            if followed is not None:
                return followed
        return self._happens(place, state) if name in EFFECTS else state

    def _moves(self, send: ast.expr, state: State) -> State | None:
        """Follow the function that sends a failed message's copies: up to three calls."""
        if not isinstance(send, ast.Lambda) or not isinstance(send.body, ast.Call):
            return None
        once = self._follow(_name(send.body.func), state)
        return once and once | self._expression(send.body, once)

    def _follow(self, name: str, state: State) -> State | None:
        for scope in (*reversed(self._local), self.functions):
            if name in scope:
                return self.read(scope[name], state)
        return None

    def _happens(self, place: Place, state: State) -> State:
        for before in state:
            if before is not None:
                self.found.setdefault((before, place), self._open[-1])
        return frozenset({place})

    def _is_read(self, statement: str) -> bool:
        if (of_keys := _OF_KEYS.fullmatch(statement)) is not None:
            return of_keys[1] in self.reads
        return bool(_READS.match(statement)) or statement.split(".with_for_update")[0] in self.reads


def reads_of(paths: Sequence[Path]) -> frozenset[str]:
    """Return the attributes that *paths* give the name of a statement which only reads."""
    return frozenset(
        name
        for path in paths
        for name in _reading_names(ast.parse(path.read_text()))
        if name.startswith("self.")
    )


def uncovered(path: Path, reads: frozenset[str]) -> Iterator[tuple[str, Place, Place]]:
    """Yield each function of *path* with two side effects that have no point between them."""
    tree = ast.parse(path.read_text(), str(path))
    reading = Reading(reads | _reading_names(tree))
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        functions = [one for one in inner if isinstance(one, ast.FunctionDef)]
        reading.functions |= {one.name: one for one in functions}
    for function in reading.functions.values():
        reading.read(function, CLEAN)
    for before, after in sorted(reading.found):
        yield reading.found[before, after], before, after


def _reading_names(tree: ast.Module) -> frozenset[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _READS.match(ast.unparse(node.value)):
                found |= {ast.unparse(target) for target in targets}
    return frozenset(found)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_own(node: ast.expr) -> bool:
    """Whether a call is to this module's own: ``name()`` or ``self.name()``."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, ast.Name)
