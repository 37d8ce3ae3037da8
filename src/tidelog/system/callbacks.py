"""Checks of the functions that a program gives.

One that does not do its work when it is called is rejected: a coroutine function or a generator
function only creates an object. None of its code has run when it returns, so what it was called
with must not count as done.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Final

from tidelog.errors import ConfigError

_LATER: Final = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)


class WorkNotDoneError(TypeError):
    """A function of the program returned work instead of doing it. Only used as a cause."""


def is_coroutine_function(given: Any) -> bool:
    """True for ``async def``, an object whose ``__call__`` is one, or a partial of these."""
    return any(map(inspect.iscoroutinefunction, _forms(given)))


def is_asynchronous_generator_function(given: Any) -> bool:
    """True for ``async def`` with ``yield``, in the forms of `is_coroutine_function`."""
    return any(map(inspect.isasyncgenfunction, _forms(given)))


def is_awaited_transform(given: Any) -> bool:
    """Must the transform run on an event loop?"""
    return is_coroutine_function(given) or is_asynchronous_generator_function(given)


def require_function(name: str, given: Any) -> None:
    """Raise ConfigError if ``given`` is neither None nor can be called."""
    if given is not None and not callable(given):
        raise ConfigError(f"{name}: give a function, not a value of {type(given).__name__}")


def refuse_coroutine_function(name: str, given: Any) -> None:
    """Raise ConfigError if ``given``, the argument ``name``, can't be called, or if a call would
    only create a coroutine or a generator.
    """
    require_function(name, given)
    if any(later(form) for later in _LATER for form in _forms(given)):
        raise ConfigError(
            f"{name}: a coroutine or generator function, which does nothing when it is called: "
            "give an ordinary function (consumers and transforms may be coroutine functions)"
        )


def refuse_coroutine(returned: Any) -> None:
    """Raise WorkNotDoneError if ``returned`` must be awaited or iterated."""
    _refuse(returned, inspect.isgenerator(returned))


def refuse_awaitable(returned: Any) -> None:
    """As `refuse_coroutine`, but allows generators, which the caller reads."""
    _refuse(returned, False)


def _refuse(returned: Any, also: bool) -> None:
    if also or inspect.isawaitable(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise WorkNotDoneError("returned a coroutine or a generator, which nobody runs")


def function_name(given: Any) -> str:
    """The function's name in the program, e.g. ``shop.mail.send``."""
    form, call = _forms(given)
    named = getattr(form, "__wrapped__", form)
    if not hasattr(named, "__qualname__"):
        named = type(named) if call is not None else named
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"


def _forms(given: Any) -> tuple[Any, Any]:
    while isinstance(given, partial):
        given = given.func
    call = None if inspect.isclass(given) else getattr(type(given), "__call__", None)  # noqa: B004
    return given, call
