"""The state store of small documents, and the election of a leader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Document:
    """A small JSON document and its version (from 1 up; 0 means absent)."""

    value: Any
    version: int


class StateStore(Protocol):
    """Compare-and-set on small JSON documents. Thread-safe; durable before it returns."""

    def get(self, key: str) -> Document | None: ...

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        """Store the value; return the new version.

        ``expected_version`` 0: only if absent; None: whatever is there. Raises StateConflictError
        if the version differs.
        """
        ...

    def delete(self, key: str) -> None: ...

    def keys(self, prefix: str) -> list[str]:
        """Return the sorted keys that start with ``prefix``."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class FencedStore(StateStore, Protocol):
    """A state store that refuses a leader's late changes by itself."""

    def fenced(self, name: str, epoch: int) -> StateStore:
        """Return a handle for the leader ``name`` of this epoch; it is closed with the store.

        Once the handle of a later epoch has read or changed a document, this handle's changes of it
        raise LeaseLostError, however late they arrive at the store. An object store has no
        conditional delete: there a deletion may arrive late.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership. ``epoch`` grows with every new leader; ``deadline`` is on time.monotonic()."""

    holder: str
    epoch: int
    deadline: float


class Election(Protocol):
    """Elects one leader at a time, with a time limit and a fencing token. Thread-safe."""

    def acquire(self) -> Lease | None:
        """Try once; return a lease, or None while another process has it."""
        ...

    def renew(self, lease: Lease) -> Lease:
        """Extend the lease. Raises LeaseLostError if another process has it by now."""
        ...

    def release(self, lease: Lease) -> None: ...

    def leader(self) -> str | None: ...

    def close(self) -> None: ...


@runtime_checkable
class PolledElection(Election, Protocol):
    """An election whose standbys poll rarely, as each request costs something."""

    @property
    def release_announced(self) -> bool:
        """Whether the holder of the lease that `acquire` found has announced its release."""
        ...

    @property
    def max_wait_s(self) -> float:
        """Seconds that the lease which `acquire` found may still run; 0: it was renewed."""
        ...

    def announce(self, lease: Lease) -> float:
        """Announce the release of the lease; return the seconds until all standbys poll often."""
        ...


class StateBackend(Protocol):
    """The implementation of one scheme of ``state.url``: a state store and its elections."""

    def normalize_url(self, url: str, base: Path) -> str:
        """Return the full URL, with relative paths below ``base``. Does not connect.

        Raises ValueError that says what is expected.
        """
        ...

    def path(self, url: str) -> Path | None:
        """Return the file or directory of the store on this host, for `check`; None: elsewhere."""
        ...

    def exists(self, url: str) -> bool:
        """Return whether the store exists; creates none."""
        ...

    def store(self, url: str) -> StateStore:
        """Return a new handle on the store, which is created if missing. Raises StateError."""
        ...

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> Election:
        """Return an election of ``name`` with epochs from ``first_epoch`` on. Raises StateError."""
        ...


@runtime_checkable
class PaidBackend(StateBackend, Protocol):
    """A backend of which every request costs something: it is polled rarely.

    The leader polls for commands every ``poll_interval_s`` seconds, publishes its status half as
    often, and has a longer lease.
    """

    poll_interval_s: float
