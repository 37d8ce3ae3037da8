"""What is asked for where an output is new, or takes more tables than before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.base.outputs import destinations
from tidelog.app.pipeline import session
from tidelog.app.pipeline.session import Backfill
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump, command_from_json
from tidelog.errors import OffsetGoneError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.state.sqlite import SqliteState
from tidelog.system.processes import unix_ms

COLUMNS = {"id": "int64"}


@pytest.fixture(autouse=True)
def _no_capture_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "COMMAND_TIMEOUT_S", 0.1)


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    """Tables p.a and q.b, a row of each, in segments of their own."""
    built = BuiltLog(tmp_path / "log")
    for number, name in enumerate(("p.a", "q.b"), 1):
        built.insert(built.table(name, COLUMNS, relation_id=number), "1")
        built.flush()
    return built


def config(path: Path, *outputs: str, snapshot: str = "initial") -> Config:
    file = path / "tidelog.yaml"
    listed = "".join(f"  - {output}\n" for output in outputs)
    file.write_text(
        f"source: {{kind: postgres, url: 'postgresql://localhost/shop', snapshot: {snapshot}}}\n"
        f"log: {{path: log}}\nstate: {{url: 'sqlite:///state.db'}}\noutputs:\n{listed}"
    )
    return load_config(file)


def asked(of: Config) -> list[tuple[str, ...]]:
    """The tables of each dump that waits for a capture."""
    state = SqliteState(of.state.url)
    try:
        found = [state.get(key) for key in state.keys("commands/")]
    finally:
        state.close()
    commands = [command_from_json(each.value) for each in found if each is not None]
    assert all(isinstance(each, StartDump) for each in commands)
    return [each.tables for each in commands if isinstance(each, StartDump)]


def filled(built: BuiltLog, of: Config) -> None:
    """A pipeline ran with these outputs, up to the log's end."""
    end = built.log.latest_offset()
    done = {section.name: end for section in of.outputs}
    Consumers(built.log.storage).register("pipeline", end, done, destinations(of))


def resumed(of: Config, built: BuiltLog, *copies: str) -> int:
    """Where the one output of the configuration resumes, after the requests of a start."""
    made = Backfill(of, built.log, copies)
    made.request()
    return made.resume_offset(of.outputs[0].name, built.log.head_offset)


def remove_first_segment(built: BuiltLog) -> None:
    built.control({"type": "nothing"})
    until = built.log.chain().segments[1].first
    Consumers(built.log.storage).register("holds", until)
    later_ms = unix_ms() + 10_000_000
    assert EventLogMaintenance(built.path).retain(1.0, now_ms=later_ms) == until


def test_the_first_start_of_a_whole_log_asks_for_nothing(tmp_path: Path, built: BuiltLog) -> None:
    wanted = config(tmp_path, "{kind: delta, path: lake}")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == []


