"""Members of a group of engines of one name, and which of them has which partitions of the keys.

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

from tidelog.app.roster import this_holder
from tidelog.errors import ConfigError, LeaseLostError, StateConflictError, StateError
from tidelog.ports import StateStore

_BEATS: Final = 5  # in the time of a lease
_DOUBT: Final = 0.7  # of a lease's time after the last beat: it must end before others take over


class GroupMembers:
    """This process's part in the group: a lease on its partitions, kept by a thread. Thread-safe.

    Args:
        open_state: opens the store of the document: from `join` to `leave`.
        name: of the group.
        lease_s: a member whose beats do not come for so long is taken for dead.
    """

    def __init__(self, open_state: Callable[[], StateStore], name: str, lease_s: float) -> None:
        self._open_state = open_state
        self._store: StateStore | None = None
        self._key, self._lease_s = f"engine-group/{name}", lease_s
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
            ConfigError: the group has another number of partitions.
        """
        self._store = self._open_state()
        if self._state.get(self._key) is None:
            first = {"partitions": partitions, "generation": generation, "start": start}
            with suppress(StateConflictError):  # another member was faster
                self._state.put(self._key, {**first, "members": {}, "owners": {}, "offsets": {}}, 0)

        def enter(found: dict[str, Any]) -> None:
            if found["partitions"] != partitions:
                raise ConfigError(
                    f"group: its members divide the keys into {found['partitions']} partitions, "
                    f"this one into {partitions}: give all of them the same number"
                )
            found["members"][self.holder] = 0

        began = time.monotonic()
        self.change(enter, entering=True)
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
                "this member of the group of engines did not reach the state store in time: the "
                "others take over its keys; start it again"
            )

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
        now = time.monotonic()
        members = found["members"]
        members[self.holder] += 1
        for holder, beats in list(members.items()):
            seen, since = self._seen.get(holder, (-1, now))
            if seen != beats:
                self._seen[holder] = beats, now
            elif holder != self.holder and now - since > self._lease_s:
                _remove(found, holder)


def _remove(found: dict[str, Any], holder: str) -> None:
    found["members"].pop(holder, None)
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
