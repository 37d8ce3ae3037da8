"""Indices, aliases and mappings; truncates, purges and replays; what is refused."""

from __future__ import annotations

import base64
import json
import math
import re
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.behaviours.outputs.destinations import Context
from tests.behaviours.outputs.search_index import SETTINGS, ask, found, node, open_output
from tests.integration.opensearch.front import before_the_node
from tests.integration.opensearch.test_opensearch_writer import kept_in, put, up
from tests.support.build_log import BuiltLog
from tests.support.certificates import write_certificates
from tests.support.idle import is_idle
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import load_config
from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.opensearch.client import ClusterOptions
from tidelog.outputs.opensearch.config import KIND, OpenSearchSection
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[3]
COLUMNS = {"id": "int64", "v": "text", "n": "int64"}


def bring(context: Context, pattern: str, **options: Any) -> str:
    """Everything that is in the log, as one batch; why tables are left out."""
    output = open_output(context, pattern, **options)
    log = context.built.log
    try:
        output.prepare(log.generation)
        output.write(batch_of(log, log.head_offset, log.latest_offset()))
        return "; ".join(output.left_out_tables().values())
    finally:
        output.close()


def forget_progress(context: Context) -> None:
    """As if the state store was lost: the next run replays the log."""
    state = SqliteState(f"sqlite:///{context.path / 'state.db'}")
    for key in state.keys("output/"):
        state.delete(key)
    state.close()


def kept_soon(index: str, count: int) -> bool:
    """The cluster deletes in the background."""
    for _ in range(100):
        if kept_in(index) == count:
            return True
        time.sleep(0.1)
    return False


def test_purged_tombstones_let_nothing_come_back(
    context: Context, built: BuiltLog, name: str
) -> None:
    table = built.table("public.t", COLUMNS)
    for key in "123":
        built.insert(table, key, "a", "0")
    built.flush()
    middle = built.log.latest_offset()
    built.delete(table, "2")
    built.flush()
    # Really deleted tombstones are forgotten at once, not after a minute.
    bring(context, name, settings=SETTINGS | {"index.gc_deletes": "0s"})
    assert sorted(found(name)) == ["1", "3"]
    assert kept_in(f"{name}-000001") == 3
    bring(context, name, tombstone_retention_s=-60.0)
    built.insert(table, "4", "b", "0")
    built.flush()
    bring(context, name, tombstone_retention_s=-60.0)
    assert kept_soon(f"{name}-000001", 3)
    for _ in range(8):
        time.sleep(0.2)
        ask("POST", f"/{name}-000001/_refresh")
    # All progress is lost, and the log comes again from its beginning: not as far as the delete.
    forget_progress(context)
    output = open_output(context, name)
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, built.log.head_offset, middle))
    output.close()
    assert sorted(found(name)) == ["1", "3", "4"]


def test_tombstones_younger_than_the_retention_stay(
    context: Context, built: BuiltLog, name: str
) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a", "0")
    built.delete(table, "1")
    built.flush()
    bring(context, name, tombstone_retention_s=3600.0)
    assert found(name) == {}
    assert kept_in(f"{name}-000001") == 1


def test_what_a_truncate_removed_stays_away_from_late_tasks(
    context: Context, built: BuiltLog, name: str
) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a", "0")
    built.insert(table, "2", "b", "0")
    built.flush()
    bring(context, name)
    before = built.log.latest_offset() - 1
    built.truncate(table)
    built.insert(table, "2", "c", "0")
    built.flush()
    bring(context, name)
    assert {key: row["v"] for key, row in found(name).items()} == {"2": "c"}
    assert kept_soon(f"{name}-000001", 1)
    # A task of before the truncate, which knows nothing of it.
    put(name, up(before, 1, "late"), up(before, 3, "late"))
    assert list(found(name)) == ["2"]
    bring(context, name)  # a new run finds the floor in the index
    assert list(found(name)) == ["2"]


