"""Handlers and hooks of which a call runs nothing, or fails each time: refused at the door."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.endpoint.test_handlers import Harness, bill
from timeoutmgr import EndpointConfiguration
from timeoutmgr.contracts.callables import is_coroutine_function, unrun
from timeoutmgr.errors import ConfigurationError, HandlerFailed
from timeoutmgr.resilience.critical import CriticalErrors


async def coroutine(*_given: object) -> None:
    """Do nothing, some day."""


def generator(*_given: object) -> Iterator[None]:
    yield


async def async_generator(*_given: object) -> AsyncIterator[None]:
    yield


class Methods:
    """A caller's object with methods of every kind."""

    def plain(self, *_given: object) -> None:
        """Do nothing."""

    async def coroutine(self, *_given: object) -> None:
        """Do nothing, some day."""

    @staticmethod
    async def static(*_given: object) -> None:
        """Do nothing, some day."""


class CoroutineObject:
    """An object of which a call makes a coroutine."""

    async def __call__(self, *_given: object) -> None:
        """Do nothing, some day."""


class GeneratorObject:
    """An object of which a call makes a generator."""

    def __call__(self, *_given: object) -> Iterator[None]:
        """Yield once."""
        yield


class Plain:
    """An object of which a call runs."""

    def __call__(self, *_given: object) -> None:
        """Do nothing."""


COROUTINES: list[Any] = [
    coroutine,
    functools.partial(coroutine, 1),
    functools.partial(CoroutineObject(), 1),
    Methods().coroutine,
    Methods.static,
    Methods.__dict__["static"],
    CoroutineObject(),
]
UNRUN: list[Any] = [
    generator,
    async_generator,
    functools.partial(functools.partial(generator, 1), 2),
    GeneratorObject(),
    Plain,
]


@pytest.mark.parametrize("given", UNRUN)
def test_a_function_of_which_a_call_runs_nothing_is_refused(given: Any) -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match=r"handler of 'Bill'.*a call"):
        config.add_handler("Bill", given)
    with pytest.raises(ConfigurationError, match=r"critical error hook.*a call"):
        config.define_critical_error_action(given)


@pytest.mark.parametrize("given", COROUTINES)
def test_a_coroutine_function_is_a_handler_and_not_a_hook(given: Any) -> None:
    config = EndpointConfiguration("sales")

    config.add_handler("Bill", given)

    assert is_coroutine_function(given)
    assert config.settings().handlers == {"Bill": (given,)}
    with pytest.raises(ConfigurationError, match=r"critical error hook.*a call"):
        config.define_critical_error_action(given)


@pytest.mark.parametrize(("given", "session"), [(print, False), (coroutine, True)])
def test_only_a_coroutine_function_can_do_without_a_session(given: Any, session: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"session of a handler of 'Bill'"):
        EndpointConfiguration("sales").add_handler("Bill", given, session=session)


def test_a_coroutine_function_with_a_wrong_number_of_parameters_is_refused() -> None:
    async def lonely(_message: object) -> None:
        """Take no context."""

    given: Any = lonely

    with pytest.raises(ConfigurationError, match=r"called with \(message, context\) and has"):
        EndpointConfiguration("sales").add_handler("Bill", given)


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_a_handler_with_a_wrong_number_of_parameters_is_refused(takes: int) -> None:
    given: dict[int, Any] = {0: lambda: 0, 1: lambda _a: 0, 3: lambda _a, _b, _c: 0}

    with pytest.raises(ConfigurationError, match=r"called with \(message, context\) and has"):
        EndpointConfiguration("sales").handler("Bill")(given[takes])


@pytest.mark.parametrize("takes", [0, 2])
def test_a_hook_with_a_wrong_number_of_parameters_is_refused(takes: int) -> None:
    given: dict[int, Any] = {0: lambda: 0, 2: lambda _a, _b: 0}

    with pytest.raises(ConfigurationError, match=r"called with \(context\) and has"):
        EndpointConfiguration("sales").define_critical_error_action(given[takes])


def test_a_handler_that_needs_a_keyword_is_refused() -> None:
    def with_keyword(_message: object, _context: object, *, needed: int) -> None:
        raise AssertionError(needed)

    given: Any = with_keyword

    with pytest.raises(ConfigurationError, match="needed"):
        EndpointConfiguration("sales").add_handler("Bill", given)


def running(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return a plain function that runs the coroutine of *function* to its end."""

    @functools.wraps(function)
    def run(*given: object) -> None:
        async def whole() -> None:
            await function(*given)

        asyncio.run(whole())

    return run


def with_database(function: Callable[..., None]) -> Callable[..., None]:
    """Return *function* with an argument more than its caller gives."""

    @functools.wraps(function)
    def call(*given: object) -> None:
        function(*given, "database")

    return call


@with_database
def needs_database(_message: object, _context: object, _database: str) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    "given",
    [
        Plain(),
        Methods().plain,
        functools.partial(lambda _a, _b, _c: 0, 1),
        lambda _message, _context, _more=1: 0,
        running(coroutine),
        needs_database,
        print,
        functools.lru_cache(lambda _message, _context: 0),
    ],
)
def test_a_function_of_which_a_call_runs_is_registered(given: Any) -> None:
    config = EndpointConfiguration("sales")

    config.add_handler("Bill", given)

    assert config.settings().handlers == {"Bill": (given,)}


@pytest.mark.parametrize("made", [coroutine, generator, async_generator])
@pytest.mark.filterwarnings("error")
def test_a_handler_that_returns_its_work_unrun_has_failed(made: Callable[..., Any]) -> None:
    harness = Harness(Bill=[lambda *given: made(*given)])

    with pytest.raises(HandlerFailed, match=f"it returned a {made.__name__}, which"):
        harness.handle(bill())

    assert "handled" not in harness.telemetry.snapshot()


class Later:
    """An object that can be awaited."""

    def __await__(self) -> Iterator[None]:
        """Be over at once."""
        return iter(())


def test_an_awaitable_object_is_unrun_and_a_value_is_not() -> None:
    assert unrun(Later()) == "Later"
    assert unrun(iter([1])) is unrun(None) is unrun({"n": 1}) is None


def test_a_hook_that_returns_its_work_unrun_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    critical = CriticalErrors((lambda context: generator(context), lambda _: ran.append("next")))
    critical.started(lambda: None)

    with caplog.at_level(logging.ERROR):
        critical.raise_error("an outage", RuntimeError("away"))
        critical.join(10.0)

    assert "returned a generator, which does not run" in caplog.text
    assert ran == ["next"]
