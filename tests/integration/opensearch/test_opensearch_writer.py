"""What one task does to an index: versions, tombstones, partial rows, what OpenSearch refuses."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.behaviours.outputs.search_index import SETTINGS, ask, found, node
from tests.support.ending_lease import EndingLease

from tidelog.errors import LeaseLostError, OutputError, OutputRefusedError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.opensearch import documents
from tidelog.outputs.opensearch.client import Cluster, ClusterOptions
from tidelog.outputs.opensearch.indices import alias_filter
from tidelog.outputs.opensearch.writer import Index, OpenSearchWriter
from tidelog.ports import Rejection, SourceId, TargetTable, TaskFence, WriteTask

pytestmark = [pytest.mark.spark, pytest.mark.integration]  # of the process that has the node

SCHEMA = TableSchema(
    TableName("public", "t"),
    1,
    (
        Column("id", 20, -1, "int64", "int64", False),
        Column("v", 25, -1, "text", "text"),
        Column("n", 20, -1, "int64", "int64"),
    ),
    ("id",),
    ("id",),
    "d",
    "pgoutput",
    1,
)
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
TABLE = TargetTable(
    SCHEMA.table, "public.t", SCHEMA, COLUMNS, ("id",), SourceId("postgres", "1", "shop", 1)
)


@pytest.fixture
def alias(name: str) -> str:
    make(name)
    return name


def make(name: str, settings: Any = (), mappings: Any = ()) -> None:
    properties = documents.mapping(COLUMNS, TABLE, dict(mappings))
    properties[documents.META] = documents.META_MAPPING
    node()
    ask(
        "PUT",
        f"/{name}-000001",
        {
            "settings": SETTINGS | dict(settings),
            "mappings": {"dynamic": False, "properties": properties},
            "aliases": {name: alias_filter(Index(name))},
        },
    )


def put(
    index: Index | str, *rows: tuple[str, int, int, str | None, int | None, Sequence[str] | None],
    fence: TaskFence | None = None, **how: Any,
) -> list[Rejection]:  # fmt: skip
    """Rows (op, version, id, v, n, missing) by a task of their own."""
    known = Index(index) if isinstance(index, str) else index
    options = ClusterOptions((node().url,))
    writer = OpenSearchWriter(
        options, {"public.t": known}, **{"bulk_bytes": 1 << 20, "timeout_s": 20.0} | how
    )
    writer = pickle.loads(pickle.dumps(writer))
    op, version, key, v, n, missing = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(op),
            pa.array(version, pa.int64()),
            pa.array(key, pa.int64()),
            pa.array(v, pa.string()),
            pa.array(n, pa.int64()),
            pa.array(missing, pa.list_(pa.string())),
        ],
        names=["_tidelog_op", "_tidelog_version", "id", "v", "n", "_tidelog_missing"],
    )
    try:
        writer.open(WriteTask("search", "g", 0, 1000, 0, fence=fence))
        rejections = list(writer.write(TABLE, batch))
        return rejections + list(writer.commit())
    finally:
        writer.close()


def up(version: int, key: int, v: str, n: int = 0) -> Any:
    return ("u", version, key, v, n, None)


def gone(version: int, key: int) -> Any:
    return ("d", version, key, None, None, None)


def kept(alias: str) -> int:
    """How many documents its index really has, but for the one that says what is noted of it."""
    return kept_in(f"{alias}-000001")


def kept_in(index: str) -> int:
    rows = {"bool": {"must_not": {"ids": {"values": [documents.NOTES_ID]}}}}
    ask("POST", f"/{index}/_refresh")
    return int(ask("GET", f"/{index}/_count", {"query": rows})["count"])


def test_opensearch_itself_forgets_the_version_of_a_deletion(name: str) -> None:
    """The hole, so that the next test is known to close one."""
    make(name, {"index.gc_deletes": "0s"})
    index = f"/{name}-000001"
    ask("PUT", f"{index}/_doc/1?version=5&version_type=external", {"id": 1})
    ask("DELETE", f"{index}/_doc/1?version=9&version_type=external")
    for _ in range(50):  # deletions are forgotten by refreshes, by a clock of a second
        time.sleep(0.2)
        ask("POST", f"{index}/_refresh")
        with contextlib.suppress(AssertionError):  # HTTP 409, as long as it is remembered
            ask("PUT", f"{index}/_doc/1?version=5&version_type=external", {"id": 1})
            break
    assert ask("GET", f"{index}/_doc/1")["found"]


def test_a_deleted_row_stays_deleted_after_opensearch_has_forgotten_deletions(name: str) -> None:
    make(name, {"index.gc_deletes": "0s"})
    put(name, up(5, 1, "a"), up(6, 2, "b"))
    put(name, gone(9, 1))
    for _ in range(8):
        time.sleep(0.2)
        ask("POST", f"/{name}-000001/_refresh")
    put(name, up(5, 1, "a"))  # a task of long ago
    assert list(found(name)) == ["2"]
    put(name, up(12, 1, "back"))
    assert found(name)["1"] == {"id": 1, "v": "back", "n": 0}


def test_a_row_written_again_under_its_version_after_a_real_deletion_is_kept(alias: str) -> None:
    """OpenSearch counts the version of what it deletes by query up by one."""
    put(alias, up(100, 1, "old"))
    ask("POST", f"/{alias}-000001/_refresh")
    every = {"query": {"match_all": {}}}
    ask("POST", f"/{alias}-000001/_delete_by_query?refresh=true", every)
    put(alias, up(101, 1, "new"))
    assert found(alias)["1"]["v"] == "new"


def test_an_older_state_never_replaces_a_newer_one(alias: str) -> None:
    put(alias, up(7, 1, "new"))
    put(alias, up(6, 1, "old"), gone(5, 1))
    assert found(alias)["1"]["v"] == "new"


def test_a_partial_row_updates_what_it_tells(alias: str) -> None:
    put(alias, up(5, 1, "long text", 1))
    put(alias, ("u", 8, 1, None, 2, ["v"]))
    assert found(alias)["1"] == {"id": 1, "v": "long text", "n": 2}
    # Its version counts: neither an older whole row nor an older partial one comes after it.
    put(alias, up(7, 1, "older", 7))
    put(alias, ("u", 6, 1, None, 6, ["v"]))
    assert found(alias)["1"] == {"id": 1, "v": "long text", "n": 2}
    put(alias, up(9, 1, "newer", 9))
    assert found(alias)["1"] == {"id": 1, "v": "newer", "n": 9}


def test_a_partial_row_makes_nothing_of_what_is_not_there(alias: str) -> None:
    put(alias, up(5, 2, "a"))
    put(alias, gone(6, 2))
    put(alias, up(5, 3, "below the floor"))
    put(alias, *[("u", 8, key, None, 1, ["v"]) for key in (1, 2)])
    put(Index(alias, floor=7), ("u", 8, 3, None, 1, ["v"]))
    assert list(found(alias)) == ["3"]  # which the alias's own filter does not hide here
    assert found(alias)["3"]["n"] == 0
    assert kept(alias) == 2


def test_a_partial_row_whose_document_can_t_be_read_now_is_not_lost(name: str) -> None:
    index, rule = f"/{name}-000001", "index.routing.allocation.require._name"
    make(name, {rule: "nobody", "index.write.wait_for_active_shards": "0"})
    partial = ("u", 9, 1, None, 4, ["v"])
    with pytest.raises(OutputError, match=rf"read documents of {name} .*no_shard") as stopped:
        put(name, partial)  # its shard is nowhere
    assert not isinstance(stopped.value, OutputRefusedError)
    ask("PUT", f"{index}/_settings", {rule: None})
    ask("GET", f"/_cluster/health{index}?wait_for_status=green&timeout=30s")
    put(name, up(5, 1, "a"))
    put(name, partial)
    assert found(name)["1"] == {"id": 1, "v": "a", "n": 4}


def test_a_partial_row_without_its_alias_stops() -> None:
    with pytest.raises(OutputRefusedError, match=r"documents of nowhere .*index_not_found"):
        put("nowhere", ("u", 9, 1, None, 4, ["v"]))


def test_a_row_of_before_a_purge_is_not_inserted(alias: str) -> None:
    put(alias, up(5, 2, "a"))
    purged = Index(alias, purged_below=10)
    put(purged, up(7, 1, "deleted and purged"), up(8, 2, "b"), up(12, 3, "new"))
    rows = found(alias)
    assert {key: row["v"] for key, row in rows.items()} == {"2": "b", "3": "new"}


def test_what_is_rejected_is_reported_without_its_value(name: str) -> None:
    make(name, mappings={"v": {"type": "ip"}})
    rejections = put(name, up(5, 1, "10.0.0.1"), up(6, 2, "secret"), up(7, 3, "10.0.0.3"))
    assert rejections == [Rejection("public.t", 6, "mapper_parsing_exception: field v of type ip")]
    assert list(found(name)) == ["1", "3"]


def test_a_document_larger_than_a_request_may_be_is_rejected_alone(alias: str) -> None:
    huge = "x" * (101 << 20)  # http.max_content_length is 100 MB
    rejections = put(alias, up(5, 1, "a"), up(6, 2, huge), up(7, 3, "b"), bulk_bytes=64 << 20)
    assert rejections == [Rejection("public.t", 6, "the document is too large (HTTP 413)")]
    assert list(found(alias)) == ["1", "3"]


def test_where_there_is_no_room_it_waits(alias: str) -> None:
    """The disk's flood stage is answered with 429, item by item."""
    block = {"index.blocks.read_only_allow_delete": True}
    ask("PUT", f"/{alias}-000001/_settings", block)
    freed: list[bool] = []

    def free() -> None:
        ask("PUT", f"/{alias}-000001/_settings", {"index.blocks.read_only_allow_delete": None})
        freed.append(True)

    timer = threading.Timer(1.0, free)
    timer.start()
    put(alias, up(5, 1, "a"))
    assert freed
    assert list(found(alias)) == ["1"]
    ask("PUT", f"/{alias}-000001/_settings", block)
    full = rf"no room .*: index {alias}-000001 takes no writes because a disk .*flood_stage"
    with pytest.raises(OutputError, match=full) as stopped:
        put(alias, up(6, 1, "b"), timeout_s=0.5)
    assert not isinstance(stopped.value, OutputRefusedError)
    free()