def test_a_document_without_a_version_gives_way_to_any_state_of_its_key(
    context: Context, built: BuiltLog, name: str
) -> None:
    """Put in by hand. It gives way to inserts, to deletes, to updates that lack columns, and to a
    dump; one whose key the source does not name is shown until the first complete dump.
    """
    table = built.table("public.t", COLUMNS)
    for key in "126":
        built.insert(table, key, "ours", "0")
    built.flush()
    bring(context, name)
    for key in "23456":
        ask("PUT", f"/{name}/_doc/{key}", {"id": int(key), "v": "theirs", "n": 1, "x": 1})
    built.update(table, "2", "again", "2")
    built.delete(table, "3")
    built.update(table, "6", UNCHANGED, "7")
    built.flush()
    bring(context, name)
    theirs = {"v": "theirs", "n": 1, "x": 1}
    assert shown_by(name) == {
        "1": {"id": 1, "v": "ours", "n": 0},
        "2": {"id": 2, "v": "again", "n": 2},
        "4": {"id": 4, **theirs},
        "5": {"id": 5, **theirs},
        "6": {"id": 6, "v": "theirs", "n": 7},
    }
    first = built.dump_started("public.t").first
    built.chunk(table, [("1", "ours", "0"), ("4", "dumped", "4"), ("6", "ours", "7")])
    built.dump_completed("public.t", first)
    bring(context, name)
    assert shown_by(name) == {
        "1": {"id": 1, "v": "ours", "n": 0},
        "4": {"id": 4, "v": "dumped", "n": 4},
        "6": {"id": 6, "v": "ours", "n": 7},
    }


def shown_by(alias: str) -> dict[str, Any]:
    """Documents by id, without what the output keeps in them, if it keeps anything."""
    ask("POST", f"/{alias}/_refresh")
    hits = ask("POST", f"/{alias}/_search", {"size": 1000})["hits"]["hits"]
    return {
        each["_id"]: {key: v for key, v in each["_source"].items() if key != "_tidelog"}
        for each in hits
    }


def test_searches_by_pattern_see_rows_alone(context: Context, built: BuiltLog, name: str) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a", "0")
    built.insert(table, "2", "b", "0")
    built.delete(table, "2")
    built.flush()
    bring(context, name + "-{name}")
    assert list(found(f"{name}-*")) == ["1"]


def test_values_of_every_type_can_be_searched(context: Context, built: BuiltLog, name: str) -> None:
    table = built.table(
        "public.t",
        {
            "id": "int64", "flag": "bool", "small": "int16", "real": "float64",
            "amount": "decimal(12,2)", "day": "date", "at": "timestamp", "instant": "timestamptz",
            "raw": "binary", "v": "text",
        },
    )  # fmt: skip
    values = ("t", "-7", "1.5", "12.30", "2026-01-31", "2026-01-31 12:00:00.123456")
    built.insert(table, "1", *values, "2026-01-31 12:00:00.5+00", "\\x00ff", 'Grüße "\\\n\x01')
    infinite = ("f", "0", "NaN", None, None, None, None, None, None)
    built.insert(table, "2", *infinite)
    built.flush()
    bring(context, name)
    rows = found(name)
    assert rows["1"] == {
        "id": 1, "flag": True, "small": -7, "real": 1.5, "amount": "12.30", "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.123456", "instant": "2026-01-31T12:00:00.500000Z",
        "raw": "AP8=", "v": 'Grüße "\\\n\x01',
    }  # fmt: skip
    assert rows["2"]["real"] == "NaN"
    for query in (
        {"term": {"flag": True}},
        {"range": {"small": {"lt": 0}}},
        {"range": {"real": {"gt": 1.4, "lt": 1.6}}},
        {"range": {"amount": {"gte": 12.3, "lt": 12.31}}},
        {"term": {"amount.exact": "12.30"}},
        {"range": {"day": {"gte": "2026-01-31", "lt": "2026-02-01"}}},
        {"range": {"at": {"gte": "2026-01-31T12:00:00.123Z", "lt": "2026-01-31T12:00:00.124Z"}}},
        {"range": {"instant": {"gt": "2026-01-31T11:59:00Z", "lt": "2026-01-31T13:01:00+01:00"}}},
        {"match": {"v": "grüße"}},
        {"term": {"v.keyword": 'Grüße "\\\n\x01'}},
    ):
        hits = ask("POST", f"/{name}/_search", {"query": query})["hits"]["hits"]
        assert [each["_id"] for each in hits] == ["1"], query


def test_the_table_of_a_rejected_document_is_left_out(
    context: Context, built: BuiltLog, name: str
) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "10.0.0.1", "0")
    built.insert(table, "2", "no address", "0")
    built.flush()
    told = bring(context, name, mappings={"public.*": {"v": {"type": "ip"}}})
    assert "field v of type ip" in told
    assert "no address" not in told


