"""What a program of one's own sees of a dump's end: the example of the docs, run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.support.build_log import BuiltLog

from tidelog.ports import OutputBatch
from tidelog.spark import register
from tidelog.spark.log_lines import events

pytestmark = [pytest.mark.spark]

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "dump-a-table.md"


def dumped(built: BuiltLog) -> int:
    """A dump of two tables; the version of the record that ends that of ``public.orders``."""
    versions = []
    for name in ("public.orders", "public.lines"):
        table = built.table(name, {"id": "int64"})
        first = built.dump_started(name, dump_id="d").first
        built.chunk(table, [["1"]])
        versions.append(built.dump_completed(name, first, dump_id="d").first)
    return versions[0]


def test_example_of_the_docs_finds_the_end_of_a_dump(
    spark: Any, built: BuiltLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = dumped(built)
    register(spark)
    [example] = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "def follow" in block
    ]
    names: dict[str, Any] = {}
    exec(example, names)
    query = names["follow"](spark, built.path, str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    said = f"public.orders is complete up to {version + 1}"
    assert capsys.readouterr().out.splitlines() == [said]


def test_output_reports_how_far_it_must_come(built: BuiltLog, lake: Lake) -> None:
    version = dumped(built)
    batches: list[OutputBatch] = []
    output = lake.output()
    write: Callable[[OutputBatch], None] = output.write

    def observed(batch: OutputBatch) -> None:
        batches.append(batch)
        write(batch)

    output.write = observed  # type: ignore[method-assign]
    done = lake.run(output=output)
    completed = {each.table: each for batch in batches for each in batch.completed}
    assert completed["public.orders"].finalized_until == version + 1
    assert done >= completed["public.lines"].finalized_until > version


def test_marks_stand_among_the_changes_if_asked_for(built: BuiltLog) -> None:
    version = dumped(built)
    log = built.log
    end = log.latest_offset()

    def ops(table: str | None, **options: Any) -> list[str]:
        found = list(events(log, built.path, 0, end, table, **options))
        assert [e["version"] for e in found] == sorted(e["version"] for e in found)
        return [event["op"] for event in found]

    assert ops(None) == ["r", "r"]
    assert ops("public.orders", dumps=True) == ["dump", "r", "dump"]
    assert ops(None, dumps=True) == ["dump", "r", "dump"] * 2
    marks = list(events(log, built.path, version, version + 1, None, dumps=True))
    assert [(m["table"], m["dump"]["type"]) for m in marks] == [("public.orders", "dump-completed")]
