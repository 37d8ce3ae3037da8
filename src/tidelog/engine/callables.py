"""Functions of a program must do their work when they are called.

A coroutine function or a generator function only makes an object: nothing of it has run when it
returns, so its events must not count as done.
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


def refuse_coroutine_function(name: str, given: Any) -> None:
    """Raises ConfigError if a call of ``given``, the argument ``name``, would only make a coroutine
    or a generator.
    """
    while isinstance(given, partial):
        given = given.func
    call = None if inspect.isclass(given) else getattr(type(given), "__call__", None)  # noqa: B004
    if any(later(each) for later in _LATER for each in (given, call)):
        raise ConfigError(
            f"{name}: a coroutine or generator function, which does nothing when it is called: "
            "give an ordinary function. It can run a coroutine on your loop with "
            "asyncio.run_coroutine_threadsafe(...).result()"
        )


def refuse_coroutine(returned: Any) -> None:
    """Raises TypeError if ``returned`` is what somebody would still have to await or to run."""
    if (
        inspect.isawaitable(returned)
        or inspect.isasyncgen(returned)
        or inspect.isgenerator(returned)
    ):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError("a function returned a coroutine or a generator, which nobody runs")
