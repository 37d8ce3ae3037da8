"""The state of a Delta table: read from its log, kept from one batch to the next, and cleaned up.

Each commit of ours has a digest of the one before it in its ``commitInfo``. So whoever reads both,
as there is no later checkpoint, sees that the first was replaced after the second. If it was
replaced before, the rows come again, as the table's transaction is that of the commit before.

Delta protocol: "File Types", "Checkpoints" and "Checkpoint Schema" (classic, multi-part and
UUID-named ones, with their sidecars), "Action Reconciliation". Removed files and the log are kept
as the table's properties say.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import TableLeftOutError, TidelogError
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile, DeletionVector
from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.features import features_of
from tidelog.system.processes import unix_ms

# Files in ``_delta_log``.

LOG_FOLDER: Final = "_delta_log"
SIDECARS: Final = f"{LOG_FOLDER}/_sidecars"
LAST_CHECKPOINT: Final = f"{LOG_FOLDER}/_last_checkpoint"

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f-]{36}(?=\.))?\.(?:parquet|json)"
)

_EXPIRING: Final = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\..+|\d{20}\.compacted\.json)")


def commit_name(version: int) -> str:
    """Return the name of a commit's file, below the table."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def commit_digest(data: bytes) -> str:
    """Return the digest of a commit's file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def parse_actions(data: bytes, kind: str = "") -> Iterator[dict[str, Any]]:
    """Yield the actions of a file of JSON lines; only those of ``kind`` if given. Raises
    ValueError. Lines end only with a newline: texts may contain other line separators.
    """
    for line in data.decode().split("\n"):
        if kind in line and line.strip():
            action = json.loads(line)
            if not kind or kind in action:
                yield action


def version_of(name: str) -> int:
    """Return the (first) version of a file in ``_delta_log``; -1: it has no version."""
    found = _EXPIRING.fullmatch(name)
    return -1 if found is None else int(found[1])


@dataclass(frozen=True, order=True)
class CheckpointFiles:
    """A checkpoint: names of its files in ``_delta_log``, in order of its parts; ``actions``: how
    many it has, if this process wrote it.
    """

    version: int
    names: tuple[str, ...]
    actions: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LogListing:
    """The content of ``_delta_log``: commits and complete checkpoints, the newest last."""

    commits: list[int] = field(default_factory=list)
    checkpoints: list[CheckpointFiles] = field(default_factory=list)

    @classmethod
    def of(cls, names: Iterable[str]) -> LogListing:
        commits: list[int] = []
        whole: list[CheckpointFiles] = []
        parts: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
        for name in names:
            if found := _COMMIT.fullmatch(name):
                commits.append(int(found[1]))
            elif found := _CHECKPOINT.fullmatch(name):
                version = int(found["version"])
                if found["part"] is None:
                    whole.append(CheckpointFiles(version, (name,)))
                else:
                    parts[version, int(found["parts"])][int(found["part"])] = name
        for (version, count), each in parts.items():
            # Parts appear one by one: without all of them it is not a checkpoint (yet).
            if sorted(each) == list(range(1, count + 1)):
                whole.append(CheckpointFiles(version, tuple(each[n] for n in sorted(each))))
        return cls(sorted(commits), sorted(whole))


# Checkpoints.

_FEW: Final = ("protocol", "metaData", "txn", "domainMetadata", "sidecar")
"""Actions of which a table has few."""
_OF_FILES: Final = (
    "path", "partitionValues", "size", "modificationTime", "stats", "deletionVector", "tags",
    "clusteringProvider",
)  # fmt: skip


@dataclass
class Checkpoint:
    """Actions of a checkpoint, without tombstones.

    Attributes:
        actions: ``protocol``, ``metaData``, ``txn`` and ``domainMetadata``, as in a commit.
        files: the table's files.
        sidecars: names of the files, below the table, with its ``add`` and ``remove`` actions;
            empty: the checkpoint contains them itself.
    """

    actions: list[dict[str, Any]] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    sidecars: list[str] = field(default_factory=list)


def read_checkpoint(store: FileStore, found: CheckpointFiles) -> Checkpoint:
    """Read a checkpoint. Raises TableLeftOutError for one in an unknown format."""
    checkpoint = Checkpoint()
    for name in found.names:
        _read(store, f"{LOG_FOLDER}/{name}", checkpoint)
    for name in checkpoint.sidecars:
        _read(store, name, checkpoint)
    return checkpoint


def read_tombstones(store: FileStore, found: CheckpointFiles) -> list[pa.Array]:
    """Return struct arrays of the ``remove`` actions in the checkpoint, as it has them."""
    arrays = []
    names = [f"{LOG_FOLDER}/{name}" for name in found.names]
    for name in names:  # the list grows by sidecars
        if name.endswith(".json"):
            actions = _lines(store, name)
            removes = [each["remove"] for each in actions if "remove" in each]
            arrays.append(pa.array(removes) if removes else pa.nulls(0))
        else:
            with _open_parquet(store, name) as file:
                arrays.append(_read_kind(file, "remove"))
        names += _sidecars_of(store, name)
    return [array for array in arrays if len(array)]


def _read(store: FileStore, name: str, into: Checkpoint) -> None:
    if name.endswith(".json"):
        for action in _lines(store, name):
            (kind, body), *_ = action.items()
            if kind == "add":
                into.files.append(DataFile.parse(body))
            elif kind in _FEW:
                _take(kind, body, into)
        return
    with _open_parquet(store, name) as file:
        for kind in _FEW:
            for body in _read_kind(file, kind).to_pylist(maps_as_pydicts="strict"):
                _take(kind, _without_nulls(body), into)
        into.files += _files(_read_kind(file, "add", _OF_FILES))


def _take(kind: str, body: dict[str, Any], into: Checkpoint) -> None:
    if kind == "sidecar":
        into.sidecars.append(_sidecar(body))
    else:
        into.actions.append({kind: body})


def _sidecars_of(store: FileStore, name: str) -> list[str]:
    """Return the names of the sidecars of one file of a checkpoint."""
    if name.endswith(".json"):
        found = [each["sidecar"] for each in _lines(store, name) if "sidecar" in each]
    else:
        with _open_parquet(store, name) as file:
            found = _read_kind(file, "sidecar").to_pylist()
    return [_sidecar(each) for each in found]


def _sidecar(body: Mapping[str, Any]) -> str:
    """Return the sidecar's name below the table; it is in one folder, whatever its path."""
    return f"{SIDECARS}/{unquote(body['path']).rpartition('/')[2]}"


