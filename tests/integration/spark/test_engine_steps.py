"""An engine's steps and those of outputs, which Spark does, give the same rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.async_engine.steps import split_transforms
from tidelog.eventlog.reader import EventLog
from tidelog.spark.datasource.executor import events_batch
from tidelog.spark.formats import shapes
from tidelog.spark.sessions.versions import arrow_schema
from tidelog.spark.transforms import Step, apply

pytestmark = [pytest.mark.spark, pytest.mark.integration]
COLUMNS = {"id": "int64", "note": "text", "small": "int16", "yes": "bool", "raw": "bytes"}
STEPS: list[dict[str, Any]] = [
    {"hash": ["note", "small", "yes", "raw"], "salt": "säll"},
    {"rename": {"note": "remark", "id": "number"}},
    {"mask": {"raw": "***"}},
    {"drop": ["yes"]},
    {"select": ["remark", "number", "raw"]},
]


def test_rows_are_those_that_spark_makes(spark: Any, tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "näme", "-7", "t", "raw")
    built.insert(table, "2", None, None, None, None)
    built.update(table, "1", UNCHANGED, "8", "f", UNCHANGED)
    built.flush()
    log = EventLog.open(built.path)
    for count in range(len(STEPS) + 1):
        given = STEPS[:count]
        task = LogTask(built.path, "engine", steps=split_transforms(given)[0])
        task.start(threading.Event())
        events = task.poll(1.0)
        assert events is not None
        [(schema, ours)] = events.runs()

        records = pa.concat_batches([b for ref in log.segments(0) for b in log.batches(ref)])
        shaped = events_batch(records, table, table, arrow_schema(shapes.events(table)))
        frame = spark.createDataFrame(pa.Table.from_batches([shaped]))
        steps = [
            Step(each.action, getattr(each, each.action), salt=each.salt.get_secret_value())
            for each in split_transforms(given)[0]
        ]
        theirs = apply(frame, steps, table, keyed=False).orderBy(shapes.CHANGE_VERSION).collect()
        names = list(schema.column_names)
        assert names == [n for n in theirs[0].asDict() if not n.startswith("_tidelog_")]
        assert [list(row.values()) for row in ours.column("after").to_pylist()] == [
            [bytes(v) if isinstance(v, bytearray) else v for v in (row[n] for n in names)]
            for row in theirs
        ]
        assert [x and sorted(x) for x in ours.column("missing").to_pylist()] == [
            x and sorted(x) for x in (row[shapes.CHANGE_MISSING] for row in theirs)
        ]
