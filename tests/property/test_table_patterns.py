"""Patterns name the same tables wherever they are given (docs/reference/table-patterns.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tests.support.build_log import BuiltLog

import tidelog
from tidelog.config import Config
from tidelog.control.commands import StartDump, TableSelection
from tidelog.errors import ConfigError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.kinds.sections import TablePattern
from tidelog.model.patterns import matches, overlap
from tidelog.model.schema import TableName
from tidelog.spark.datasource import executor, partitions, segment_rows
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.transforms import Step, steps_of

TABLES = [
    "public.a1",
    "public.a[1]",
    "public.?x",
    "public.xx",
    "public.a*",
    "my.s.t",
    "my.s",
    "p.A1",
]
SOURCE = {"kind": "postgres", "url": "postgresql://u@h/d"}
LOG = {"path": "/x/log"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> EventLog:
    built = BuiltLog(tmp_path_factory.mktemp("patterns") / "log")
    for number, name in enumerate(TABLES, 1):
        table = built.table(name, {"id": "int64"}, relation_id=number)
        built.insert(table, str(number))
    odd = built.table("x.y", {"id": "int64"}, relation_id=99)
    built.insert(odd, "99")
    built.flush()
    return built.log


def users(patterns: list[str], log: EventLog) -> Iterator[tuple[str, set[TableName]]]:
    """Who selects by the patterns, and what: by the parsing that users' texts go through."""
    tables = log.schemas.tables()
    config = Config.model_validate(
        {
            "source": SOURCE | {"tables": patterns},
            "log": LOG,
            "outputs": [
                {
                    "kind": "files",
                    "path": "/x",
                    "tables": patterns,
                    "steps": [{"tables": patterns, "drop": ["a"]}],
                }
            ],
        }
    )
    (output,) = config.outputs
    yield "capture", {t for t in tables if matches(config.source.tables, t)}
    yield "output", {t for t in tables if matches(output.tables, t)}
    steps = [Step("drop", ["a"], tuple(each.tables)) for each in output.steps]
    yield "steps", {t for t in tables if steps_of(steps, t)}
    command = StartDump(dump_id="d", tables=tuple(patterns))
    yield "command", set(TableSelection(command.matching).select(command.tables, tables))
    options = SourceOptions.parse({"path": "x", "tables": ",".join(patterns)})
    schemas = partitions.schemas_of(log, options.tables) or {}
    yield "Spark source", {schema.table for schema in schemas.values()}
    rows = segment_rows.rows_of_segments(log, log.head_offset, log.latest_offset(), options.tables)
    yield "stream of outputs", {TableName.parse(row[2]) for row in rows}


texts = st.one_of(
    st.sampled_from(TABLES),
    st.lists(
        st.sampled_from(["public", "my", "s", ".", "*", "a", "[1]", "?", "x"]), min_size=1
    ).map("".join),
)


@given(texts)
@settings(deadline=None)
@example("public.a[1]")
@example("my.s.*")
@example("public.?x")
@example("*")
@example("public.[ax]*")
def test_all_users_of_a_pattern_select_the_same_tables(log: EventLog, pattern: str) -> None:
    try:
        TypeAdapter(TablePattern).validate_python(pattern)
    except ValidationError:
        with pytest.raises(ConfigError, match=r"'tables': expected namespace\.table"):
            SourceOptions.parse({"path": "x", "tables": pattern})
        if ".." not in pattern:  # which looks like a regular expression
            with pytest.raises(UsageError, match=r"expected namespace\.table"):
                StartDump(dump_id="d", tables=(pattern,))
        return
    found = dict(users([pattern], log))
    assert len(found) == 6
    assert all(tables == found["capture"] for tables in found.values()), found
    if pattern in TABLES:
        assert TableName.parse(pattern) in found["capture"]
    assert overlap([pattern], [str(t) for t in found["capture"]]) == bool(found["capture"])


@given(st.sampled_from(["*", "public.*", "*.*", "my.s*"]), texts)
@settings(deadline=None)
@example("*", "public.a[1]")
@example("*.*", "*.t")
def test_no_user_of_patterns_selects_what_one_excludes(
    log: EventLog, pattern: str, other: str
) -> None:
    try:
        TypeAdapter(TablePattern).validate_python(other)
    except ValidationError:
        return
    tables = log.schemas.tables()
    wanted = {t for t in tables if matches([pattern], t) and not matches([other], t)}
    for patterns in ([pattern, f"!{other}"], [f"!{other}", pattern]):
        assert dict(users(patterns, log)) == dict.fromkeys(dict(users(["*"], log)), wanted)


@pytest.mark.parametrize("name", TABLES)
def test_one_table_is_that_table_whatever_characters_its_name_has(log: EventLog, name: str) -> None:
    """An output reads each table so."""
    table = TableName.parse(name)
    options = SourceOptions.parse({"path": "x", "table": name, "shape": "events"})
    schemas = partitions.schemas_of(log, options.tables) or {}
    assert [schema.table for schema in schemas.values()] == [table]
    schema = log.schemas.latest(table)
    assert schema is not None
    plan = ReadPlan(options, schema, shapes.events(schema))
    refs = log.segments(log.head_offset)
    read = executor.events_in_order(log, refs, {name: plan})
    assert [(schema.table, batch.num_rows) for schema, batch in read] == [(table, 1)]


def test_there_is_one_matcher() -> None:
    """No module brings another: neither `fnmatch` nor a function of its own."""
    source = Path(tidelog.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(each.name for each in node.names)}
                assert "fnmatch" not in names, path
            if isinstance(node, ast.FunctionDef) and node.name == "matches":
                assert path.name == "patterns.py", path