def _lines(store: FileStore, name: str) -> list[dict[str, Any]]:
    try:
        return list(parse_actions(store.read(name)))
    except ValueError:
        raise damaged_log_file(store, name) from None


class _open_parquet:  # noqa: N801 - used as a function
    """Opens a Parquet file of the log; turns its errors into TableLeftOutError."""

    def __init__(self, store: FileStore, name: str) -> None:
        self._store, self._name = store, name

    def __enter__(self) -> pq.ParquetFile:
        try:
            source = self._store.open_input(self._name)
            self._file = pq.ParquetFile(source, pre_buffer=True)
        except pa.ArrowInvalid:
            raise damaged_log_file(self._store, self._name) from None
        return self._file

    def __exit__(self, kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._file.close(force=True)
        if isinstance(error, pa.ArrowInvalid):
            raise damaged_log_file(self._store, self._name) from None


def damaged_log_file(store: FileStore, name: str) -> TableLeftOutError:
    """Return the error for a damaged file of the log."""
    return TableLeftOutError(
        f"{store.path}/{name} can't be read: it is damaged. Restore the file, or move the table "
        "away and dump it again."
    )


def _read_kind(file: pq.ParquetFile, kind: str, fields: Sequence[str] = ()) -> pa.Array:
    """Return the actions of a kind: a struct array without NULLs, of ``fields`` if given."""
    schema = file.schema_arrow
    at = schema.get_field_index(kind)
    if at < 0:
        return pa.nulls(0, pa.struct([]))
    wanted = [kind]
    if fields:
        existing = [each.name for each in schema.field(at).type]
        wanted = [f"{kind}.{name}" for name in fields if name in existing]
        if "stats" not in existing and "stats_parsed" in existing:
            wanted.append(f"{kind}.stats_parsed")
    chunks = file.read(columns=wanted).column(kind).chunks
    whole = pa.concat_arrays(chunks) if chunks else pa.nulls(0, schema.field(at).type)
    return whole.filter(whole.is_valid())


def _files(adds: pa.Array) -> Iterator[DataFile]:
    columns = {each.name: adds.field(index) for index, each in enumerate(adds.type)}
    none = pa.nulls(len(adds))
    if "stats" in columns or "stats_parsed" not in columns:
        stats = columns.get("stats", none).to_pylist()
    else:
        parsed = columns["stats_parsed"].to_pylist()
        stats = [None if each is None else stats_text(each) for each in parsed]
    return map(
        DataFile,
        columns.get("path", none).to_pylist(),
        (each or {} for each in _few(columns.get("partitionValues", none))),
        columns.get("size", none).to_pylist(),
        columns.get("modificationTime", none).to_pylist(),
        stats,
        (
            None if each is None else DeletionVector.parse(each)
            for each in _few(columns.get("deletionVector", none))
        ),
        _few(columns.get("tags", none)),
        columns.get("clusteringProvider", none).to_pylist(),
    )


def _few(column: pa.Array) -> list[Any]:
    """Return maps and structs, of which most are NULL or empty: as dictionaries, else None."""
    found: list[Any] = [None] * len(column)
    existing = column.is_valid()
    if pa.types.is_map(column.type):
        existing = pc.greater(pc.fill_null(_map_sizes(column), 0), 0)
    rows = np.flatnonzero(existing.to_numpy(zero_copy_only=False))
    for row, each in zip(
        rows.tolist(), column.take(pa.array(rows)).to_pylist(maps_as_pydicts="strict"), strict=True
    ):
        found[row] = each
    return found


def _map_sizes(column: pa.Array) -> pa.Array:
    entries = pa.ListArray.from_arrays(column.offsets, column.keys)
    return pc.list_value_length(entries)


def stats_text(parsed: Mapping[str, Any]) -> str:
    """Return a file's statistics as the JSON text of a commit, from their columns in a
    checkpoint.
    """
    return json.dumps(
        _without_nulls(parsed), ensure_ascii=False, separators=(",", ":"), default=_json_value
    )


def _json_value(value: Any) -> Any:
    """Converts by protocol, "Per-file Statistics": times in milliseconds, decimals as numbers."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"no statistics of type {type(value).__name__}")


def _without_nulls(value: Any) -> Any:
    """Remove NULL fields: in actions they mean the same as missing ones, except in values
    of maps.
    """
    if isinstance(value, Mapping):
        return {k: _without_nulls(each) for k, each in value.items() if each is not None}
    return value


# The state.

PREVIOUS: Final = "tidelogPrevious"
"""The field of ``commitInfo`` with the digest of the commit before."""
IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_TRIES: Final = 3  # of reading a log that others clean up at the same time
_READS: Final = 8  # parallel reads of commits after a checkpoint
_INFOS: Final = 100  # commits whose commitInfo is cached


def _commit_info(actions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return next((dict(each["commitInfo"]) for each in actions if "commitInfo" in each), {})


class _ReplacedError(Exception):
    """The state's newest commit is not the one that the next commit, one of ours, followed."""


class TableState:
    """A table as of the newest commit that was read. Used by one thread; reads nothing before
    `refresh`.

    Args:
        store: the table's store.

    Attributes:
        version: version of the newest commit; -1: there is no table.
        timestamp_ms: time of that commit, since 1970, UTC.
        protocol: the table's protocol; None: there is no table.
        metadata: the table's metadata; None: there is no table.
        files: the table's files, by path.
        transactions: by application, the version that it has written.
        transaction_times_ms: by application, the time of that, if known.
        domains: by name, the JSON text of their configuration.
        checkpoint: the newest known checkpoint; None: all is from commits.
        removed: ``remove`` objects of the commits after that checkpoint.
        digest: of the newest commit's file; empty: unknown.
        cleaned_on: the day, since 1970, when its log was last cleaned up.
    """

    version: int
    timestamp_ms: int
    protocol: TableProtocol | None
    metadata: TableMetadata | None
    files: dict[str, DataFile]
    transactions: dict[str, int]
    transaction_times_ms: dict[str, int | None]
    domains: dict[str, str]
    checkpoint: CheckpointFiles | None
    removed: list[Mapping[str, Any]]
    digest: str
    _own: dict[int, str]  # tags of our commits after the checkpoint, and of the newest one

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.cleaned_on = -1
        self._infos: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._reset()

    def refresh(self) -> None:
        """Read the new commits.

        Raises:
            TableLeftOutError: another writer replaced a commit of ours; or the log is damaged.
        """
        if self.version >= 0:
            start = self.version
            try:
                self._read_new_commits()
            except _ReplacedError:
                found = self._commit(self.version, "commitInfo")
                if found is not None and found[1] == self.digest:
                    raise self._replaced_error(self.version) from None
                self._load()  # the commit, or the whole table, is another one again
                return
            # After the reads, as logs are cleaned up from the oldest commit: all that was read was
            # after it.
            tag = self._tag(start)
            if self._own:
                newest = max(self._own)
                self._check(newest, tag if newest == start else self._tag(newest))
            if tag is not None:
                return
            # Others removed the log up to a checkpoint, or the whole table.
        self._load()

    def apply(
        self, version: int, actions: Sequence[Mapping[str, Any]], data: bytes, tag: str
    ) -> None:
        """Apply a commit of our own, which need not be read; ``data``, ``tag``: of its file."""
        self._replay(version, actions, commit_digest(data))
        self._own[version] = tag

    def check_commits(self) -> None:
        """Check that our commits after the checkpoint are still ours. A commit that reached the
        store late may have replaced an older one than `refresh` checks. Raises TableLeftOutError.
        """
        for version in self._own:
            self._check(version, self._tag(version))

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return the commit's ``commitInfo``; None: the commit was removed from the log; empty: it
        has none.
        """
        found = self._infos.get(version)
        if found is None:
            commit = self._commit(version, "commitInfo")
            if commit is None:
                return None
            found = self._infos[version] = _commit_info(commit[0])
        return found

    def record_checkpoint(self, checkpoint: CheckpointFiles) -> None:
        """Record that the new checkpoint has the table as it is now."""
        self.checkpoint, self.removed = checkpoint, []
        self._own = dict([*self._own.items()][-1:])

    # ------------------------------------------------------------------

    def _reset(self) -> None:
        self.version, self.timestamp_ms = -1, 0
        self.protocol = self.metadata = None
        self.files, self.domains = {}, {}
        self.transactions, self.transaction_times_ms = {}, {}
        self.checkpoint, self.removed = None, []
        self._infos.clear()
        self.digest = ""
        self._own = {}

    def _read_new_commits(self) -> None:
        while (commit := self._commit(self.version + 1)) is not None:
            self._replay(self.version + 1, *commit)

    def _tag(self, version: int) -> str | None:
        return self._store.tag(commit_name(version))

    def _check(self, version: int, tag: str | None) -> None:
        """Check our commit by the ``tag`` of its file now."""
        if tag in (self._own[version], None):  # removed: others cleaned the log up
            return
        self._reset()  # it has rows that the log does not have
        raise self._replaced_error(version)

    def _replaced_error(self, version: int) -> TableLeftOutError:
        return TableLeftOutError(
            f"{self._store.path}: version {version} was replaced by another writer's commit, and "
            "its rows are lost. A writer without put-if-absent does that, such as Spark's default "
            "log store for s3a: give its session the log store that docs/outputs/delta.md names. "
            "Then move the table away: it is created and dumped again."
        )

    def _load(self) -> None:
        """Load from the newest checkpoint that can be read; up to a commit that was replaced."""
        for attempt in range(_TRIES):
            self._reset()
            found = self._list_log(hinted=attempt == 0)
            try:
                if self._load_from(found):
                    break
            except _ReplacedError:
                raise self._replaced_error(self.version) from None
            except TidelogError:
                # A listed file is missing, since others clean up; or it can't be read at all.
                if attempt == _TRIES - 1:
                    raise
        else:
            raise self._damaged(
                f"commits are missing before version {max(found.commits, default=0)}"
            )
        if self.version >= 0 and (self.protocol is None or self.metadata is None):
            raise self._damaged("it has no protocol or no metadata")

    def _list_log(self, *, hinted: bool) -> LogListing:
        after = ""
        if hinted and (hint := self._store.read_optional(LAST_CHECKPOINT)) is not None:
            try:
                after = f"{int(json.loads(hint)['version']):020d}"
            except (ValueError, KeyError, TypeError):
                after = ""  # only a hint
        found = LogListing.of(self._store.names(LOG_FOLDER, after=after))
        if after and not found.checkpoints:
            found = LogListing.of(self._store.names(LOG_FOLDER))
        return found

    def _load_from(self, found: LogListing) -> bool:
        """Load the listed log. Returns False if the listing has a gap."""
        failed: TableLeftOutError | None = None
        for newest in [*reversed(found.checkpoints), None]:
            start = 0 if newest is None else newest.version + 1
            commits = [version for version in found.commits if version >= start]
            if commits != list(range(start, start + len(commits))):
                continue
            if newest is None and found.checkpoints and not commits:
                continue  # there is a table, but none of its checkpoints can be read
            try:
                return self._replay_from(newest, commits)
            except TableLeftOutError as error:  # another checkpoint may be complete
                failed = failed or error
                self._reset()
        if failed is not None:
            raise failed
        return False

    def _replay_from(self, newest: CheckpointFiles | None, commits: Sequence[int]) -> bool:
        if newest is not None:
            self._load_checkpoint(newest)
            if (commit := self._commit(newest.version, "commitInfo")) is not None:
                actions, self.digest = commit
                self._infos[newest.version] = _commit_info(actions)
            self._set_timestamp(self._infos.get(newest.version, {}))
        with ThreadPoolExecutor(_READS) as pool:
            for version, commit in zip(commits, pool.map(self._commit, commits), strict=True):
                if commit is None:
                    return False
                self._replay(version, *commit)
        return True

    def _load_checkpoint(self, found: CheckpointFiles) -> None:
        checkpoint = read_checkpoint(self._store, found)
        self._replay(found.version, checkpoint.actions, "")
        del self._infos[found.version]  # a checkpoint has no commitInfo
        self.files = {file.path: file for file in checkpoint.files}
        self.checkpoint = found

    def _commit(self, version: int, kind: str = "") -> tuple[list[dict[str, Any]], str] | None:
        """Return a commit's actions, only those of ``kind`` if given, and its digest."""
        name = commit_name(version)
        data = self._store.read_optional(name)
        if data is None:
            return None
        try:
            return list(parse_actions(data, kind)), commit_digest(data)
        except ValueError:
            raise damaged_log_file(self._store, name) from None

    def _replay(self, version: int, actions: Sequence[Mapping[str, Any]], digest: str) -> None:
        info = _commit_info(actions)
        if self.digest and info.get(PREVIOUS, self.digest) != self.digest:
            raise _ReplacedError
        added = []
        for action in actions:
            if (body := action.get("add")) is not None:
                added.append(DataFile.parse(body))
            elif (body := action.get("remove")) is not None:
                self._remove(body)
            elif (body := action.get("txn")) is not None:
                self.transactions[body["appId"]] = int(body["version"])
                self.transaction_times_ms[body["appId"]] = body.get("lastUpdated")
            elif (body := action.get("metaData")) is not None:
                self.metadata = TableMetadata.parse(body)
            elif (body := action.get("protocol")) is not None:
                self.protocol = TableProtocol.parse(body)
            elif (body := action.get("domainMetadata")) is not None:
                if body.get("removed"):
                    self.domains.pop(body["domain"], None)
                else:
                    self.domains[body["domain"]] = body["configuration"]
        # Last: a commit may remove a file and add it with another deletion vector, in any order.
        for file in added:
            self.files[file.path] = file
        self.version, self.digest = version, digest
        self._infos[version] = info
        if len(self._infos) > _INFOS:
            self._infos.popitem(last=False)
        self._set_timestamp(info)

    def _remove(self, body: Mapping[str, Any]) -> None:
        self.removed.append(body)
        alive = self.files.get(body["path"])
        if alive is not None and alive.unique_id == DataFile.parse({"size": 0, **body}).unique_id:
            del self.files[body["path"]]

    def _set_timestamp(self, info: Mapping[str, Any]) -> None:
        configuration = {} if self.metadata is None else self.metadata.configuration
        exact = configuration.get(IN_COMMIT_TIMESTAMPS) == "true"
        self.timestamp_ms = int(
            (info.get("inCommitTimestamp") if exact else None) or info.get("timestamp") or 0
        )

    def _damaged(self, why: str) -> TableLeftOutError:
        return TableLeftOutError(
            f"{self._store.path}: the table's log can't be read: {why}. Restore the files of "
            f"{LOG_FOLDER}, or move the table away and dump it again."
        )


# Retention.

REMOVED_FILES: Final = "delta.deletedFileRetentionDuration"
"""The property with the retention of files that were removed from the table."""

_UNITS_MS: Final = {
    "week": 7 * 24 * 3_600_000.0,
    "day": 24 * 3_600_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}
_PART: Final = re.compile(r"(\d+)\s+([a-z]+?)s?(?:\s+|$)")


def removed_files_ms(configuration: Mapping[str, str]) -> int | None:
    """Return for how long a table keeps removed files, in ms; None: see `duration_ms`."""
    return duration_ms(configuration.get(REMOVED_FILES, "interval 1 week"))


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of an interval in a property of Delta (``interval 30 days``, ``2
    weeks 12 hours``); None: it can't be parsed, so nothing has expired.
    """
    rest = text.strip().lower().removeprefix("interval").strip()
    if not rest:
        return None
    total = 0.0
    while rest:
        found = _PART.match(rest)
        if found is None or found[2] not in _UNITS_MS:
            return None
        total += int(found[1]) * _UNITS_MS[found[2]]
        rest = rest[found.end() :]
    return int(total)


_DAY_MS: Final = 24 * 3_600_000
_RETENTION: Final = "interval 30 days"  # where the table has no delta.logRetentionDuration


def clean_up_log(store: FileStore, state: TableState) -> None:
    """Delete expired commits and checkpoints, by ``delta.logRetentionDuration`` and
    ``delta.enableExpiredLogCleanup``; once a day for each state. Sidecars of these checkpoints go
    with them, unless checkpoints that stay have them, too.

    A commit's time is that of its ``commitInfo``.
    """
    assert state.metadata is not None
    assert state.protocol is not None
    configuration = state.metadata.configuration
    kept_ms = duration_ms(configuration.get("delta.logRetentionDuration", _RETENTION))
    today = unix_ms() // _DAY_MS
    if (
        configuration.get("delta.enableExpiredLogCleanup", "true") != "true"
        or "checkpointProtection" in features_of(state.protocol)
        or kept_ms is None
        or state.cleaned_on == today
    ):
        return
    state.cleaned_on = today
    until_ms = (unix_ms() - kept_ms) // _DAY_MS * _DAY_MS
    names = store.names(LOG_FOLDER)
    found = LogListing.of(names)
    commits = set(found.commits)
    versions = sorted({each.version for each in found.checkpoints if each.version in commits})
    oldest = _newest_before(state, versions, until_ms)
    if oldest is None:
        return
    expired, kept = set[str](), set[str]()
    try:
        for each in found.checkpoints if store.names(SIDECARS) else ():
            of_it = expired if each.version < oldest else kept
            for name in each.names:
                of_it.update(_sidecars_of(store, f"{LOG_FOLDER}/{name}"))
    except TableLeftOutError:  # a damaged checkpoint: what it has is not known
        expired.clear()
    store.delete(expired - kept)  # first: only their checkpoints name them
    store.delete(f"{LOG_FOLDER}/{name}" for name in names if -1 < version_of(name) < oldest)


def _newest_before(state: TableState, versions: list[int], until_ms: int) -> int | None:
    """Return the newest of ``versions``, sorted, whose commit is not newer than ``until_ms``."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        made_ms = _time_of(state, versions[middle])
        if made_ms is not None and made_ms <= until_ms:
            low = middle + 1
        else:
            high = middle
    return versions[low - 1] if low else None


def _time_of(state: TableState, version: int) -> int | None:
    info = state.commit_info(version) or {}
    made_ms = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if made_ms is None else int(made_ms)
