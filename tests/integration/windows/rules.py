"""``@rule(mutations…)``: a test that holds for our rule and fails for each way of breaking it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from tests.integration.windows.live import Live

Make = Callable[..., Live]
Made = TypeVar("Made", bound=Live)
Test = Callable[..., None]
Mutation = Callable[[pytest.MonkeyPatch], None]

# A broken rule may show as something that never happens; what holds is quicker by far.
MUTATED_PATIENCE_S = 3.0


def impatient(make: Callable[..., Made]) -> Callable[..., Made]:
    """The same fixture, for a behaviour that is to fail."""

    def making(**options: Any) -> Made:
        made = make(**options)
        made.patience_s = MUTATED_PATIENCE_S
        return made

    return making


def rule(*mutations: Mutation) -> Callable[[Test], Test]:
    """Run the test as it is, and once with each mutation, in which it must fail."""

    def decorate(test: Test) -> Test:
        def checked(live: Make, monkeypatch: pytest.MonkeyPatch, mutation: Mutation | None) -> None:
            needed = (monkeypatch,) if "monkeypatch" in inspect.signature(test).parameters else ()
            if mutation is None:
                test(live, *needed)
                return
            mutation(monkeypatch)
            with pytest.raises(AssertionError) as failed:
                test(impatient(live), *needed)
            print(f"{mutation.__name__}: {failed.value}")

        checked.__name__, checked.__doc__ = test.__name__, test.__doc__
        checked.__module__ = test.__module__
        names = ["ours", *(mutation.__name__ for mutation in mutations)]
        parametrize = pytest.mark.parametrize("mutation", [None, *mutations], ids=names)
        return parametrize(checked)  # type: ignore[no-any-return]

    return decorate
