"""The consumers of the event log and the offsets they need: ``consumers/<name>.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from tidelog.errors import ConsumerFileCorruptError, UsageError
from tidelog.eventlog.log_files import from_checksummed_json, to_checksummed_json
from tidelog.eventlog.storage_port import Storage
from tidelog.system.processes import unix_ms

_FOLDER: Final = "consumers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of an output. ``place``: equal for equal places; ``tables``: patterns;
    ``hosts``: digests of its addresses, if it may have several; ``routes``: names of tables there,
    each with the patterns of its tables; ``now``: distinguishes it from other outputs' places only
    while both are configured; ``also``: digests of what it writes to besides tables.
    """

    place: str
    tables: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    routes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    now: str = ""
    also: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        routes = [[name, list(tables)] for name, tables in self.routes]
        document = {"place": self.place, "tables": list(self.tables)}
        more = {"hosts": list(self.hosts), "routes": routes, "now": self.now}
        return {**document, **more, "also": list(self.also)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Destination:
        routes = tuple((name, tuple(tables)) for name, tables in data.get("routes", ()))
        hosts, now = tuple(data.get("hosts", ())), data.get("now", "")
        also = tuple(data.get("also", ()))
        return cls(data["place"], tuple(data["tables"]), hosts, routes, now, also)


@dataclass(frozen=True, slots=True)
class OutputFailure:
    """The error that stopped an output: its kind and message, without values, and since when."""

    kind: str
    message: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class DeliveryStats:
    """Statistics of an output's deliveries.

    Attributes:
        records: number of records that its last batch processed, over all tables.
        batch_s: duration of that batch.
        committed_ms: time of its end; None: there was no batch yet.
        rejected: number of records in its dead letters, over all finished batches.
        rejected_ms: time when the last increase of that number was noticed.
        failure: last failure. It is over if a batch was finished since.
        batches, all_records, all_s: totals of all batches, by any process.
        begun_ms: start of the running batch; only set for one that takes long.
        begun_records: number of records that it processes.
        refused: tables left out because of their names, or with missing rows since, and why.
        keyless: what is done with tables that have no key, where rows are kept by key.
        unregistered: tables that are not in the output's catalog, and why.
    """

    records: int = 0
    batch_s: float = 0.0
    committed_ms: int | None = None
    rejected: int = 0
    rejected_ms: int | None = None
    failure: OutputFailure | None = None
    batches: int = 0
    all_records: int = 0
    all_s: float = 0.0
    begun_ms: int | None = None
    begun_records: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    keyless: Mapping[str, str] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeliveryStats:
        """Read the document; another version may have more fields, or fewer."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        failure = known.pop("failure", None)
        return cls(**known, failure=None if failure is None else OutputFailure(**failure))


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer. ``offset``: the next record it needs; retention keeps that and everything after.

    ``outputs``: of a pipeline, the offset of each output; ``offset`` is the least of them.
    ``destinations``: their destinations. ``stopped``: outputs that can't continue. ``former``:
    destinations of outputs that the pipeline no longer has. ``epoch``: epoch of the pipeline's
    lease at the last update. ``delivered``: delivery statistics of its outputs. ``engine``: whether
    it is an engine in a program.
    """

    name: str
    offset: int
    updated_ms: int
    outputs: Mapping[str, int] = field(default_factory=dict)
    destinations: Mapping[str, Destination] = field(default_factory=dict)
    stopped: Mapping[str, OutputFailure] = field(default_factory=dict)
    former: Mapping[str, Destination] = field(default_factory=dict)
    epoch: int = 0
    delivered: Mapping[str, DeliveryStats] = field(default_factory=dict)
    engine: bool = False


class Consumers:
    """The registered consumers of one event log. Only one process updates each name.

    Args:
        storage: the event log's storage.
        second: the caller's copy of its own consumers' documents. It has their offsets even if the
            log is restored to an earlier state.
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
        stopped: Mapping[str, OutputFailure] | None = None,
        former: Mapping[str, Destination] | None = None,
        epoch: int = 0,
        delivered: Mapping[str, DeliveryStats] | None = None,
        engine: bool = False,
    ) -> None:
        """Register or update ``name``: it has processed everything before ``offset``."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"consumer name {name!r}: use letters, digits, '.', '_' and '-', at most 100"
            )
        data: dict[str, object] = {"offset": offset, "updated_ms": unix_ms()}
        if outputs:
            data["outputs"] = dict(outputs)
        for member, by_output in (("destinations", destinations), ("former", former)):
            if by_output:
                data[member] = {output: each.to_json() for output, each in by_output.items()}
        for member, stats in (("stopped", stopped), ("delivered", delivered)):
            if stats:
                data[member] = {output: asdict(each) for output, each in stats.items()}
        if epoch:
            data["epoch"] = epoch
        if engine:
            data["engine"] = True
        for storage in self._storages():
            storage.replace(f"{_FOLDER}/{name}.json", to_checksummed_json(data))

    def forget(self, name: str) -> None:
        """Remove ``name``: retention no longer waits for it."""
        for storage in self._storages():
            storage.delete(f"{_FOLDER}/{name}.json")

    def find(self, name: str) -> Consumer | None:
        """The consumer of this name; for each output the greater offset of the two documents.
        Raises as `all`.
        """
        consumer = next((each for each in self.all() if each.name == name), None)
        second = None if self._second is None else _read(self._second, f"{_FOLDER}/{name}.json")
        if second is None:
            return consumer
        if consumer is None:  # a user removed it, so that destinations are not compared
            return Consumer(name, second.offset, second.updated_ms, second.outputs)
        further = {
            output: max(consumer.outputs.get(output, 0), second.outputs.get(output, 0))
            for output in consumer.outputs or second.outputs
        }
        return replace(consumer, outputs=further)

    def all(self) -> list[Consumer]:
        """All consumers, sorted by name. Raises ConsumerFileCorruptError for a damaged file:
        retention must not delete what its consumer needs.
        """
        consumers, damaged = self.read()
        for error in damaged.values():
            raise error
        return consumers

    def read(self) -> tuple[list[Consumer], dict[str, ConsumerFileCorruptError]]:
        """All consumers, sorted by name, and the names of those whose files are damaged."""
        consumers, damaged = [], {}
        for path in self._storage.names(_FOLDER):
            if path.endswith(".json"):
                try:
                    consumer = _read(self._storage, path)
                except ConsumerFileCorruptError as error:
                    damaged[_name_of(path)] = error
                else:
                    consumers += [] if consumer is None else [consumer]
        return consumers, damaged

    def _storages(self) -> list[Storage]:
        return [self._storage] if self._second is None else [self._storage, self._second]


def _read(storage: Storage, path: str) -> Consumer | None:
    """The consumer of the document at ``path``; None if there is none."""
    try:
        data = from_checksummed_json(storage.read(path), f"{storage!r} {path}")
        name = _name_of(path)
        destinations, former = (
            {o: Destination.from_json(each) for o, each in data.get(member, {}).items()}
            for member in ("destinations", "former")
        )
        moved = data["offset"], data["updated_ms"], data.get("outputs", {})
        stopped = {o: OutputFailure(**each) for o, each in data.get("stopped", {}).items()}
        epoch = int(data.get("epoch", 0))
        delivered = {
            o: DeliveryStats.from_json(each) for o, each in data.get("delivered", {}).items()
        }
        where = destinations, stopped, former
        return Consumer(name, *moved, *where, epoch, delivered, data.get("engine", False))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConsumerFileCorruptError(
            f"{storage!r} {path} is damaged: the position of {_name_of(path)} is not known, so "
            "retention deletes nothing. Delete the file. A pipeline then continues from the copy "
            "in its checkpoint; an engine begins as if it were new"
        ) from error


def _name_of(path: str) -> str:
    return path.removeprefix(f"{_FOLDER}/").removesuffix(".json")
