"""Functions that a caller registers: check early that a call of the function runs its body."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from timeoutmgr.errors import ConfigurationError

_KINDS: Final = (
    (inspect.iscoroutinefunction, "a coroutine function (async def)"),
    (inspect.isasyncgenfunction, "an asynchronous generator function"),
    (inspect.isgeneratorfunction, "a generator function (it has a yield)"),
)
"""Functions whose call only makes an object: the body runs when it is iterated or awaited."""


def check_callable(
    given: object, role: str, takes: Sequence[str], *, may_await: bool = False
) -> None:
    """Raise ConfigurationError unless a call of *given* with the arguments *takes* runs its body.

    *role* names *given* in the error. With *may_await* a coroutine function is accepted too, for a
    caller that awaits the coroutine. A callable without a readable signature, such as some
    builtins, is accepted. The signature is that of the outermost wrapper, because a decorator may
    add arguments for the wrapped function, or run a coroutine to its end.
    """
    call = f"({', '.join(takes)})"
    if not callable(given):
        raise ConfigurationError(f"{role} is a function of {call}, got {given!r:.80}")
    called = _called(given)
    if inspect.isclass(called):
        raise ConfigurationError(
            f"{role} is a function of {call}, got the class {called.__name__}, of which a call "
            "only makes an object; register an object or a method of it"
        )
    for is_kind, kind in _KINDS:
        if is_kind(called) and not (may_await and is_kind is inspect.iscoroutinefunction):
            raise ConfigurationError(
                f"{role} ({_name(given)}) is {kind}, of which a call runs nothing; register a "
                "plain function, which may call asyncio.run"
            )
    _check_arguments(given, role, takes)


def is_coroutine_function(given: Callable[..., object]) -> bool:
    """Return whether a call of *given* returns a coroutine, which its caller must await."""
    return inspect.iscoroutinefunction(_called(given))


def unrun(result: object) -> str | None:
    """Return the type of *result* if it is an object that still has to run; None otherwise.

    A coroutine is closed, so that the interpreter does not also warn of it.
    """
    if inspect.iscoroutine(result):
        result.close()
    if isinstance(result, Awaitable) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        return type(result).__name__
    return None


def _called(given: Callable[..., object]) -> Any:
    """Return the function that a call of *given* enters first."""
    while isinstance(given, functools.partial | staticmethod):
        given = given.func if isinstance(given, functools.partial) else given.__func__
    if inspect.isroutine(given) or inspect.isclass(given):
        return given
    return type(given).__call__


def _check_arguments(given: Callable[..., object], role: str, takes: Sequence[str]) -> None:
    try:
        signature = inspect.signature(given, follow_wrapped=False)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise ConfigurationError(
            f"{role} ({_name(given)}) is called with ({', '.join(takes)}) and has the parameters "
            f"{signature}: {error}; give it these parameters"
        ) from error


def _name(given: object) -> str:
    return f"{getattr(given, '__qualname__', None) or repr(given)}"[:80]
