"""Copies the documents of one state store to another, while nothing leads on either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from tidelog.app.base.elections import LEASE_NAME, acquire_lease, pipeline_lease_name
from tidelog.app.base.instances import PIPELINE_PREFIX
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import Config, load_config
from tidelog.config.loading import one_database_config
from tidelog.errors import UsageError
from tidelog.eventlog.log_files import STORE_KEY
from tidelog.kinds.sections import StateUrl
from tidelog.ports import StateStore
from tidelog.results import StateCopy
from tidelog.state.opening import checked_url, open_election, open_state, state_exists
from tidelog.system.processes import unix_ms

COPYING: Final = "copying"
"""Key of a document that marks a store during a copy into it; it is deleted last."""

_OF_ONE_STORE: Final = (COPYING, STORE_KEY)
_HOLDER: Final = "tidelog state copy"
_LEASE_S: Final = 20.0
COPY_PATIENCE_S: Final = 30.0
"""Seconds until a lease expires, in a store that does not report its duration."""


Load = Callable[[Path], Config]


def one_database(path: Path) -> Config:
    """Load a configuration file. Raises ConfigError if it has several databases."""
    return one_database_config(load_config(path))


def copy_state(source: str, target: str, load: Load = one_database) -> StateCopy:
    """Copy all documents of a state store; the source keeps them.

    ``source`` and ``target`` are URLs, or configuration files, read with ``load``, whose state they
    mean. The leases of both stores are kept during the copy; the target's epochs continue above the
    source's.

    Raises:
        UsageError: a capture leads, there is nothing to copy, or the target has a state already.
    """
    origin, destination = _location(source, load), _location(target, load)
    if origin == destination:
        raise UsageError(f"both are {origin}")
    if not state_exists(origin):
        raise UsageError(f"{origin} holds no state")
    with ExitStack() as opened:
        origin_lease = opened.enter_context(_leading(origin, LEASE_NAME, 1))
        destination_lease = opened.enter_context(
            _leading(destination, LEASE_NAME, origin_lease.lease.epoch + 1)
        )
        old = opened.enter_context(closing(open_state(origin)))
        for key in old.keys(PIPELINE_PREFIX):  # the outputs' state is there, too
            name = key.removeprefix(PIPELINE_PREFIX)
            what = f"the pipeline {name}"
            opened.enter_context(_leading(origin, pipeline_lease_name(name), 1, what))
        new = opened.enter_context(closing(open_state(destination)))
        _make_room(new, destination)
        keys = [key for key in old.keys("") if key not in _OF_ONE_STORE]
        copied = 0
        for key in keys:
            document = old.get(key)
            origin_lease.check()
            destination_lease.check()
            if document is not None:
                new.put(key, document.value, 0)
                copied += 1
        missing = set(keys).symmetric_difference(
            key for key in new.keys("") if key not in _OF_ONE_STORE
        )
        if missing:
            raise UsageError(
                f"{origin} was changed during the copy: is a capture running? Copy again"
            )
        new.delete(COPYING)
    return StateCopy(str(origin), str(destination), copied)


def check_whole(state: StateStore) -> None:
    """Raise UsageError if a copy into this store was started but not completed."""
    if state.get(COPYING) is not None:
        raise UsageError(
            "a `tidelog state copy` into this state store is not complete: run it again, or "
            "use the store that it copied from"
        )


def _make_room(state: StateStore, location: StateUrl) -> None:
    """Delete the documents of an incomplete copy. Raises UsageError if there are others."""
    if state.get(COPYING) is None:
        if state.keys(""):
            raise UsageError(f"{location} holds a state already")
        state.put(COPYING, {"since_ms": unix_ms()}, 0)
    for key in state.keys(""):
        if key != COPYING:
            state.delete(key)


@contextmanager
def _leading(
    location: StateUrl, name: str, first_epoch: int, what: str = "a capture"
) -> Iterator[LeaseKeeper]:
    with closing(
        open_election(location, name, _HOLDER, _LEASE_S, first_epoch=first_epoch)
    ) as election:
        lease = acquire_lease(election, COPY_PATIENCE_S, f" with the state at {location}", what)
        keeper = LeaseKeeper(election, lease, _LEASE_S / 4)
        try:
            yield keeper
        finally:
            keeper.release()


def _location(text: str, load: Load) -> StateUrl:
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return load(path).state.location
    try:
        return StateUrl(checked_url(text, Path.cwd()))
    except ValueError as error:
        raise UsageError(f"neither a configuration file nor a state store: {error}") from None
