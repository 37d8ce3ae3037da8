"""Copies one state store to another, while no capture runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tidelog.app.elections import LEASE_NAME, acquired, pipeline_lease
from tidelog.app.instances import PIPELINE_PREFIX
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import Config, load_config
from tidelog.config.databases import of_one_database
from tidelog.errors import UsageError
from tidelog.eventlog.owner import STORE_KEY
from tidelog.kinds.sections import StateUrl
from tidelog.ports import StateStore
from tidelog.state.opening import checked_url, open_election, open_state, state_exists

COPYING: Final = "copying"
"""A document of a store that a copy is being made into; the last one to go."""

_OF_ONE_STORE: Final = (COPYING, STORE_KEY)
_HOLDER: Final = "tidelog state copy"
_LEASE_S: Final = 20.0
PATIENCE_S: Final = 30.0
"""For a lease to run out, in a store that does not say how long it may last."""


Load = Callable[[Path], Config]


def one_database(path: Path) -> Config:
    """The configuration of a file. Raises ConfigError if it has several databases."""
    return of_one_database(load_config(path))


def copy_state(source: str, target: str, load: Load = one_database) -> dict[str, Any]:
    """Copy all documents; each place is a URL, or a configuration file, whose state it is, as
    ``load`` reads it.

    Both elections are held meanwhile, and the target's epochs go on above the source's. What was
    copied stays in the source.

    Raises:
        UsageError: a capture leads, there is nothing to copy, or the target holds a state already.
    """
    taken, given = _place(source, load), _place(target, load)
    if taken == given:
        raise UsageError(f"both are {taken}")
    if not state_exists(taken):
        raise UsageError(f"{taken} holds no state")
    with ExitStack() as opened:
        held = opened.enter_context(_leading(taken, LEASE_NAME, 1))
        holds = opened.enter_context(_leading(given, LEASE_NAME, held.lease.epoch + 1))
        old = opened.enter_context(closing(open_state(taken)))
        for key in old.keys(PIPELINE_PREFIX):  # what outputs have is kept there, too
            name = key.removeprefix(PIPELINE_PREFIX)
            what = f"the pipeline {name}"
            opened.enter_context(_leading(taken, pipeline_lease(name), 1, what))
        new = opened.enter_context(closing(open_state(given)))
        _make_room(new, given)
        keys = [key for key in old.keys("") if key not in _OF_ONE_STORE]
        copied = 0
        for key in keys:
            document = old.get(key)
            held.check()
            holds.check()
            if document is not None:
                new.put(key, document.value, 0)
                copied += 1
        missing = set(keys).symmetric_difference(
            key for key in new.keys("") if key not in _OF_ONE_STORE
        )
        if missing:
            raise UsageError(f"{taken} was changed meanwhile: is a capture running? Copy again")
        new.delete(COPYING)
    return {"from": str(taken), "to": str(given), "documents": copied}


def check_whole(state: StateStore) -> None:
    """Raises UsageError for a store that a copy has begun to fill and did not end."""
    if state.get(COPYING) is not None:
        raise UsageError(
            "a `tidelog state copy` into this state store did not end: give the command again, or "
            "use the store that it copied from"
        )


def _make_room(state: StateStore, place: StateUrl) -> None:
    """What a copy that did not end has left is removed; anything else is not."""
    if state.get(COPYING) is None:
        if state.keys(""):
            raise UsageError(f"{place} holds a state already")
        state.put(COPYING, {"since_ms": int(time.time() * 1000)}, 0)
    for key in state.keys(""):
        if key != COPYING:
            state.delete(key)


@contextmanager
def _leading(
    place: StateUrl, name: str, first_epoch: int, what: str = "a capture"
) -> Iterator[LeaseKeeper]:
    with closing(
        open_election(place, name, _HOLDER, _LEASE_S, first_epoch=first_epoch)
    ) as election:
        lease = acquired(election, PATIENCE_S, f" with the state at {place}", what)
        keeper = LeaseKeeper(election, lease, _LEASE_S / 4)
        try:
            yield keeper
        finally:
            keeper.release()


def _place(text: str, load: Load) -> StateUrl:
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return load(path).state.place
    try:
        return StateUrl(checked_url(text, Path.cwd()))
    except ValueError as error:
        raise UsageError(f"neither a configuration file nor a state store: {error}") from None
