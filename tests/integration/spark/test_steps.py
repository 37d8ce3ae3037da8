"""Each step on rows of a real server: whole ones, NULLs, unchanged TOAST, deletes and changed keys,
with odd names and names that differ by case alone; for copies (by key) and for streams of changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from tests.integration.event_messages import capturing, wait_for
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.app.pipeline import session
from tidelog.capture.dumps.refetch_queue import KeySets
from tidelog.config import load_config
from tidelog.errors import ConfigError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.spark import folding, transforms
from tidelog.spark.changed_keys import keys_of_frame, rows_to_read_again
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.datasource.source import register
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP
from tidelog.spark.session import exact_session
from tidelog.spark.transforms import Step
from tidelog.state.opening import open_state

pytestmark = [pytest.mark.integration, pytest.mark.spark]

CREATE = """
CREATE TABLE t (
  id int, region text, v int, "V" text, "a.b" text, "sp ace" text, "ti`ck" text, "50%" text,
  doc text, PRIMARY KEY (id, region));
ALTER TABLE t ALTER doc SET STORAGE EXTERNAL
"""
NAMES = ("id", "region", "v", "V", "a.b", "sp ace", "ti`ck", "50%", "doc")
LONG = "l" * 5000

Row = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """What a server logged: rows inserted before ``cut``, changes of them after it."""

    path: str
    schema: TableSchema
    cut: int
    end: int | None = None
    rows: Sequence[tuple[str, Row, frozenset[str]]] = ()
    first: Sequence[Step] = ()  # that gives the columns the names of the suite
    read: dict[str, DataFrame] = field(default_factory=dict)

    def frame(self, spark: Any, *, keyed: bool) -> DataFrame:
        """What an output reads; kept, for it is the same for all steps."""
        shape = "changes" if keyed else "events"
        if shape not in self.read:
            log = EventLog.open(self.path)
            refs = list(log.segments(self.cut, self.end, tables=[str(self.schema.table)]))
            session = exact_session(spark)
            register(session)
            where = (self.path, log.generation, self.schema, refs)
            self.read[shape] = folding.read_planned(session, *where, parts=1, shape=shape).persist()
        return self.read[shape]


@pytest.fixture(scope="module")
def records(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Records:
    url = postgres.create_database("steps_suite")
    postgres.execute(CREATE, "steps_suite")
    whole = f"1, 'V1', 'dot', 'space', 'tick', 'percent', '{LONG}'"
    rows = ", ".join(f"({key}, 'x', {whole})" for key in (1, 2))
    directory: Path = tmp_path_factory.mktemp("steps")
    with capturing(directory, "postgres", url) as config:
        path = str(config.log.path)
        postgres.execute(f"INSERT INTO t VALUES {rows}", "steps_suite")
        postgres.execute("INSERT INTO t VALUES (4, 'x', 4, 'V4')", "steps_suite")
        wait_for(config, 3)
        cut = EventLog.open(path).latest_offset()
        for sql in (
            "UPDATE t SET v = 2 WHERE id = 1",  # doc is not in the log
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 5 WHERE id = 4",
            f"INSERT INTO t VALUES (6, 'x', {whole})",
            "INSERT INTO t VALUES (7, 'x')",
        ):
            postgres.execute(sql, "steps_suite")
        wait_for(config, 8)
    postgres.drop_database("steps_suite")  # with its slot
    log = EventLog.open(path)
    (table,) = [each for each in log.schemas.tables() if each.name == "t"]
    schema = log.schemas.latest(table)
    assert schema is not None
    return Records(path, schema, cut, rows=SOURCE)


def whole(**given: Any) -> Row:
    named = {name: given.get(name) for name in NAMES}
    return {**named, "region": "x"}


FULL = {"V": "V1", "a.b": "dot", "sp ace": "space", "ti`ck": "tick", "50%": "percent"}
SOURCE: list[tuple[str, Row, frozenset[str]]] = [
    ("u", whole(id=1, v=2, **FULL), frozenset({"doc"})),
    ("d", whole(id=2), frozenset()),
    ("d", whole(id=4), frozenset()),
    ("u", whole(id=5, v=4, V="V4"), frozenset()),
    ("u", whole(id=6, v=1, doc=LONG, **FULL), frozenset()),
    ("u", whole(id=7), frozenset()),
]


@dataclass(frozen=True)
class Of:
    """A delivered column: the columns that it is made of, and how. NULL gives NULL."""

    names: tuple[str, ...]
    value: Callable[..., Any] = lambda value: value

    def of(self, row: Row) -> Any:
        given = [row[name] for name in self.names]
        return None if None in given else self.value(*given)


def sha(value: Any) -> str:
    return hashlib.sha256(f"salt{value}".encode()).hexdigest()


def same(*names: str) -> dict[str, Of]:
    return {name: Of((name,)) for name in names}


def enriched(frame: DataFrame) -> DataFrame:
    """Of a user: a column of two others, a renamed one, and one that is left out."""
    size = f.length("doc") + f.col("v")
    return frame.withColumn("size", size).withColumnRenamed("doc", "text").drop("50%")


def case_of_another(frame: DataFrame) -> DataFrame:
    return frame.withColumn("REGION", f.lit("x"))


HERE = "tests.integration.spark.test_steps"
OTHERS = same(*NAMES)
CASES: dict[str, tuple[list[Step], dict[str, Of]]] = {
    "select": (
        [Step("select", ["id", "region", "V", "doc", "ti`ck"])],
        same("id", "region", "V", "doc", "ti`ck"),
    ),
    "drop one of two that differ by case": (
        [Step("drop", ["V", "a.b"])],
        same(*(n for n in NAMES if n not in ("V", "a.b"))),
    ),
    "rename swaps": (
        [Step("rename", {"v": "V", "V": "v"})],
        {**OTHERS, "v": Of(("V",)), "V": Of(("v",))},
    ),
    "rename in a chain": (
        [Step("rename", {"doc": "V", "V": "50%", "50%": "new", "id": "number"})],
        {
            **same("region", "v", "a.b", "sp ace", "ti`ck"),
            "number": Of(("id",)), "V": Of(("doc",)), "50%": Of(("V",)), "new": Of(("50%",)),
        },
    ),
    "cast": (
        [Step("cast", {"v": "string", "V": "binary", "doc": "binary", "id": "bigint"})],
        {
            **OTHERS, "v": Of(("v",), str), "V": Of(("V",), str.encode),
            "doc": Of(("doc",), str.encode),
        },
    ),
    "compute of columns of the same step": (
        [Step("compute", {"c": "left(doc, 3)", "d": "c || '-d'", "e": "v + 1", "n": "V || 'doc'"})],
        {
            **OTHERS,
            "c": Of(("doc",), lambda doc: doc[:3]),
            "d": Of(("doc",), lambda doc: f"{doc[:3]}-d"),
            "e": Of(("v",), lambda v: v + 1),
            "n": Of(("V",), lambda text: f"{text}doc"),
        },
    ),
    "compute in place reads what was before": (
        [Step("compute", {"doc": "upper(V)", "d": "left(doc, 2)", "a.b": "`a.b` || `50%`"})],
        {
            **OTHERS,
            "doc": Of(("V",), str.upper),
            "d": Of(("doc",), lambda doc: doc[:2]),
            "a.b": Of(("a.b", "50%"), lambda one, other: one + other),
        },
    ),
    "compute of all columns": (
        [
            Step("select", ["id", "region", "doc"]),
            Step("compute", {"n": "IF(doc IS NULL, NULL, size(array(struct(*))))"}),
        ],
        {**same("id", "region", "doc"), "n": Of(("id", "doc"), lambda *_: 1)},
    ),
    "steps after one another": (
        [
            Step("compute", {"c": "left(doc, 3)"}), Step("rename", {"c": "doc", "doc": "c"}),
            Step("compute", {"e": "doc || c"}), Step("drop", ["c"]),
        ],
        {
            **OTHERS, "doc": Of(("doc",), lambda doc: doc[:3]),
            "e": Of(("doc",), lambda doc: doc[:3] + doc),
        },
    ),
    "mask": (
        [Step("mask", {"doc": "*", "V": "**", "50%": "%s", "v": "number"})],
        {
            **OTHERS, "doc": Of(("doc",), lambda _: "*"), "V": Of(("V",), lambda _: "**"),
            "50%": Of(("50%",), lambda _: "%s"), "v": Of(("v",), lambda _: "number"),
        },
    ),
    "hash": (
        [Step("hash", ["doc", "V", "region"], salt="salt")],
        {**OTHERS, **{name: Of((name,), sha) for name in ("doc", "V", "region")}},
    ),
    "python": (
        [Step("python", f"{HERE}:enriched")],
        {
            **same(*(n for n in NAMES if n not in ("doc", "50%"))),
            "text": Of(("doc",)),
            "size": Of(("doc", "v"), lambda doc, v: len(doc) + v),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", ["changes", "events"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_gives_each_row_its_values_and_says_what_it_lacks(
    case: str, shape: str, records: Records, spark: Any
) -> None:
    check_case(case, shape, records, spark)


def check_case(case: str, shape: str, records: Records, spark: Any) -> None:
    steps, wanted = CASES[case]
    steps = [*records.first, *steps]
    keyed = shape == "changes"
    frame = records.frame(spark, keyed=keyed)
    result = transforms.apply(frame, steps, records.schema, keyed=keyed)
    rows = sorted((row.asDict() for row in result.collect()), key=_by_key)
    found = [row for row in rows if row[CHANGE_OP] != "d"]
    assert {name for name in result.columns if not name.startswith("_tidelog_")} == set(wanted)
    expected = [
        (
            {name for name, of in wanted.items() if lacking.intersection(of.names)},
            {name: of.of(row) for name, of in wanted.items() if not lacking.intersection(of.names)},
        )
        for op, row, lacking in records.rows
        if op != "d"
    ]
    missing = [set(row[CHANGE_MISSING] or ()) for row in found]
    assert missing == [each for each, _ in expected]
    assert [
        {n: row[n] for n in wanted if n not in lacks}
        for row, lacks in zip(found, missing, strict=True)
    ] == [values for _, values in expected]
    key = [name for name, of in wanted.items() if of.names in (("id",), ("region",))]
    deleted = [{n: wanted[n].of(row) for n in key} for op, row, _ in records.rows if op == "d"]
    assert [{n: row[n] for n in key} for row in rows if row[CHANGE_OP] == "d"] == deleted


SHORT_SQL = """
CREATE TABLE t (
  id int, region varchar(9), v int, VV varchar(9), `a.b` varchar(9), `sp ace` varchar(9),
  `ti``ck` varchar(9), `50%` varchar(9), doc longtext, PRIMARY KEY (id, region))
