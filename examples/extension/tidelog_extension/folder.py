"""A state store and elections in a directory, under a lock: ``state: {url: "folder:./state"}``.

Simple, for reading: it rewrites one file for each change, and trusts the clocks of its hosts.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tidelog.errors import LeaseLostError, StateConflictError
from tidelog.ext import Document, Lease

T = TypeVar("T")
MARGIN = 0.2  # of a lease, in which its holder acts no more and nobody else begins


class Folder:
    """`tidelog.ext.StateStore`: documents as JSON, by key ``[value, version]``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, key: str) -> Document | None:
        found = self._locked(lambda documents: documents.get(key))
        return None if found is None else Document(*found)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        def change(documents: dict[str, Any]) -> int:
            version: int = documents.get(key, [None, 0])[1]
            if expected_version is not None and version != expected_version:
                raise StateConflictError(f"state document {key!r} has version {version}")
            documents[key] = [json.loads(json.dumps(value)), version + 1]
            return version + 1

        return self._locked(change)

    def delete(self, key: str) -> None:
        self._locked(lambda documents: documents.pop(key, None))

    def keys(self, prefix: str) -> list[str]:
        return self._locked(lambda documents: sorted(k for k in documents if k.startswith(prefix)))

    def close(self) -> None:
        """Nothing is open between calls."""

    def _locked(self, work: Callable[[dict[str, Any]], T]) -> T:
        with (self.path / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.path / "state.json"
            before = file.read_text() if file.exists() else "{}"
            documents = json.loads(before)
            result = work(documents)
            after = json.dumps(documents)
            if after != before:
                fresh = self.path / "state.json.new"
                with fresh.open("w") as written:
                    written.write(after)
                    written.flush()
                    os.fsync(written.fileno())
                fresh.replace(file)
                directory = os.open(self.path, os.O_RDONLY)
                os.fsync(directory)
                os.close(directory)
            return result


class FolderElection:
    """`tidelog.ext.Election`: who leads is a document; its version is the fencing token."""

    def __init__(self, store: Folder, name: str, holder: str, ttl_s: float, first: int) -> None:
        self.store, self.key, self.holder = store, f"election/{name}", holder
        self.ttl_s, self.first = ttl_s, first

    def acquire(self) -> Lease | None:
        found = self.store.get(self.key)
        value = found.value if found else {"epoch": self.first - 1, "until": 0.0}
        if value["until"] > time.time():
            return None
        epoch = max(value["epoch"] + 1, self.first)
        return self._write(epoch, found.version if found else 0)

    def renew(self, lease: Lease) -> Lease:
        found = self.store.get(self.key)
        ours = found is not None and found.value["epoch"] == lease.epoch and found.value["until"]
        renewed = self._write(lease.epoch, found.version) if found and ours else None
        if renewed is None:
            raise LeaseLostError(f"{self.leader() or 'nobody'} took over from {self.holder}")
        return renewed

    def release(self, lease: Lease) -> None:
        found = self.store.get(self.key)
        if found is not None and found.value["epoch"] == lease.epoch:
            self.store.put(self.key, {**found.value, "until": 0.0}, found.version)

    def leader(self) -> str | None:
        found = self.store.get(self.key)
        return found.value["holder"] if found and found.value["until"] > time.time() else None

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, epoch: int, version: int) -> Lease | None:
        begun = time.monotonic()
        value = {"epoch": epoch, "holder": self.holder, "until": time.time() + self.ttl_s}
        try:
            self.store.put(self.key, value, version)
        except StateConflictError:
            return None
        return Lease(self.holder, epoch, begun + self.ttl_s * (1 - MARGIN))


class FolderBackend:
    """`tidelog.ext.StateBackend` of ``folder:PATH``."""

    def normalize_url(self, url: str, base: Path) -> str:
        path = url.removeprefix("folder:")
        if not path:
            raise ValueError("expected folder:PATH")
        return f"folder:{(base / path).resolve()}"

    def path(self, url: str) -> Path:
        return Path(url.removeprefix("folder:"))

    def exists(self, url: str) -> bool:
        return (self.path(url) / "state.json").exists()

    def store(self, url: str) -> Folder:
        return Folder(self.path(url))

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> FolderElection:
        return FolderElection(self.store(url), name, holder, ttl_s, first_epoch)


BACKEND = FolderBackend()