def test_an_index_closed_to_writes_is_tried_again(alias: str) -> None:
    ask("PUT", f"/{alias}-000001/_settings", {"index.blocks.write": True})
    blocked = rf"cluster_block_exception: index {alias}-000001 .* somebody set index.blocks.write"
    with pytest.raises(OutputError, match=blocked) as stopped:
        put(alias, up(5, 1, "a"))
    assert not isinstance(stopped.value, OutputRefusedError)
    ask("PUT", f"/{alias}-000001/_settings", {"index.blocks.write": None})


def test_a_request_to_a_read_only_index_is_tried_again(alias: str) -> None:
    """Its answer is one of rights, HTTP 403, but nobody's are missing."""
    ask("PUT", f"/{alias}-000001/_settings", {"index.blocks.read_only": True})
    with pytest.raises(OutputError, match=r"somebody set index\.blocks\.read_only\.") as stopped:
        Cluster(ClusterOptions((node().url,))).request(
            "PUT", f"/{alias}/_mapping", b'{"properties": {"w": {"type": "long"}}}'
        )
    assert not isinstance(stopped.value, OutputRefusedError)
    ask("PUT", f"/{alias}-000001/_settings", {"index.blocks.read_only": None})


def test_without_its_alias_nothing_is_written() -> None:
    with pytest.raises(OutputRefusedError, match="index_not_found"):
        put("nowhere", up(5, 1, "a"))
    assert ask("GET", "/nowhere") is None


def test_nothing_is_sent_once_the_lease_has_ended(alias: str) -> None:
    """A driver that was frozen wakes up, and its tasks with it."""
    rows = [up(n, n, "x" * 1000) for n in range(1, 41)]
    with pytest.raises(LeaseLostError):
        put(alias, *rows, fence=EndingLease(1), bulk_bytes=4000)
    assert 0 < kept(alias) < 40