"""
_REST = frozenset(NAMES) - {"id", "region"}
LACKING: dict[str, dict[int, frozenset[str]]] = {
    "MINIMAL": {1: _REST - {"v"}, 5: _REST, 7: _REST},
    "NOBLOB": {1: frozenset({"doc"}), 5: frozenset({"doc"}), 7: frozenset({"doc"})},
}
SHORT = [
    pytest.param(source, case, shape, marks=() if in_ci else pytest.mark.thorough)
    for source in ("mysql-MINIMAL", "mysql-NOBLOB", "mariadb-MINIMAL", "mariadb-NOBLOB")
    for case in CASES
    for shape in ("changes", "events")
    for in_ci in [(source, shape) == ("mysql-MINIMAL", "changes") and case.startswith("compute")]
]


@pytest.fixture(scope="module")
def short_records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Records:
    """What a server logs with a short row image: all in one transaction, so that no row that is
    read again comes between.
    """
    kind, _, image = request.param.partition("-")
    server: MySqlFamilyServer = request.getfixturevalue(f"{kind}_server")
    url = server.create_database("steps_suite")
    server.execute(SHORT_SQL, "steps_suite")
    whole = f"1, 'V1', 'dot', 'space', 'tick', 'percent', '{LONG}'"
    rows = ", ".join(f"({key}, 'x', {whole})" for key in (1, 2))
    directory: Path = tmp_path_factory.mktemp("steps")
    with capturing(directory, kind, url, "steps_suite.t") as config:
        path = str(config.log.path)
        server.execute(f"INSERT INTO t VALUES {rows}", "steps_suite")
        server.execute("INSERT INTO t (id, region, v, VV) VALUES (4, 'x', 4, 'V4')", "steps_suite")
        wait_for(config, 3)
        cut = EventLog.open(path).latest_offset()
        with server.connect("steps_suite") as session, session.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            for sql in (
                "BEGIN",
                "UPDATE t SET v = 2 WHERE id = 1",
                "DELETE FROM t WHERE id = 2",
                "UPDATE t SET id = 5 WHERE id = 4",
                f"INSERT INTO t VALUES (6, 'x', {whole})",
                "INSERT INTO t (id, region) VALUES (7, 'x')",
                "COMMIT",
            ):
                cursor.execute(sql)
        events = wait_for(config, 8)
    server.drop_database("steps_suite")
    log = EventLog.open(path)
    schema = log.schemas.latest(TableName("steps_suite", "t"))
    assert schema is not None
    told = [(op, row, LACKING[image].get(row["id"], frozenset())) for op, row, _ in SOURCE]
    logged = {event["version"] for event in events if event["op"] in ("c", "u", "d")}
    return Records(path, schema, cut, max(logged) + 1, told, [Step("rename", {"VV": "V"})])


@pytest.mark.parametrize(("short_records", "case", "shape"), SHORT, indirect=["short_records"])
def test_a_step_on_rows_of_a_short_image(
    short_records: Records, case: str, shape: str, spark: Any
) -> None:
    check_case(case, shape, short_records, spark)


def _by_key(row: Row) -> Any:
    return next(row[name] for name in ("id", "number") if name in row)


FILTERS: dict[str, set[int]] = {
    "v > 1": {1, 5},
    "V = 'V1'": {1, 6},
    "doc IS NULL": {1, 5, 7},  # of the first nobody knows
    "`a.b` <> 'doc' AND v < 2": {6},
    "region = 'y'": set(),
}


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_keeps_what_meets_it_or_can_not_be_judged(
    condition: str, records: Records, spark: Any
) -> None:
    kept = FILTERS[condition]
    steps = [Step("filter", condition)]
    copies, events = (
        transforms.apply(records.frame(spark, keyed=k), steps, records.schema, keyed=k).collect()
        for k in (True, False)
    )
    assert {row["id"] for row in copies if row[CHANGE_OP] == "u"} == kept
    assert {row["id"] for row in copies if row[CHANGE_OP] == "d"} == {1, 2, 4, 5, 6, 7} - kept
    assert {row["id"] for row in events if row[CHANGE_OP] != "d"} == kept
    assert {row["id"] for row in events if row[CHANGE_OP] == "d"} == {2, 4}


REFUSED: list[tuple[Step, str]] = [
    (Step("select", ["id", "region", "DOC"]), "no column 'DOC'; there is 'doc': names are exact"),
    (Step("select", ["id", "region", "v", "v"]), "two columns would have the name 'v'"),
    (Step("drop", ["Doc"]), "no column 'Doc'; there is 'doc'"),
    (Step("rename", {"v": "V"}), "two columns would have the name 'V'"),
    (Step("rename", {"v": "w", "V": "w"}), "two columns would have the name 'w'"),
    (Step("rename", {"w": "x"}), "no column 'w'"),
    (Step("rename", {"v": "_tidelog_op"}), "'_tidelog_op' is the name of a column of ours"),
    (Step("compute", {"_tidelog_missing": "NULL"}), "is the name of a column of ours"),
    (Step("compute", {"c": "upper(DOC)"}), "with name `DOC` cannot be resolved"),
    (Step("compute", {"c": "upper("}), "step compute, table public.t"),
    (Step("filter", "Doc = 'x'"), "with name `Doc` cannot be resolved"),
    (Step("mask", {"DOC": "x"}), "no column 'DOC'"),
    (Step("hash", ["A.B"]), "no column 'A.B'; there is 'a.b'"),
    (Step("cast", {"no": "int"}), "no column 'no'"),
    (Step("python", f"{HERE}:case_of_another"), "created a column 'REGION' beside 'region'"),
]
MERGING: list[tuple[list[Step], str]] = [
    ([Step("cast", {"id": "double"})], "a cast from int to double may make one value of several"),
    ([Step("cast", {"id": "boolean"})], "rows would merge"),
    ([Step("cast", {"region": "int"})], "rows would merge"),
    ([Step("cast", {"region": "char(1)"})], "rows would merge"),
    ([Step("cast", {"region": "string collate UTF8_LCASE"})], "rows would merge"),
    ([Step("rename", {"id": "n"}), Step("cast", {"n": "float"})], "rows would merge"),
    ([Step("drop", ["region"])], "take region away"),
    ([Step("select", ["id", "v"])], "take region away"),
    # Another column by the name of the key's.
    ([Step("drop", ["region"]), Step("rename", {"V": "region"})], "take region away"),
    ([Step("rename", {"id": "v", "v": "id"}), Step("mask", {"v": "*"})], "'v' is of the key"),
]


def test_a_step_that_does_not_fit_is_refused_at_the_start(records: Records, spark: Any) -> None:
    origin = EventLog.open(records.path).source
    for keyed in (True, False):
        for step, said in REFUSED:
            with pytest.raises(ConfigError, match=r"table public\.t") as raised:
                transforms.target_table(spark, records.schema, [step], origin, keyed=keyed)
            assert said in str(raised.value), step
            assert raised.value.exit_code == 2
    for steps, said in MERGING:
        with pytest.raises(ConfigError) as raised:
            transforms.target_table(spark, records.schema, steps, origin, keyed=True)
        assert said in str(raised.value), steps
        assert transforms.target_table(spark, records.schema, steps, origin, keyed=False)
    kept = [Step("cast", {"id": "decimal(20,0)", "region": "binary"})]
    target = transforms.target_table(spark, records.schema, kept, origin, keyed=True)
    assert target.key == ("id", "region")


def test_columns_are_known_to_be_unchanged_by_what_they_are_of(
    records: Records, spark: Any
) -> None:
    origin = EventLog.open(records.path).source
    steps = [Step("drop", ["v"]), Step("rename", {"V": "v"}), Step("mask", {"doc": "*"})]
    target = transforms.target_table(spark, records.schema, steps, origin, keyed=True)
    assert target.unchanged["v"].name == "V"
    assert set(target.unchanged) == set(NAMES) - {"V", "doc"}


ASKED_FOR = {
    "v > 1": [("1", "x")],
    "v > 5": [],
    "id > 0 AND doc = 'x'": [],  # nothing of it but the key is told, so it has not changed
    "v > 5 AND doc = 'x'": [("1", "x")],  # what is told may let it in, or out
}


@pytest.mark.parametrize("condition", ASKED_FOR)
def test_rows_that_may_pass_a_filter_by_a_record_that_lacks_columns(
    spark: Any, records: Records, condition: str
) -> None:
    log = EventLog.open(records.path)
    refs = list(log.segments(records.cut, tables=[str(records.schema.table)]))
    text = condition.replace("id ", "key ").replace("v ", "n ")
    steps = [Step("rename", {"id": "key", "v": "n"}), Step("filter", text)]
    read = (spark, log, records.path, records.schema, refs, steps)
    with rows_to_read_again(*read) as rows:
        found = [] if rows is None else list(keys_of_frame(rows, ("id", "region")))
    assert found == ASKED_FOR[condition]


def test_rows_that_may_pass_a_filter_are_asked_for_before_the_batch_is_written(
    spark: Any, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "COMMAND_TIMEOUT_S", 0.0)  # nobody captures
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: 'postgresql://u@h/d'}}\nlog: {{path: '{records.path}'}}\n"
        f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\noutputs:\n- kind: delta\n"
        f"  path: '{tmp_path}/lake'\n  steps: [{{filter: v > 1}}]\n"
    )
    config = load_config(file)
    log = EventLog.open(records.path)
    output = DeltaOutput(spark, records.path, f"{tmp_path}/lake", name=config.outputs[0].name)
    batch = batch_of(log, records.cut, log.latest_offset())
    session.FilteredRows(config, spark, log)(output, batch)
    output.close()
    with closing(open_state(config.state.location)) as state:
        (name,) = state.keys("commands/")
        document = state.get(name)
        assert document is not None
        data = document.value["data"]
        assert (data["tables"], data["missing"]) == (["public.t"], "list")
        assert data["key_columns"] == ["id", "region"]
        assert KeySets(state).slice(data["key_set"], 0, 9) == (("1", "x"),)
