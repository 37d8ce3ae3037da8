"""The documented example runs as it stands; transforms and dead letters of executor outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.base.outputs import make_output
from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import load_config, parse_config
from tidelog.errors import ConfigError
from tidelog.kinds.adapters import FORMATTERS, OUTPUT_KINDS
from tidelog.outputs.base.writer import Delivery, JsonDeadLetters
from tidelog.outputs.custom.output import PythonOutput
from tidelog.outputs.formatters import formatter
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP
from tidelog.spark.transforms import Step, apply
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
KEPT = "tests.behaviours.outputs.kept_rows:KeptRows"
if str(ROOT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def test_documented_example_runs(
    spark: Any, built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/how-to/your-own-output.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    outputs = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "search.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(tmp_path / "search.py"))
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", "one")
    built.insert(table, "2", "two")
    built.delete(table, "2")
    built.flush()
    (tmp_path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"state: {{url: 'sqlite:///state.db'}}\n{outputs}".replace(
            "./notes.db", str(tmp_path / "notes.db")
        )
    )
    config = load_config(tmp_path / "tidelog.yaml", {})
    try:
        run_pipeline(config, once=True, stop_event=threading.Event())
    finally:
        sys.modules.pop("search", None)
    with sqlite3.connect(tmp_path / "notes.db") as database:
        found = dict(database.execute("SELECT key, row FROM notes").fetchall())
    assert json.loads(found["[1]"]) == {"id": 1, "title": "one", "size": 3}
    assert found["[2]"] is None


def kept(*how: Any, **delivery: Any) -> list[tuple[Any, ...]]:
    """Write the whole log; (destination's deleted, row) by table and key."""
    return kept_and_told(*how, **delivery)[0]


def kept_and_told(
    spark: Any, built: BuiltLog, path: Path, poison: str | None = None, **how: Any
) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Those, and the tables that are left out."""
    state = SqliteState(f"sqlite:///{path / 'state.db'}")
    file = str(path / "kept.db")
    delivery = Delivery("kept", **how)
    output = PythonOutput(
        spark, built.path, state, delivery, KEPT, {"path": file, "poison": poison}
    )
    try:
        output.prepare(built.log.generation)
        output.take_again(lambda _tables: None)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
        told = dict(output.left_out_tables())
    finally:
        output.close()
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT deleted, row FROM kept ORDER BY name, key").fetchall()
    return [(deleted, json.loads(row) if row else None) for deleted, row in rows], told


def test_steps_shape_rows_and_a_row_that_leaves_the_filter_is_deleted(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text", "n": "int32", "card": "text"})
    built.insert(table, "1", "a", "1", "4711")
    built.insert(table, "2", "b", "2", "4712")
    built.flush()
    steps = (
        Step("compute", {"twice": "n * 2", "loud": "upper(v)"}),
        Step("filter", "n < 5"),
        Step("mask", {"card": "***"}),
        Step("rename", {"id": "key", "v": "title"}),
        Step("cast", {"n": "string"}),
        Step("drop", ["card"], ("other.*",)),
        Step("hash", ["title"], salt="s"),
    )
    first = kept(spark, built, tmp_path, steps=steps)
    assert [row["twice"] for _, row in first] == [2, 4]
    assert first[0][1]["key"] == 1
    assert first[0][1]["n"] == "1"
    assert first[0][1]["card"] == "***"
    built.update(table, "1", UNCHANGED, "3", "4711")
    built.update(table, "2", "b", "9", "4712")
    built.flush()
    second = kept(spark, built, tmp_path, steps=steps)
    assert [deleted for deleted, _ in second] == [0, 1]
    # What the log did not tell, and what is computed from it, stays as it was.
    assert second[0][1] == {**first[0][1], "n": "3", "twice": 6}


def test_events_that_a_filter_can_not_judge_stay(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text", "n": "int32"})
    rows = [
        (1, None, 1, "u", [1]),  # v was not logged
        (2, None, 1, "u", [2]),  # n was not logged, v is null
        (3, "in", 1, "u", None),
        (4, "out", 1, "c", None),
        (5, None, None, "d", None),
    ]
    names = f"id bigint, v string, n int, {CHANGE_OP} string, {CHANGE_MISSING} array<smallint>"
    frame = spark.createDataFrame(rows, names)
    left = apply(frame, (Step("filter", "v = 'in'"),), table, keyed=False)
    assert sorted(row["id"] for row in left.collect()) == [1, 3, 5]


def test_a_step_that_takes_the_key_away_is_refused_at_the_start(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", "a")
    built.flush()
    with pytest.raises(ConfigError, match=r"take id away from public\.t"):
        kept(spark, built, tmp_path, steps=(Step("select", ["v"]),))
    with pytest.raises(ConfigError, match=r"table public\.t"):
        kept(spark, built, tmp_path, steps=(Step("compute", {"x": "nowhere + 1"}),))


def test_a_table_that_a_step_does_not_fit_is_left_out_alone_also_at_a_start(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    steps = (Step("drop", ["v"], ("public.t",)),)
    table = built.table("public.t", {"id": "int64", "v": "text"})
    other = built.table("public.u", {"no": "int64"}, ("no",), relation_id=2)
    built.insert(table, "1", "a")
    built.insert(other, "1")
    built.flush()
    assert kept(spark, built, tmp_path, steps=steps) == [(0, {"id": 1}), (0, {"no": 1})]
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "2")
    for number in (2, 3):  # a start that knows the new columns
        built.insert(other, str(number))
        built.flush()
        rows, told = kept_and_told(spark, built, tmp_path, steps=steps)
        assert rows == [(0, {"id": 1}), *((0, {"no": n}) for n in range(1, number + 1))]
        assert "step drop, table public.t" in told["public.t"]
    assert "until a dump" in kept_and_told(spark, built, tmp_path, steps=())[1]["public.t"]
    first = built.dump_started("public.t").first
    built.chunk(table, [("1",), ("2",)])
    built.dump_completed("public.t", first)
    rows, told = kept_and_told(spark, built, tmp_path, steps=())
    assert [row for _, row in rows if "id" in row] == [{"id": 1}, {"id": 2}]
    assert told == {}


def test_a_poison_record_leaves_out_its_table_or_goes_to_the_dead_letters(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64", "v": "text"})
    other = built.table("public.u", {"no": "int64"}, ("no",), relation_id=2)
    built.insert(table, "1", "bad secret")
    built.insert(table, "2", "good")
    built.insert(other, "1")
    built.flush()
    (tmp_path / "first").mkdir()
    rows, told = kept_and_told(spark, built, tmp_path / "first", "bad secret")
    assert (0, {"no": 1}) in rows
    assert "rejects the record of public.t at version 1" in told["public.t"]
    letters = JsonDeadLetters(str(tmp_path / "letters"))
    rows = kept(spark, built, tmp_path, "bad secret", dead_letters=letters)
    assert rows == [(0, {"id": 2, "v": "good"}), (0, {"no": 1})]
    (file,) = (tmp_path / "letters" / "kept").iterdir()
    assert json.loads(file.read_text()) == {
        "output": "kept",
        "table": "public.t",
        "version": 1,
        "reason": "it is poison",
    }


def test_a_kind_and_a_format_of_another_distribution_write(
    spark: Any, built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of examples/extension; tests/unit/test_extensions.py finds them by entry points."""
    example = ROOT / "examples" / "extension"
    monkeypatch.syspath_prepend(str(example))
    archive = shutil.make_archive(str(tmp_path / "extension"), "zip", example, "tidelog_extension")
    spark.sparkContext.addPyFile(archive)
    from tidelog_extension import LINES, Keys, LinesSection

    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", "one")
    built.insert(table, "2", "two")
    built.delete(table, "2")
    built.flush()
    config = parse_config(
        f"source: {{kind: postgres, url: 'postgresql://u@h/d'}}\nlog: {{path: {built.path}}}\n",
        "tidelog.yaml",
        tmp_path,
        {},
    )
    monkeypatch.setattr(OUTPUT_KINDS, "_built_in", {"lines": "tidelog_extension:LINES"})
    monkeypatch.setattr(FORMATTERS, "_built_in", {"keys": "tidelog_extension:Keys"})
    steps: Any = [{"rename": {"v": "title"}}]
    section = LinesSection(kind="lines", path=str(tmp_path / "lines"), steps=steps)
    assert LINES.section is type(section)
    output = make_output(config, section, spark)
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
    output.close()
    (file,) = (tmp_path / "lines").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(row["id"], row["_tidelog_op"]) for row in rows} == {(1, "u"), (2, "d")}
    assert next(row["title"] for row in rows if row["id"] == 1) == "one"
    made = formatter("keys", topic="t-{name}")
    assert isinstance(made, Keys)
