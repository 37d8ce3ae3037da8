"""What users say of a place in the log, and the offset that it is; no Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.unit.spark.dumped import EPOCH, dump, moments

from tidelog.errors import ConfigError, OffsetGoneError
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.model.schema import TableSchema
from tidelog.spark.datasource import options as positions
from tidelog.spark.datasource.options import SourceOptions


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


def bounds(built: BuiltLog, **given: Any) -> tuple[int, int]:
    texts = {name: str(value) for name, value in given.items()}
    options = SourceOptions.parse({"path": built.path, "table": "public.t", **texts})
    log = built.log
    return (
        positions.start_of(log, options.starting, options.tables),
        positions.end_of(log, options.ending),
    )


def versions(built: BuiltLog, **given: Any) -> list[int]:
    start, end = bounds(built, **given)
    found = [version for version, _ in moments(built)]
    return [found.index(version) + 1 for version in found if start <= version < end]


def test_places_bound_what_is_read(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    for row in range(1, 5):
        built.insert(table, str(row))
        if row == 2:
            built.flush()
    built.flush()
    (_, _), (second, at_second), (third, at_third), _ = moments(built)
    given: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [1, 2, 3, 4]),
        ({"startingVersion": second, "endingVersion": third}, [2, 3]),
        ({"startingOffset": second, "endingOffset": third}, [2]),
        ({"startingVersion": second + 1}, [3, 4]),
        ({"startingTimestamp": at_second.isoformat(), "endingVersion": third}, [2, 3]),
        ({"startingTimestamp": at_second + timedelta(microseconds=1)}, [3, 4]),
        ({"startingVersion": "earliest", "endingTimestamp": at_third.isoformat()}, [1, 2, 3]),
        ({"endingTimestamp": at_third.replace(tzinfo=None)}, [1, 2, 3]),
        ({"startingTimestamp": "2100-01-01"}, []),
        ({"startingTimestamp": "1999-01-01 00:00:00"}, [1, 2, 3, 4]),
        ({"startingVersion": "LATEST"}, []),
    ]
    for options, wanted in given:
        assert versions(built, **options) == wanted, options


def test_every_time_is_found(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    for row in range(20):
        built.insert(table, str(row))
        if row % 3:
            built.flush()
        if row % 7 == 1:
            built.control({"type": "note"})  # of a clock of its own
    changes = [each for each in moments(built) if each[1].year == 2023]
    assert len(changes) == 20
    for version, moment in changes:
        micros = (moment - EPOCH) // timedelta(microseconds=1)
        assert positions.first_offset_at(built.log, micros) == version


def test_places_that_are_not_there_are_named(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    dump(built, table, [["1"]])
    built.control({"type": "dump-started", "dump_id": "open", "table": "public.t"})
    end = built.log.latest_offset()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"startingVersion": end + 1}, f"startingversion is {end + 1}, but .* ends at offset"),
        ({"endingVersion": end}, "endingversion is"),
        ({"endingOffset": end + 1}, "endingoffset is"),
        ({"startingDump": "d2"}, "has no dump 'd2'.*Dumps that it knows: open, d1"),
        ({"startingDump": "open"}, "is not complete in this log"),
        ({"startingTimestamp": "noon"}, "must be a time such as"),
        ({"startingVersion": "-3"}, "earliest, latest or a version"),
        ({"endingVersion": "earliest"}, "must be latest or a version"),
        ({"startingVersion": 1, "startingTimestamp": "2024-01-01"}, "exclude one another"),
        ({"endingVersion": 1, "endingOffset": 1}, "exclude one another"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            bounds(built, **options)
    other = BuiltLog(Path(built.path).parent / "other")
    dump(other, other.table("public.u", {"id": "int64"}), [["1"]])
    with pytest.raises(ConfigError, match=r"no whole dump of public.t"):
        bounds(other, startingDump="latest")


def test_a_start_behind_the_end_is_refused(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    for row in range(2, 6):
        built.insert(table, str(row))
    built.flush()
    late, early = "2030-01-01", "2029-12-31"

    def ordered(by: str, first: Any, last: Any) -> None:
        given = {f"starting{by}": first, f"ending{by}": last}
        options = SourceOptions.parse({"path": built.path, **{k: str(v) for k, v in given.items()}})
        start, end = bounds(built, **given)
        positions.check_order(options.starting, start, options.ending, end)

    for by, first, last in (("Version", 30, 10), ("Offset", 30, 10), ("Timestamp", late, early)):
        with pytest.raises(ConfigError, match="is after ending"):
            ordered(by, first, last)
    for by, first, last in (("Version", 10, 10), ("Offset", 10, 10), ("Timestamp", early, late)):
        ordered(by, first, last)


def test_a_start_that_retention_removed_is_refused(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    dump(built, table, [["1"]])
    for row in range(2, 6):
        built.insert(table, str(row))
        built.flush()
    EventLogMaintenance(built.path).retain(0, now_ms=4_000_000_000_000)
    with pytest.raises(OffsetGoneError, match="retention removed everything before"):
        bounds(built, startingVersion=1)


def check(built: BuiltLog, key: str, schema: TableSchema) -> None:
    found = SourceOptions.parse({"path": built.path, "table": "public.t", "key": key}).key
    assert found is not None
    found.check([schema])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("7", "must be a JSON object"),
        ('{"id": null}', "must be numbers or texts"),
        ('{"v": 1}', r"'v' is not of the key of public.t \(id\)"),
    ],
)
def test_wrong_keys_are_named(built: BuiltLog, key: str, message: str) -> None:
    schema = built.table("public.t", {"id": "int64", "v": "text"})
    with pytest.raises(ConfigError, match=message):
        check(built, key, schema)


def test_keys_are_of_one_table() -> None:
    with pytest.raises(ConfigError, match="needs the option 'table'"):
        SourceOptions.parse({"path": "x", "key": '{"id": 1}'})


def test_naive_times_are_utc() -> None:
    assert positions.microseconds("t", "1970-01-01T00:00:01") == 1_000_000
    assert positions.microseconds("t", "1970-01-01T02:00:00+02:00") == 0
    assert positions.microseconds("t", datetime(1970, 1, 2)) == 86_400_000_000
