"""Indices of the OpenSearch output: aliases that are searched, the indices behind them, and what is
noted in their mappings. For the driver.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.opensearch_client import Cluster, path
from tidelog.outputs.opensearch_documents import DELETED, META, VERSION
from tidelog.outputs.opensearch_joined import REMOVE_SCRIPT, ROOT, SCRIPT, script_id
from tidelog.outputs.opensearch_writer import Index

_FIRST = "-000001"  # as indices that roll over are numbered
_NAME_MAX_BYTES = 255 - len(_FIRST)
_NOT_IN_NAMES = re.compile(r'[\\/*?"<>|,#:\s]')
_REMOVE_TRIES = 5
# How the output marks an index as its own, in the mapping's `_meta`.
_OWN = "tidelog"


class Indices:
    """Of one output on one cluster. An index is called by its alias."""

    def __init__(self, cluster: Cluster, output: str) -> None:
        self._cluster = cluster
        self._output = output
        self._behind: dict[str, str] = {}  # alias → index

    def find(self, alias: str) -> bool:
        """Is the alias there? Raises OutputRefusedError if it is none of ours."""
        found = self._cluster.request("GET", path("_alias", alias), absent=True)
        if found is None:
            if self._cluster.request("GET", path(alias), absent=True) is not None:
                raise OutputRefusedError(
                    f"output {self._output}: {alias} is an index, it must be an alias: delete it, "
                    "or set `index`"
                )
            return False
        if len(found) != 1:
            raise OutputRefusedError(
                f"output {self._output}: alias {alias} stands for {len(found)} indices, it must "
                "for one"
            )
        self._behind[alias] = next(iter(found))
        return True

    def create(
        self,
        known: Index,
        settings: Mapping[str, Any],
        properties: Mapping[str, Any],
        notes: Mapping[str, Any],
    ) -> None:
        """An index, and the alias for it, at once."""
        body = {
            # Hidden: a search by a pattern finds the alias, and not what stands behind it.
            "settings": {"index.hidden": True, **settings},
            "mappings": {"dynamic": False, "_meta": {_OWN: notes}, "properties": properties},
            "aliases": {known.alias: shown(known)},
        }
        self._cluster.request("PUT", path(known.alias + _FIRST), body)
        self._behind[known.alias] = known.alias + _FIRST

    def name(self, alias: str) -> str:
        """Of the index behind the alias."""
        return self._behind[alias]

    def described(self, alias: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What we noted, and the properties of the mapping."""
        mappings = self._mappings(alias)
        return mappings.get("_meta", {}).get(_OWN, {}), mappings.get("properties", {})

    def note(
        self, alias: str, notes: Mapping[str, Any], properties: Mapping[str, Any] | None = None
    ) -> None:
        """Replace what is noted (not what others note there); add columns."""
        meta = self._mappings(alias).get("_meta", {}) | {_OWN: notes}
        body = {"_meta": meta, "properties": properties or {}}
        try:
            self._cluster.request("PUT", path(self._behind[alias], "_mapping"), body)
        except OutputRefusedError as error:
            raise OutputRefusedError(
                f"output {self._output}: index {self._behind[alias]} can't take columns "
                f"({', '.join(properties or {})}): {error}. Reindex it with a mapping that fits"
            ) from None

    def show(self, known: Index) -> None:
        """Let the alias show what `shown` says. Of joined documents the root's index says it."""
        if known.part is not None and known.part.name:
            return
        action = {"index": self._behind[known.alias], "alias": known.alias, **shown(known)}
        answer = self._cluster.request("POST", "/_aliases", {"actions": [{"add": action}]})
        if not answer.get("acknowledged"):
            raise OutputError(f"alias {known.alias} was not changed in time")

    # ------------------------------------------------------------------ documents

    def count(self, alias: str, query: Mapping[str, Any]) -> int:
        """How many documents there are, hidden ones and those just written too."""
        behind = path(self._behind[alias])
        self._cluster.request("POST", f"{behind}/_refresh")
        return int(self._cluster.request("POST", f"{behind}/_count", {"query": query})["count"])

    def delete(self, alias: str, query: Mapping[str, Any]) -> None:
        """In the background, by the cluster. A document that changes meanwhile stays."""
        behind = path(self._behind[alias])
        self._cluster.request("POST", f"{behind}/_refresh")
        self._cluster.request(
            "POST",
            f"{behind}/_delete_by_query",
            {"query": query},
            params={"conflicts": "proceed", "wait_for_completion": "false", "slices": "auto"},
        )

    def put_scripts(self) -> None:
        for script in (SCRIPT, REMOVE_SCRIPT):
            body = {"script": {"lang": "painless", "source": script}}
            self._cluster.request("PUT", path("_scripts", script_id(script)), body)

    def remove_parts(self, known: Index, columns: list[str]) -> None:
        """From all documents, what a table contributed by rows below its floor."""
        assert known.part is not None
        now = int(time.time() * 1000)
        params = {"p": known.part.name, "f": known.floor, "n": columns, "t": now}
        body = {"script": {"id": script_id(REMOVE_SCRIPT), "params": params}}
        behind = path(self._behind[known.alias])
        for _ in range(_REMOVE_TRIES):
            self._cluster.request("POST", f"{behind}/_refresh")
            answer = self._cluster.request(
                "POST",
                f"{behind}/_update_by_query",
                body,
                params={"conflicts": "proceed", "slices": "auto"},
            )
            if not answer["version_conflicts"] and not answer["failures"]:
                return
        raise OutputError(f"documents of {known.alias} changed while rows were removed from them")

    def _mappings(self, alias: str) -> dict[str, Any]:
        behind = self._behind[alias]
        answer = self._cluster.request("GET", path(behind, "_mapping"))
        mappings: dict[str, Any] = answer[behind]["mappings"]
        return mappings


def index_name(text: str) -> str:
    """``text`` as OpenSearch's rules for names want it."""
    name = _NOT_IN_NAMES.sub("_", text.lower()).lstrip("-_+.")
    return name.encode()[:_NAME_MAX_BYTES].decode(errors="ignore") or "_"


def shown(known: Index) -> dict[str, Any]:
    """What the alias shows: no tombstones, nothing below the floor."""
    wanted: dict[str, Any] = {"must_not": [{"term": {f"{META}.{DELETED}": True}}]}
    if known.floor and (known.part is None or not known.part.name):
        of = VERSION if known.part is None else ROOT
        wanted["filter"] = [{"range": {f"{META}.{of}": {"gte": known.floor}}}]
    return {"is_write_index": True, "filter": {"bool": wanted}}
