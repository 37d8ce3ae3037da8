"""Indices of the OpenSearch output: aliases that are searched, the indices behind them, and the
notes in each. For the driver.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.errors import OutputError, TableLeftOutError
from tidelog.outputs.opensearch.client import (
    Cluster,
    ClusterBusyError,
    InvalidRequestError,
    VersionConflictError,
    path,
    reason,
)
from tidelog.outputs.opensearch.documents import (
    DELETED,
    JOIN_SCRIPT,
    META,
    NOTES,
    NOTES_ID,
    REMOVE_SCRIPT,
    ROOT,
    VERSION,
    script_id,
)
from tidelog.outputs.opensearch.writer import Index
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

_FIRST = "-000001"  # as indices that roll over are numbered
_NAME_MAX_BYTES = 255 - len(_FIRST)
_NOT_IN_NAMES = re.compile(r'[\\/*?"<>|,#:\s]')
_REMOVE_TRIES = 5
_NOTE_TRIES, _NOTE_PAUSE_S = 40, 0.25
_POLL_S = Backoff(first=0.05, longest=2.0)
_STILL_S = 300.0  # a task of the cluster without progress for this long is abandoned


class Indices:
    """The indices of one output on one cluster. An index is called by its alias."""

    def __init__(self, cluster: Cluster, output: str) -> None:
        self._cluster = cluster
        self._output = output
        self._behind: dict[str, str] = {}  # alias → index

    def find(self, alias: str) -> bool:
        """Does the alias exist? Raises TableLeftOutError if it is not one of ours."""
        found = self._cluster.request("GET", path("_alias", alias), absent=True)
        if found is None:
            if self._cluster.request("GET", path(alias), absent=True) is not None:
                raise TableLeftOutError(
                    f"output {self._output}: {alias} is an index, it must be an alias: delete it, "
                    "or set `index`"
                )
            return False
        if len(found) != 1:
            raise TableLeftOutError(
                f"output {self._output}: alias {alias} is of {len(found)} indices, it must be "
                "of one"
            )
        self._behind[alias] = next(iter(found))
        return True

    def create(
        self, known: Index, settings: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> None:
        """Create an index and its alias at once; does nothing if another output has just created
        them. Raises TableLeftOutError if the cluster refuses the index.
        """
        body = {
            # Hidden: a search by a pattern finds the alias, and not the index behind it.
            "settings": {"index.hidden": True, **settings},
            "mappings": {"dynamic": False, "properties": properties},
            "aliases": {known.alias: alias_filter(known)},
        }
        try:
            self._cluster.request("PUT", path(known.alias + _FIRST), body)
        except InvalidRequestError as error:
            if not self.find(known.alias):
                raise TableLeftOutError(
                    f"output {self._output}: index {known.alias} can't be created: {error}. "
                    "Check the output's settings and mappings, and the cluster's limits (columns "
                    "of an index, shards of a node)"
                ) from None
        self._behind[known.alias] = known.alias + _FIRST

    def name(self, alias: str) -> str:
        """Return the name of the index behind the alias."""
        return self._behind[alias]

    def columns(self, alias: str) -> dict[str, Any]:
        """Return the properties of the mapping."""
        behind = self._behind[alias]
        answer = self._cluster.request("GET", path(behind, "_mapping"))
        found: dict[str, Any] = answer[behind]["mappings"].get("properties", {})
        return found

    def add(self, alias: str, properties: Mapping[str, Any]) -> None:
        """Add columns to the mapping. Raises TableLeftOutError if it can't have them."""
        body = {"properties": properties}
        try:
            self._cluster.request("PUT", path(self._behind[alias], "_mapping"), body)
        except InvalidRequestError as error:
            raise TableLeftOutError(
                f"output {self._output}: index {self._behind[alias]} can't take columns "
                f"({', '.join(properties)}): {error}. Reindex it with a mapping that fits, or "
                "raise its index.mapping.total_fields.limit"
            ) from None

    def notes(self, alias: str) -> dict[str, Any]:
        """Return the notes of outputs in the index."""
        return self._read_notes(alias)[0]

    def note(
        self, alias: str, changed: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Replace the notes by the result of ``changed``, in one step: pipelines of several sources
        share indices of joined documents.
        """
        for number in range(_NOTE_TRIES):
            try:
                notes, place = self._read_notes(alias)
                wanted = changed(notes)
                if wanted == notes:
                    return wanted
                body = {META: {DELETED: True, NOTES: wanted}}
                where = path(self._behind[alias], "_doc", NOTES_ID)
                self._cluster.request("PUT", where, body, params=place)
                return wanted
            except VersionConflictError:
                continue
            except ClusterBusyError:  # another output has just created the index
                if number + 1 == _NOTE_TRIES:
                    raise
                time.sleep(_NOTE_PAUSE_S)
        raise OutputError(
            f"notes of index {self._behind[alias]} are changed by others all the time"
        )

    def _read_notes(self, alias: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the notes, and the parameters of a request that replaces exactly these."""
        where = path(self._behind[alias], "_doc", NOTES_ID)
        found = self._cluster.request("GET", where, absent=True)
        if found is None:
            self._cluster.request("GET", path(self._behind[alias]))  # raises if there is no index
            return {}, {"op_type": "create"}
        place = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        return found["_source"][META][NOTES], place

    def update_filter(self, known: Index) -> None:
        """Set the alias's filter to that of `alias_filter`. For joined documents the root's table
        does it.
        """
        if known.part is not None and known.part.name:
            return
        action = {"index": self._behind[known.alias], "alias": known.alias, **alias_filter(known)}
        answer = self._cluster.request("POST", "/_aliases", {"actions": [{"add": action}]})
        if not answer.get("acknowledged"):
            raise OutputError(f"alias {known.alias} was not changed in time")

    # ------------------------------------------------------------------ documents

    def count(self, alias: str, query: Mapping[str, Any]) -> int:
        """Return the number of documents, with hidden ones and those just written."""
        behind = path(self._behind[alias])
        self._cluster.request("POST", f"{behind}/_refresh")
        return int(self._cluster.request("POST", f"{behind}/_count", {"query": query})["count"])

    def delete(self, alias: str, query: Mapping[str, Any]) -> None:
        """Start to delete the documents, in the background. A document that changes in that time
        stays.
        """
        behind = path(self._behind[alias])
        self._cluster.request("POST", f"{behind}/_refresh")
        self._cluster.request(
            "POST",
            f"{behind}/_delete_by_query",
            {"query": query},
            params={"conflicts": "proceed", "wait_for_completion": "false", "slices": "auto"},
        )

    def put_scripts(self) -> None:
        for script in (JOIN_SCRIPT, REMOVE_SCRIPT):
            body = {"script": {"lang": "painless", "source": script}}
            self._cluster.request("PUT", path("_scripts", script_id(script)), body)

    def remove_parts(self, known: Index, columns: list[str]) -> None:
        """Remove from all documents the contribution of a table's rows below its floor."""
        assert known.part is not None
        now = unix_ms()
        params = {"p": known.part.name, "f": known.floor, "n": columns, "t": now}
        body: dict[str, Any] = {"script": {"id": script_id(REMOVE_SCRIPT), "params": params}}
        body["query"] = {"bool": {"must_not": {"ids": {"values": [NOTES_ID]}}}}
        behind = path(self._behind[known.alias])
        for _ in range(_REMOVE_TRIES):
            self._cluster.request("POST", f"{behind}/_refresh")
            started = self._cluster.request(
                "POST",
                f"{behind}/_update_by_query",
                body,
                params={
                    "conflicts": "proceed", "slices": "auto", "wait_for_completion": "false"
                },
            )  # fmt: skip
            answer = self._wait_for_task(started["task"])
            # A task that timed out is done in part; if its node forgot it, the result is unknown.
            if answer is not None and not (
                answer["timed_out"] or answer["version_conflicts"] or answer["failures"]
            ):
                return
        raise OutputError(f"documents of {known.alias} changed while rows were removed from them")

    def _wait_for_task(self, task: str) -> dict[str, Any] | None:
        """Wait for a task of the cluster and return its answer. None: it was lost."""
        polls, seen, since = 0, None, time.monotonic()
        while True:
            found = self._cluster.request("GET", path("_tasks", task), absent=True)
            if found is None:
                return None
            if found["completed"]:
                if "error" in found:
                    raise OutputError(f"a task of OpenSearch failed: {reason(found['error'])}")
                answer: dict[str, Any] = found["response"]
                return answer
            status = found["task"].get("status")
            if status != seen:
                seen, since = status, time.monotonic()
            elif time.monotonic() > since + _STILL_S:
                raise OutputError(f"a task of OpenSearch has made no progress for {_STILL_S:.0f} s")
            polls += 1
            time.sleep(_POLL_S.after(polls))


def index_name(text: str) -> str:
    """Return ``text`` by OpenSearch's rules for names."""
    name = _NOT_IN_NAMES.sub("_", text.lower()).lstrip("-_+.")
    return name.encode()[:_NAME_MAX_BYTES].decode(errors="ignore") or "_"


def alias_filter(known: Index) -> dict[str, Any]:
    """Return the alias's filter: no tombstones, nothing below the floor."""
    wanted: dict[str, Any] = {"must_not": [{"term": {f"{META}.{DELETED}": True}}]}
    if known.floor and (known.part is None or not known.part.name):
        member = VERSION if known.part is None else ROOT
        wanted["filter"] = [{"range": {f"{META}.{member}": {"gte": known.floor}}}]
    return {"is_write_index": True, "filter": {"bool": wanted}}
