"""The state of a Delta table: read from its log, and kept from one batch to the next.

Delta protocol, "Action Reconciliation".
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidelog.errors import TableLeftOutError, TidelogError
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.delta_log.actions import DataFile, TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.checkpoint_reader import read_checkpoint, unreadable
from tidelog.outputs.lake.delta_log.log_files import (
    FOLDER,
    LAST_CHECKPOINT,
    CheckpointFiles,
    LogListing,
    commit_name,
    parse_actions,
)

IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_TRIES: Final = 3  # of reading a log that others clean up at the same time
_READS: Final = 8  # parallel reads of commits after a checkpoint
_INFOS: Final = 100  # commits whose commitInfo is cached


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
            self._read_new_commits()
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

    def apply(self, version: int, actions: Sequence[Mapping[str, Any]], tag: str | None) -> None:
        """Apply a commit of our own, which need not be read; ``tag``: of its file."""
        self._replay(version, actions)
        if tag is not None:
            self._own[version] = tag

    def check_commits(self) -> None:
        """Check that our commits after the checkpoint are still ours. A commit that reached the
        store late may have replaced an older one than `refresh` checks. Raises TableLeftOutError.
        """
        for version in self._own:
            self._check(version, self._tag(version))

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Returns the commit's ``commitInfo``; None: the commit was removed from the log; empty: it
        has none.
        """
        found = self._infos.get(version)
        if found is None:
            actions = self._commit(version, "commitInfo")
            if actions is None:
                return None
            infos = [dict(action["commitInfo"]) for action in actions]
            found = self._infos[version] = infos[0] if infos else {}
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
        self._own = {}

    def _read_new_commits(self) -> None:
        while (actions := self._commit(self.version + 1)) is not None:
            self._replay(self.version + 1, actions)

    def _tag(self, version: int) -> str | None:
        return self._store.tag(commit_name(version))

    def _check(self, version: int, tag: str | None) -> None:
        """Check our commit by the ``tag`` of its file now."""
        if tag in (self._own[version], None):  # removed: others cleaned the log up
            return
        raise TableLeftOutError(
            f"{self._store.path}: version {version}, which this pipeline committed, was replaced "
            "by another writer's commit, and its rows are lost. A writer without put-if-absent "
            "does that, such as Spark's default log store for s3a: give its session the log store "
            "that docs/outputs/delta.md names. Then move the table away and dump it again, or run "
            "`tidelog verify --repair`."
        )

    def _load(self) -> None:
        """Load from the newest checkpoint that can be read."""
        for attempt in range(_TRIES):
            self._reset()
            found = self._list_log(hinted=attempt == 0)
            try:
                if self._load_from(found):
                    break
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
        found = LogListing.of(self._store.names(FOLDER, after=after))
        if after and not found.checkpoints:
            found = LogListing.of(self._store.names(FOLDER))
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
        with ThreadPoolExecutor(_READS) as pool:
            for version, actions in zip(commits, pool.map(self._commit, commits), strict=True):
                if actions is None:
                    return False
                self._replay(version, actions)
        if newest is not None and not commits:
            self._set_timestamp(self.commit_info(self.version) or {})
        return True

    def _load_checkpoint(self, found: CheckpointFiles) -> None:
        checkpoint = read_checkpoint(self._store, found)
        self._replay(found.version, checkpoint.actions)
        del self._infos[found.version]  # a checkpoint has no commitInfo
        self.files = {file.path: file for file in checkpoint.files}
        self.checkpoint = found

    def _commit(self, version: int, kind: str = "") -> list[dict[str, Any]] | None:
        name = commit_name(version)
        data = self._store.read_optional(name)
        if data is None:
            return None
        try:
            return list(parse_actions(data, kind))
        except ValueError:
            raise unreadable(self._store, name) from None

    def _replay(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        info: dict[str, Any] = {}
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
            elif (body := action.get("commitInfo")) is not None:
                info = dict(body)
        # Last: a commit may remove a file and add it with another deletion vector, in any order.
        for file in added:
            self.files[file.path] = file
        self.version = version
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
            f"{FOLDER}, or move the table away and dump it again."
        )
