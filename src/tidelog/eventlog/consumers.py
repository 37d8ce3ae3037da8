"""Who still needs the event log from which offset: ``consumers/<name>.json``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from tidelog.errors import SegmentCorruptError, UsageError
from tidelog.eventlog.log_files import sealed, unsealed
from tidelog.eventlog.storage.port import Storage

_FOLDER: Final = "consumers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an output writes. ``place``: alike if it is one place; ``tables``: patterns; ``hosts``:
    digests of what it is reached by, if several may be named; ``routes``: names that tables get
    there, each with the patterns of the tables; ``now``: what tells it from other outputs' places
    only while both are configured; ``also``: digests of what it writes to for no table.
    """

    place: str
    tables: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    routes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    now: str = ""
    also: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        routes = [[name, list(tables)] for name, tables in self.routes]
        found = {"place": self.place, "tables": list(self.tables)}
        more = {"hosts": list(self.hosts), "routes": routes, "now": self.now}
        return {**found, **more, "also": list(self.also)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Destination:
        routes = tuple((name, tuple(tables)) for name, tables in data.get("routes", ()))
        hosts, now = tuple(data.get("hosts", ())), data.get("now", "")
        also = tuple(data.get("also", ()))
        return cls(data["place"], tuple(data["tables"]), hosts, routes, now, also)


@dataclass(frozen=True, slots=True)
class Stopped:
    """What stopped an output: an error's kind and message, without values, and when."""

    kind: str
    message: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """How an output's deliveries went.

    Attributes:
        records: that its last batch went through; of all tables.
        batch_s: how long that took.
        committed_ms: when it was done; None: there was no batch yet.
        rejected: records that went to its dead letters, in all batches that were done.
        rejected_ms: when it was seen that there are more of them.
        failure: what failed last. It is over if a batch was done since.
        batches, all_records, all_s: of all batches, by whichever process.
        begun_ms: when the batch began that is under way; told only of one that takes long.
        begun_records: that it goes through.
        refused: tables that are left out for their names, or lack rows since, and why.
    """

    records: int = 0
    batch_s: float = 0.0
    committed_ms: int | None = None
    rejected: int = 0
    rejected_ms: int | None = None
    failure: Stopped | None = None
    batches: int = 0
    all_records: int = 0
    all_s: float = 0.0
    begun_ms: int | None = None
    begun_records: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Delivered:
        """Another version may tell more, or less."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        failure = known.pop("failure", None)
        return cls(**known, failure=None if failure is None else Stopped(**failure))


@dataclass(frozen=True, slots=True)
class Consumer:
    """``offset``: the next record it needs; retention keeps it and everything after.

    ``outputs``: of a pipeline, the same of each of its outputs; ``offset`` is the least of them.
    ``destinations``: where these write. ``stopped``: those of them that can't go on.
    ``former``: where outputs wrote that the pipeline has no more.
    ``epoch``: of the pipeline's lease, under which it was told last. ``delivered``: how deliveries
    to its outputs went. ``engine``: it is an engine in a program.
    """

    name: str
    offset: int
    updated_ms: int
    outputs: Mapping[str, int] = field(default_factory=dict)
    destinations: Mapping[str, Destination] = field(default_factory=dict)
    stopped: Mapping[str, Stopped] = field(default_factory=dict)
    former: Mapping[str, Destination] = field(default_factory=dict)
    epoch: int = 0
    delivered: Mapping[str, Delivered] = field(default_factory=dict)
    engine: bool = False


class Consumers:
    """The registered consumers of one event log. Each name has one process that updates it.

    Args:
        storage: the event log's.
        second: where the caller keeps the documents of its own consumers once more. What it has
            read is known there when the log is put back to an earlier state.
    """

    def __init__(self, storage: Storage, second: Storage | None = None) -> None:
        self._storage = storage
        self._second = second

    def register(
        self,
        name: str,
        offset: int,
        outputs: Mapping[str, int] | None = None,
        destinations: Mapping[str, Destination] | None = None,
        stopped: Mapping[str, Stopped] | None = None,
        former: Mapping[str, Destination] | None = None,
        epoch: int = 0,
        delivered: Mapping[str, Delivered] | None = None,
        engine: bool = False,
    ) -> None:
        """Register ``name``, or move it on: it has processed everything before ``offset``."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"consumer name {name!r}: use letters, digits, '.', '_' and '-', at most 100"
            )
        data: dict[str, object] = {"offset": offset, "updated_ms": time.time_ns() // 1_000_000}
        if outputs:
            data["outputs"] = dict(outputs)
        for member, found in (("destinations", destinations), ("former", former)):
            if found:
                data[member] = {output: each.to_json() for output, each in found.items()}
        for member, told in (("stopped", stopped), ("delivered", delivered)):
            if told:
                data[member] = {output: asdict(each) for output, each in told.items()}
        if epoch:
            data["epoch"] = epoch
        if engine:
            data["engine"] = True
        for storage in self._storages():
            storage.replace(f"{_FOLDER}/{name}.json", sealed(data))

    def forget(self, name: str) -> None:
        """Retention no longer waits for ``name``."""
        for storage in self._storages():
            storage.delete(f"{_FOLDER}/{name}.json")

    def find(self, name: str) -> Consumer | None:
        """The consumer of this name; each output as far as one of the two documents says. Raises as
        `all`.
        """
        found = next((each for each in self.all() if each.name == name), None)
        second = None if self._second is None else _read(self._second, f"{_FOLDER}/{name}.json")
        if second is None:
            return found
        if found is None:  # somebody removed it, so that destinations are not compared
            return Consumer(name, second.offset, second.updated_ms, second.outputs)
        further = {
            output: max(found.outputs.get(output, 0), second.outputs.get(output, 0))
            for output in found.outputs or second.outputs
        }
        return replace(found, outputs=further)

    def all(self) -> list[Consumer]:
        """Sorted by name. Raises SegmentCorruptError for a damaged file: better keep too much."""
        names = self._storage.names(_FOLDER)
        found = (_read(self._storage, name) for name in names if name.endswith(".json"))
        return [each for each in found if each is not None]

    def _storages(self) -> list[Storage]:
        return [self._storage] if self._second is None else [self._storage, self._second]


def _read(storage: Storage, path: str) -> Consumer | None:
    """The document at ``path``; None: there is none."""
    try:
        data = unsealed(storage.read(path))
        name = path.removeprefix(f"{_FOLDER}/").removesuffix(".json")
        destinations, former = (
            {o: Destination.from_json(each) for o, each in data.get(member, {}).items()}
            for member in ("destinations", "former")
        )
        moved = data["offset"], data["updated_ms"], data.get("outputs", {})
        stopped = {o: Stopped(**each) for o, each in data.get("stopped", {}).items()}
        epoch = int(data.get("epoch", 0))
        delivered = {o: Delivered.from_json(each) for o, each in data.get("delivered", {}).items()}
        where = destinations, stopped, former
        return Consumer(name, *moved, *where, epoch, delivered, data.get("engine", False))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorruptError(
            f"{storage!r} {path} is damaged; retention stops until it is registered "
            "again or deleted."
        ) from error
