"""Writes commits: each one file, created only if its number is free (Delta protocol, "Delta Log
Entries").
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.errors import ConflictError, TidelogError
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.delta_log.log_files import FOLDER, commit_name, version_of
from tidelog.outputs.lake.delta_log.table_state import IN_COMMIT_TIMESTAMPS, TableState
from tidelog.system import failpoints
from tidelog.system.version import __version__

ENGINE: Final = f"Tidelog/{__version__}"


class CommitWriter:
    """Writes commits of one table.

    Args:
        store: the table's store.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def commit(
        self,
        state: TableState,
        actions: Sequence[Mapping[str, Any]],
        *,
        operation: str,
        parameters: Mapping[str, str],
        note: str | None,
        blind_append: bool = False,
    ) -> int:
        """Commit the version after that of ``state``, apply it to the state, and return it.

        Args:
            state: the state that ``actions`` are based on.
            actions: as in `tidelog.outputs.lake.delta_log.actions`.
            operation: as DESCRIBE HISTORY shows it.
            parameters: parameters of the operation; values are texts, or JSON texts of other
                values.
            note: ``userMetadata`` of the commit.
            blind_append: whether nothing was read for it, and it only adds rows.

        Raises:
            ConflictError: another writer has taken the number; our commit does not exist.
            TidelogError: the store failed. If it is an OutcomeUnknownError, the commit may still
                happen: refresh the state, and check whether its transaction is there.
        """
        version = state.version + 1
        info = _info(state, actions, operation, parameters, note, blind_append=blind_append)
        lines = [{"commitInfo": info}, *actions]
        data = "".join(
            f"{json.dumps(line, ensure_ascii=False, separators=(',', ':'))}\n" for line in lines
        ).encode()
        name = commit_name(version)
        failpoints.hit("delta.commit.before")
        try:
            tag = self._store.put_if_absent(name, data)
        except TidelogError as error:
            # The answer may be lost, and not the commit.
            found = self._read_after_error(name, error)
            tag = self._store.tag(name) if found == data else None
        if tag is not None and not self._is_next(version):
            self._store.delete([name])
            tag = None
        if tag is None:
            raise ConflictError(
                f"{self._store.path}: another writer committed version {version} first"
            )
        failpoints.hit("delta.commit.after")
        state.apply(version, lines, tag)
        return version

    def _is_next(self, version: int) -> bool:
        """Was the number free because it is the next one, or because it was cleaned up?

        A clean-up keeps the commit of a checkpoint and all after it. So a commit whose predecessor
        is missing is not the newest: its writer was delayed for long.
        """
        if version:
            return self._store.tag(commit_name(version - 1)) is not None
        return all(version_of(name) <= 0 for name in self._store.names(FOLDER))

    def _read_after_error(self, name: str, error: TidelogError) -> bytes:
        """Returns the file's content after an error; raises the error if there is no file or it
        can't be read.
        """
        try:
            found = self._store.read_optional(name)
        except TidelogError:
            found = None
        if found is None:
            raise error
        return found


def _info(
    state: TableState,
    actions: Sequence[Mapping[str, Any]],
    operation: str,
    parameters: Mapping[str, str],
    note: str | None,
    *,
    blind_append: bool,
) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    info: dict[str, Any] = {}
    if _has_exact_times(state, actions):
        now = max(now, state.timestamp_ms + 1)
        info["inCommitTimestamp"] = now
    info |= {"timestamp": now, "operation": operation, "operationParameters": dict(parameters)}
    if state.version >= 0:
        info["readVersion"] = state.version
    info |= {
        "isolationLevel": "Serializable",
        "isBlindAppend": blind_append,
        "engineInfo": ENGINE,
        "txnId": str(uuid.uuid4()),  # no two commits have the same content
    }
    if note is not None:
        info["userMetadata"] = note
    return info


def _has_exact_times(state: TableState, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Does the table have in-commit timestamps, once the commit is done?"""
    configuration = {} if state.metadata is None else state.metadata.configuration
    for action in actions:
        if "metaData" in action:
            configuration = action["metaData"].get("configuration") or {}
    return configuration.get(IN_COMMIT_TIMESTAMPS) == "true"