@pytest.mark.parametrize(
    "columns", [{"id": "int64", "a.b": "text"}, {"id": "int64", "_id": "text"}]
)
def test_columns_that_documents_can_t_have_are_refused(
    context: Context, built: BuiltLog, name: str, columns: dict[str, str]
) -> None:
    table = built.table("public.t", columns)
    built.insert(table, "1", "a")
    built.flush()
    assert "Rename it by a step" in bring(context, name)


def test_two_tables_in_one_index_are_refused(context: Context, built: BuiltLog, name: str) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "a", "0")
    built.insert(built.table("public.u", COLUMNS, relation_id=2), "1", "a", "0")
    built.flush()
    assert "both go to index" in bring(context, name)
    other = Delivery("other", tables=("public.u",))
    assert "holds public.t, not public.u" in bring(context, name, delivery=other)


def test_an_index_in_the_alias_s_place_is_refused(
    context: Context, built: BuiltLog, name: str
) -> None:
    ask("PUT", f"/{name}")
    built.insert(built.table("public.t", COLUMNS), "1", "a", "0")
    built.flush()
    assert "must be an alias" in bring(context, name)


def test_a_column_that_came_back_with_another_type_is_refused(
    context: Context, built: BuiltLog, name: str
) -> None:
    built.insert(built.table("public.t", {"id": "int64", "v": "text"}), "1", "a")
    built.flush()
    bring(context, name)
    state = {"mappings": {"public.t": {"w": {"type": "ip"}, "v": {"type": "ip"}}}}
    built.insert(built.table("public.t", {"id": "int64", "w": "text"}), "2", "10.0.0.1")
    built.flush()
    bring(context, name, **state)
    built.insert(built.table("public.t", {"id": "int64", "w": "text", "v": "bool"}), "3", None, "t")
    built.flush()
    assert "changed their type" in bring(context, name, **state)


@pytest.mark.parametrize("at", ["creation", "change"])
def test_a_table_with_more_columns_than_an_index_may_have_is_left_out_alone(
    context: Context, built: BuiltLog, name: str, at: str
) -> None:
    wide = {"id": "int64"} | {f"c{number}": "text" for number in range(20)}
    narrow = {"id": "int64", "v": "text"}

    def bring_all() -> str:
        built.flush()
        limit = {"index.mapping.total_fields.limit": 20}
        return bring(context, f"{name}-{{name}}", settings=SETTINGS | limit)

    if at == "change":
        built.insert(built.table("public.t", narrow), "1", "a")
        assert bring_all() == ""
    built.insert(built.table("public.t", wide), "2", *"a" * 20)
    built.insert(built.table("public.u", narrow, relation_id=2), "3", "b")
    why = bring_all()
    assert f"index {name}-t" in why
    assert "illegal_argument_exception" in why
    assert found(f"{name}-u") == {"3": {"id": 3, "v": "b"}}
    if at == "change":
        ask("PUT", f"/{name}-t-000001/_settings", {"index.mapping.total_fields.limit": 100})
        built.insert(built.table("public.t", wide), "4", *"a" * 20)
        assert "public.t was left out" in bring_all()


def test_a_cluster_that_is_down_is_tried_again_and_no_password_is_reported(
    context: Context, built: BuiltLog, name: str
) -> None:
    down = ClusterOptions(("http://127.0.0.1:9",), "tidelog", "search-secret")
    assert "search-secret" not in repr(down)
    built.table("public.t", COLUMNS)
    with pytest.raises(OutputError, match=r"127\.0\.0\.1:9 can't be reached") as stopped:
        bring(context, name, cluster=down)
    assert not isinstance(stopped.value, OutputRefusedError)
    assert "search-secret" not in str(stopped.value)


@pytest.mark.parametrize("how", ["user", "key"])
def test_a_cluster_behind_tls_is_reached_with_its_certificate_and_our_credentials(
    context: Context, built: BuiltLog, name: str, tmp_path: Path, how: str
) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "a", "0")
    built.flush()
    write_certificates(tmp_path)
    text = "Basic " + base64.b64encode(b"tidelog:search-secret").decode()
    right: dict[str, Any] = {"user": "tidelog", "password": "search-secret"}
    wrong: dict[str, Any] = {"user": "tidelog", "password": "wrong-secret"}
    if how == "key":
        text = "ApiKey search-secret"
        right, wrong = (
            {"headers": {"Authorization": f"ApiKey {which}-secret"}}
            for which in ("search", "wrong")
        )
    with before_the_node(certificates=tmp_path, authorization=text) as front:
        ca_file = str(tmp_path / "ca.pem")
        strange = ClusterOptions((front.url,), **right)
        with pytest.raises(OutputError, match=r"certificate.*ca_file") as untrusted:
            bring(context, name, cluster=strange)
        with pytest.raises(OutputRefusedError, match="refuses the user: HTTP 401") as refused:
            bring(context, name, cluster=ClusterOptions((front.url,), ca_file=ca_file, **wrong))
        bring(context, name, cluster=ClusterOptions((front.url,), ca_file=ca_file, **right))
    assert found(name) == {"1": {"id": 1, "v": "a", "n": 0}}
    for told in (str(untrusted.value), str(refused.value), repr(strange)):
        assert "-secret" not in told


