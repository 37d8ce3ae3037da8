"""The engines of one name, and their partitions of the keys; one partition has all keys.

Everything is in one document of the state store, changed by compare-and-set: so a member that was
taken for dead can't change anything, however late its change arrives.
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

_BEATS: Final = 5  # within the duration of a lease
_DOUBT: Final = 0.7  # the share of a lease after which it ends here, before others take over


class GroupMembers:
    """This process's membership in the group: a lease on its partitions, renewed by a thread.

    Thread-safe.

    Args:
        open_state: opens the store of the document, from `join` to `leave`.
        name: the name of the engines.
        lease_s: seconds without a heartbeat after which a member counts as dead; one that ended
            on this host does so at once.
    """

    def __init__(self, open_state: Callable[[], StateStore], name: str, lease_s: float) -> None:
        self._open_state = open_state
        self._store: StateStore | None = None
        self._name, self._key, self._lease_s = name, f"{GROUPS}{name}", lease_s
        self.holder = f"{this_holder()}-{secrets.token_hex(4)}"
        self._last_heartbeats: dict[str, tuple[int, float]] = {}
        self._expires_at = 0.0
        self._lost = False
        self._leaving = threading.Event()
        self._document: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def join(self, partitions: int, generation: str, start: int) -> None:
        """Become a member. ``start``: the first offset of a group without progress.

        Raises:
            ConfigError: the others have another number of partitions.
        """
        self._store = self._open_state()
        first = {"partitions": partitions, "generation": generation, "start": start}
        if self._state.get(self._key) is None:
            none: dict[str, Any] = {"members": {}, "owners": {}, "offsets": {}}
            with suppress(StateConflictError):  # another member was faster
                self._state.put(self._key, {**first, **none}, 0)

        def enter(document: dict[str, Any]) -> None:
            self._remove_dead(document)
            if not document["members"] and not document["offsets"]:
                document.update(first)
            document["seen_ms"] = int(time.time() * 1000)
            if document["partitions"] == partitions:
                document["members"][self.holder] = 0
                document["processes"][self.holder] = this_process()

        deadline = time.monotonic() + self._lease_s * (1 + 2 / _BEATS)
        while True:
            began = time.monotonic()
            self.change(enter, entering=True)
            if self.holder in self._document["members"]:
                break
            # Without progress the number may change once the others are dead.
            if self._document["offsets"] or began > deadline:
                raise ConfigError(
                    f"engines named {self._name} divide the keys into "
                    f"{self._document['partitions']} partitions, this one into {partitions}: give "
                    "all of them the same group "
                    "(without one it is 1), or this one another name"
                )
            time.sleep(self._lease_s / _BEATS)
        self._expires_at = began + self._lease_s * _DOUBT
        self._thread = threading.Thread(target=self._keep, name="tidelog-group", daemon=True)
        self._thread.start()

    @property
    def document(self) -> dict[str, Any]:
        """The last known ``generation``, ``start``, ``members``, ``owners``, ``offsets``."""
        return self._document

    def check(self) -> None:
        """Raise LeaseLostError if others may have our partitions."""
        if self._lost or time.monotonic() > self._expires_at:
            raise LeaseLostError(
                "this engine did not reach the state store in time: others of its name take over; "
                "start it again"
            )

    @property
    def owner(self) -> str | None:
        """The owner of the first partition."""
        owner: str | None = self._document["owners"].get("0")
        return owner

    def owned_partitions(self) -> list[int]:
        return _owned_partitions(self._document, self.holder)

    def target(self) -> list[int]:
        """Return the partitions to own: an equal share of those that are free or ours."""
        return _target_partitions(self._document, self.holder)

    def rebalance(self) -> None:
        """Take and release partitions until `target` is reached; no event may be in progress."""

        def change(document: dict[str, Any]) -> None:
            target = _target_partitions(document, self.holder)
            owners = document["owners"]
            for partition in _owned_partitions(document, self.holder):
                del owners[str(partition)]
            owners.update({str(partition): self.holder for partition in target})

        self.change(change)

    def change(self, change: Callable[[dict[str, Any]], None], *, entering: bool = False) -> None:
        """Change the document; repeat if another member was faster.

        Raises:
            LeaseLostError: we are no member any more.
            StateError: the store failed.
        """
        while True:
            document = self._state.get(self._key)
            if document is None or not (entering or self.holder in document.value["members"]):
                self._lost = True
                self.check()
            assert document is not None
            value = deepcopy(document.value)
            change(value)
            try:
                self._state.put(self._key, value, document.version)
            except StateConflictError:
                continue
            self._document = value
            return

    def leave(self) -> None:
        """Release everything."""
        self._leaving.set()
        if self._store is None:
            return
        if self._thread is not None:
            self._thread.join()

            def go(document: dict[str, Any]) -> None:
                _remove(document, self.holder)

            with suppress(LeaseLostError, StateError):  # the others take it, or have done so
                self.change(go)
        self._store.close()

    @property
    def _state(self) -> StateStore:
        assert self._store is not None, "join first"
        return self._store

    def _keep(self) -> None:
        while not self._leaving.wait(self._lease_s / _BEATS) and not self._lost:
            began = time.monotonic()
            try:
                self.change(self._beat)
            except StateError:
                continue  # retried until `check` raises
            except LeaseLostError:
                return
            if began < self._expires_at:  # once in doubt, always: it may have been reported
                self._expires_at = began + self._lease_s * _DOUBT

    def _beat(self, document: dict[str, Any]) -> None:
        document["members"][self.holder] += 1
        document["seen_ms"] = int(time.time() * 1000)  # for people
        self._remove_dead(document)

    def _remove_dead(self, document: dict[str, Any]) -> None:
        now, processes = time.monotonic(), document.setdefault("processes", {})
        for holder, beats in list(document["members"].items()):
            seen, since = self._last_heartbeats.get(holder, (-1, now))
            if seen != beats:
                self._last_heartbeats[holder] = beats, now
            silent = now - since > self._lease_s
            if holder != self.holder and (silent or has_ended(processes.get(holder, {}))):
                _remove(document, holder)


def _remove(document: dict[str, Any], holder: str) -> None:
    document["members"].pop(holder, None)
    document["processes"].pop(holder, None)
    document["owners"] = {
        partition: one for partition, one in document["owners"].items() if one != holder
    }


def _owned_partitions(document: dict[str, Any], holder: str) -> list[int]:
    return sorted(
        int(partition) for partition, owner in document["owners"].items() if owner == holder
    )


def _target_partitions(document: dict[str, Any], holder: str) -> list[int]:
    members, partitions = sorted(document["members"]), int(document["partitions"])
    owned_partitions = _owned_partitions(document, holder)
    if holder not in members:
        return owned_partitions
    quota = partitions // len(members) + (members.index(holder) < partitions % len(members))
    free = [
        partition for partition in range(partitions) if str(partition) not in document["owners"]
    ]
    return sorted([*owned_partitions, *free][:quota])
