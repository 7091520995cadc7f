"""Reset after a fork: connections, locks and threads belong to the parent."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar
from uuid import UUID, uuid4, uuid5
from weakref import WeakSet

Value = TypeVar("Value")


class Inherited(Protocol):
    """An object that a forked child inherits, and must reset."""

    def after_fork(self) -> None:
        """Forget resources of the parent; only the forking thread runs."""
        ...


_inherited: Final[WeakSet[Inherited]] = WeakSet()
of_parent: Final[list[object]] = []
"""Connections that a child keeps, unused: otherwise the garbage collector would close them."""


def begin_anew_after_fork(one: Inherited) -> None:
    """Call ``one.after_fork`` in every child, for as long as *one* exists."""
    _inherited.add(one)


class ThreadSafe:
    """Base class with a ``_lock``, which is replaced in a child.

    Another thread of the parent may have locked it, and does not exist in the child.
    """

    def __init__(self) -> None:
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock."""
        self._lock = Lock()


class cached_property(functools.cached_property[Value]):
    """The property of Python 3.12: without the lock that Python 3.11 has for all objects at once.

    A child that is forked while another thread computes the property would wait for ever for that
    lock. Threads that use an object first at one time may each compute the property.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        super().__init__(compute)
        self.lock: Final = nullcontext()


def own_name(of_parent: str) -> str:
    """Return a name in this child for an owner that its parent named; siblings have others."""
    return uuid5(ChildEnds.process, of_parent).hex


class ChildEnds:
    """Context for a program's code: a child that is forked inside it ends at its exit.

    Otherwise the child would be a second worker, on the parent's connections. It also ends when it
    enters the context again, as a resumed coroutine does.
    """

    forks: ClassVar = 0
    """Number of forks before this process: quicker to read than the id of the process."""
    process: ClassVar[UUID] = uuid4()

    def __init__(self) -> None:
        self._forks = ChildEnds.forks

    def __enter__(self) -> None:
        if self._forks != ChildEnds.forks:
            _end_child(None)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._forks != ChildEnds.forks:
            _end_child(None if isinstance(error, StopIteration) else error)


def _end_child(error: BaseException | None) -> NoReturn:
    """End this process as Python does after *error*, but without the exit functions."""
    code: object = error.code if isinstance(error, SystemExit) else error
    if isinstance(code, BaseException):
        traceback.print_exception(code)
    elif not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _after_fork() -> None:
    ChildEnds.forks += 1
    ChildEnds.process = uuid4()
    for one in list(_inherited):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