def test_an_index_moved_behind_its_alias_is_written_to(
    context: Context, built: BuiltLog, name: str
) -> None:
    """As docs/outputs/opensearch.md says it: another mapping without a new dump."""
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a", "0")
    built.insert(table, "2", "b", "0")
    built.delete(table, "2")
    built.flush()
    bring(context, name)
    mapping = ask("GET", f"/{name}-000001/_mapping")[f"{name}-000001"]["mappings"]
    mapping["properties"]["v"] = {"type": "keyword"}
    ask("PUT", f"/{name}-000002", {"settings": {"index.hidden": True}, "mappings": mapping})
    ask("POST", f"/{name}-000001/_refresh")
    ask(
        "POST",
        "/_reindex?refresh=true",
        {
            "source": {"index": f"{name}-000001"},
            "dest": {"index": f"{name}-000002", "version_type": "external"},
        },
    )
    ask(
        "POST",
        "/_aliases",
        {
            "actions": [
                {"remove": {"index": f"{name}-000001", "alias": name}},
                {"add": {"index": f"{name}-000002", "alias": name}},
            ]
        },
    )
    built.update(table, "1", "c", "1")
    built.flush()
    bring(context, name)
    assert found(name) == {"1": {"id": 1, "v": "c", "n": 1}}
    assert kept_in(f"{name}-000002") == 2
    put(name, up(1, 2, "older than its delete"))
    assert list(found(name)) == ["1"]
    hits = ask("POST", f"/{name}/_search", {"query": {"term": {"v": "c"}}})["hits"]["hits"]
    assert len(hits) == 1


def test_arrays_and_structs_become_json() -> None:
    """With values as in columns of their own: points in time, bytes and NaN too."""
    from tidelog.outputs.opensearch.documents import json_texts

    fields = {"a": pa.int64(), "d": pa.date32(), "t": pa.timestamp("us"), "b": pa.binary()}
    kind = pa.list_(pa.struct([*fields.items(), ("f", pa.float64())]))
    at = datetime(2026, 1, 2, 3, 4, 5)
    row = {"a": 1, "d": at.date(), "t": at, "b": b"\xff", "f": math.nan}
    texts = json_texts(pa.array([None, [row], None, []], kind)[1:]).to_pylist()
    found = {"a": 1, "d": "2026-01-02", "t": "2026-01-02T03:04:05.000000", "b": "/w==", "f": "NaN"}
    assert [text and json.loads(text) for text in texts] == [[found], None, []]


def test_the_page_s_configuration_runs(
    spark: Any, built: BuiltLog, tmp_path: Path, name: str
) -> None:
    table = built.table("public.products", {"id": "int64", "description": "text"})
    built.insert(table, "1", "two houses")
    built.flush()
    page = (ROOT / "docs/outputs/opensearch.md").read_text()
    outputs, joined = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        "state: {url: 'sqlite:///state.db'}\n"
        + (outputs + joined)
        .replace("https://search1:9200", node().url)
        .replace("shop-{name}", name + "-{name}")
    )
    config = load_config(tmp_path / "tidelog.yaml", {"SEARCH_PASSWORD": "topsecret"})
    assert "topsecret" not in repr(config)
    run_pipeline(config, once=True, stop_event=threading.Event())
    assert is_idle(config)
    query = {"query": {"match": {"description": "house"}}}  # which needs the configured analyzer
    ask("POST", f"/{name}-products/_refresh")
    hits = ask("POST", f"/{name}-products/_search", query)["hits"]["hits"]
    assert [each["_source"]["description"] for each in hits] == ["two houses"]


def test_check_tells_what_cluster_answers() -> None:
    section = OpenSearchSection(kind="opensearch", urls=[node().url], index="x")
    told = KIND.probe(section)
    assert told is not None
    assert re.fullmatch(r"cluster \S+ answers, (green|yellow)", told)
