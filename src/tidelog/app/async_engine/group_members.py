"""Engines of one name, and which of them has which partitions of the keys; one of them has all keys
where there is one partition.

All is in one document of the state store, changed by compare-and-set: so who was taken for dead can
change nothing any more, however late its change arrives.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from tidelog.app.instances import this_holder
from tidelog.app.overview.engines import GROUPS
from tidelog.errors import ConfigError, LeaseLostError, StateConflictError, StateError
from tidelog.ports import StateStore
from tidelog.system.processes import has_ended, this_process

_BEATS: Final = 5  # in the time of a lease
_DOUBT: Final = 0.7  # of a lease's time after the last beat: it must end before others take over


class GroupMembers:
    """This process's part in the group: a lease on its partitions, kept by a thread. Thread-safe.

    Args:
        open_state: opens the store of the document: from `join` to `leave`.
        name: of the engines.
        lease_s: a member whose beats do not come for so long is taken for dead. One that ended on
            this host is so at once.
    """

    def __init__(self, open_state: Callable[[], StateStore], name: str, lease_s: float) -> None:
        self._open_state = open_state
        self._store: StateStore | None = None
        self._name, self._key, self._lease_s = name, f"{GROUPS}{name}", lease_s
        self.holder = f"{this_holder()}-{secrets.token_hex(4)}"
        self._seen: dict[str, tuple[int, float]] = {}
        self._until = 0.0
        self._lost = False
        self._left = threading.Event()
        self._now: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def join(self, partitions: int, generation: str, start: int) -> None:
        """Become a member. ``start``: where a group without progress begins.

        Raises:
            ConfigError: the others have another number of partitions.
        """
        self._store = self._open_state()
        first = {"partitions": partitions, "generation": generation, "start": start}
        if self._state.get(self._key) is None:
            none: dict[str, Any] = {"members": {}, "owners": {}, "offsets": {}}
            with suppress(StateConflictError):  # another member was faster
                self._state.put(self._key, {**first, **none}, 0)

        def enter(found: dict[str, Any]) -> None:
            self._remove_dead(found)
            if not found["members"] and not found["offsets"]:
                found.update(first)
            found["seen_ms"] = int(time.time() * 1000)
            if found["partitions"] == partitions:
                found["members"][self.holder] = 0
                found["processes"][self.holder] = this_process()

        patience_until = time.monotonic() + self._lease_s * (1 + 2 / _BEATS)
        while True:
            began = time.monotonic()
            self.change(enter, entering=True)
            if self.holder in self._now["members"]:
                break
            # Without progress the number is free once the others are dead.
            if self._now["offsets"] or began > patience_until:
                raise ConfigError(
                    f"engines named {self._name} divide the keys into {self._now['partitions']} "
                    f"partitions, this one into {partitions}: give all of them the same group "
                    "(without one it is 1), or this one another name"
                )
            time.sleep(self._lease_s / _BEATS)
        self._until = began + self._lease_s * _DOUBT
        self._thread = threading.Thread(target=self._keep, name="tidelog-group", daemon=True)
        self._thread.start()

    @property
    def document(self) -> dict[str, Any]:
        """As it was last seen: ``generation``, ``start``, ``members``, ``owners``, ``offsets``."""
        return self._now

    def check(self) -> None:
        """Raises LeaseLostError: others may have our partitions."""
        if self._lost or time.monotonic() > self._until:
            raise LeaseLostError(
                "this engine did not reach the state store in time: others of its name take over; "
                "start it again"
            )

    @property
    def owner(self) -> str | None:
        """Who has the first partition."""
        owner: str | None = self._now["owners"].get("0")
        return owner

    def owned(self) -> list[int]:
        return _owned(self._now, self.holder)

    def target(self) -> list[int]:
        """The partitions to have: as many as others, of those that are free or ours."""
        return _target(self._now, self.holder)

    def rebalance(self) -> None:
        """Take and give back partitions, as `target` has them by then; nothing is under way."""

        def change(found: dict[str, Any]) -> None:
            target = _target(found, self.holder)
            owners = found["owners"]
            for partition in _owned(found, self.holder):
                del owners[str(partition)]
            owners.update({str(partition): self.holder for partition in target})

        self.change(change)

    def change(self, change: Callable[[dict[str, Any]], None], *, entering: bool = False) -> None:
        """Change the document; again if another member was faster.

        Raises:
            LeaseLostError: we are no member any more.
            StateError: the store is away.
        """
        while True:
            found = self._state.get(self._key)
            if found is None or not (entering or self.holder in found.value["members"]):
                self._lost = True
                self.check()
            assert found is not None
            value = deepcopy(found.value)
            change(value)
            try:
                self._state.put(self._key, value, found.version)
            except StateConflictError:
                continue
            self._now = value
            return

    def leave(self) -> None:
        """Give everything back."""
        self._left.set()
        if self._store is None:
            return
        if self._thread is not None:
            self._thread.join()

            def go(found: dict[str, Any]) -> None:
                _remove(found, self.holder)

            with suppress(LeaseLostError, StateError):  # the others take it, or have done so
                self.change(go)
        self._store.close()

    @property
    def _state(self) -> StateStore:
        assert self._store is not None, "join first"
        return self._store

    def _keep(self) -> None:
        while not self._left.wait(self._lease_s / _BEATS) and not self._lost:
            began = time.monotonic()
            try:
                self.change(self._beat)
            except StateError:
                continue  # tried again, until `check` gives up
            except LeaseLostError:
                return
            if began < self._until:  # who was in doubt stays so: it may have been said already
                self._until = began + self._lease_s * _DOUBT

    def _beat(self, found: dict[str, Any]) -> None:
        found["members"][self.holder] += 1
        found["seen_ms"] = int(time.time() * 1000)  # for people
        self._remove_dead(found)

    def _remove_dead(self, found: dict[str, Any]) -> None:
        now, processes = time.monotonic(), found.setdefault("processes", {})
        for holder, beats in list(found["members"].items()):
            seen, since = self._seen.get(holder, (-1, now))
            if seen != beats:
                self._seen[holder] = beats, now
            silent = now - since > self._lease_s
            if holder != self.holder and (silent or has_ended(processes.get(holder, {}))):
                _remove(found, holder)


def _remove(found: dict[str, Any], holder: str) -> None:
    found["members"].pop(holder, None)
    found["processes"].pop(holder, None)
    found["owners"] = {
        partition: one for partition, one in found["owners"].items() if one != holder
    }


def _owned(found: dict[str, Any], holder: str) -> list[int]:
    return sorted(int(partition) for partition, owner in found["owners"].items() if owner == holder)


def _target(found: dict[str, Any], holder: str) -> list[int]:
    members, partitions = sorted(found["members"]), int(found["partitions"])
    owned = _owned(found, holder)
    if holder not in members:
        return owned
    quota = partitions // len(members) + (members.index(holder) < partitions % len(members))
    free = [partition for partition in range(partitions) if str(partition) not in found["owners"]]
    return sorted([*owned, *free][:quota])