def test_an_output_that_is_added_to_a_whole_log_needs_no_dump(
    tmp_path: Path, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    filled(built, config(tmp_path, "{kind: delta, path: lake}"))
    wanted = config(tmp_path, "{kind: delta, path: lake}", "{kind: files, path: f}")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == []
    assert "output files is new: it starts at the head of the event log" in caplog.text


@pytest.mark.parametrize("first", [False, True], ids=["added", "first start"])
def test_a_dump_is_asked_for_where_the_log_lacks_its_beginning(
    tmp_path: Path, built: BuiltLog, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    known = "{kind: delta, path: lake}"
    if not first:
        filled(built, config(tmp_path, known))
    remove_first_segment(built)
    started = built.dump_started("q.b").first
    built.dump_completed("q.b", started)
    wanted = config(tmp_path, *([] if first else [known]), "{kind: files, path: f}")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == [("p.a",)]  # of q.b the log has a whole dump
    assert "lacks rows of p.a until their dumps, which are requested now" in caplog.text


def test_a_source_that_is_not_to_be_dumped_is_not(
    tmp_path: Path, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    remove_first_segment(built)
    wanted = config(tmp_path, "{kind: files, path: f}", snapshot="no_data")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == []
    assert "rows that are not in the event log come only with `tidelog dump`" in caplog.text


@pytest.mark.parametrize("before", ["[p.*]", "['*', '!q.b']"])
def test_tables_that_an_output_takes_from_now_on_are_dumped(
    tmp_path: Path, built: BuiltLog, before: str
) -> None:
    filled(built, config(tmp_path, f"{{kind: delta, path: lake, tables: {before}}}"))
    wanted = config(tmp_path, "{kind: delta, path: lake}")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == [("q.b",)]
    filled(built, wanted)
    Backfill(wanted, built.log).request()
    assert asked(wanted) == [("q.b",)]  # no second one


def test_what_a_version_before_noted_asks_for_nothing(tmp_path: Path, built: BuiltLog) -> None:
    remove_first_segment(built)
    Consumers(built.log.storage).register("pipeline", built.log.latest_offset())
    wanted = config(tmp_path, "{kind: delta, path: lake}")
    Backfill(wanted, built.log).request()
    assert asked(wanted) == []


def left_behind(built: BuiltLog, of: Config) -> int:
    """The pipeline ran at the log's beginning; now that is removed. The log's head."""
    done = {section.name: built.log.head_offset for section in of.outputs}
    consumers = Consumers(built.log.storage)
    consumers.register("pipeline", built.log.head_offset, done, destinations(of))
    noted = consumers.all()[0]
    consumers.forget("pipeline")  # the cap passes over it
    remove_first_segment(built)
    consumers.register("pipeline", noted.offset, noted.outputs, noted.destinations)
    return built.log.head_offset


def test_a_copy_that_stands_before_the_log_continues_with_dumps(
    tmp_path: Path, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = config(tmp_path, "{kind: delta, path: lake}")
    head = left_behind(built, wanted)
    started = built.dump_started("q.b").first
    built.dump_completed("q.b", started)
    assert resumed(wanted, built, "delta") == head
    assert asked(wanted) == [("p.a",)]
    assert "output delta is at offset 0, but retention removed everything" in caplog.text


def test_a_copy_continues_only_with_dumps(tmp_path: Path, built: BuiltLog) -> None:
    wanted = config(tmp_path, "{kind: delta, path: lake}", snapshot="no_data")
    head = left_behind(built, wanted)
    made = Backfill(wanted, built.log, ["delta"])
    made.request()
    for _ in range(2):  # it is checked again
        with pytest.raises(OffsetGoneError, match=r"the log holds dumps of p.a, q.b: .*`tidelog"):
            made.resume_offset("delta", 0)
    assert asked(wanted) == []
    for table in ("p.a", "q.b"):
        built.dump_completed(table, built.dump_started(table).first)
    assert made.resume_offset("delta", 0) == head


def test_events_that_are_lost_stop_an_output_until_it_has_a_new_name(
    tmp_path: Path, built: BuiltLog
) -> None:
    wanted = config(tmp_path, "{kind: files, path: f}")
    left_behind(built, wanted)
    with pytest.raises(OffsetGoneError, match="Give the output a name that it never had"):
        resumed(wanted, built)
    assert asked(wanted) == []
    renamed = config(tmp_path, "{kind: files, name: anew, path: f}")
    assert resumed(renamed, built) == 0
    assert asked(renamed) == [("p.a", "q.b")]


def test_dumps_are_requested_once_though_the_head_moves_before_they_are_done(
    tmp_path: Path, built: BuiltLog
) -> None:
    """An output whose writes are refused is checked again every minute."""
    wanted = config(tmp_path, "{kind: delta, path: lake}")
    left_behind(built, wanted)
    made = Backfill(wanted, built.log, ["delta"])
    made.request()
    made.resume_offset("delta", 0)
    Consumers(built.log.storage).forget("pipeline")  # the cap passes over it
    for _ in range(3):
        head = built.log.head_offset
        remove_first_segment(built)
        assert built.log.head_offset > head
        assert made.resume_offset("delta", 0) == built.log.head_offset
    assert asked(wanted) == [("p.a", "q.b")]
