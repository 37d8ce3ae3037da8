"""What an overview makes of status documents, and how `tidelog status` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog.app.overview.build import overview
from tidelog.cli.live import fit_rows
from tidelog.cli.status_lines import (
    ChangedFacts,
    brief,
    closing,
    lines,
    rows_with_config,
    status_rows,
)
from tidelog.model.command_text import name_config
from tidelog.results import Overview, Severity

NOW_MS = 1_700_000_000_000
ROOT = Path(__file__).resolve().parents[3]


def status(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "leader": "db-host:77", "standbys": [], "epoch": 3, "zone": None,
        "since_ms": NOW_MS - 60_000, "updated_ms": NOW_MS - 500, "lag_bytes": 0,
        "source": {
            "position": "0/208C0C0", "lag_s": 0.0, "retained_bytes": 1 << 20,
            "spare_bytes": 1 << 30, "kept_s": None, "lost_in_s": None, "error": None,
        },
        "capture": {"records": 1234, "held": False},
        "refused": [], "inserts_only": [], "waiting": [], "to_repeat": [], "dumps": [],
        "outputs": [output()],
    }  # fmt: skip
    return {**document, **changes}


def source(**changes: Any) -> dict[str, Any]:
    return {"source": {**status()["source"], **changes}}


def output(**changes: Any) -> dict[str, Any]:
    return {
        "pipeline": "shop", "output": "delta", "offset": 9, "behind_records": 0, "lag_s": 0.0,
        "noted_ms": NOW_MS - 1000, "state": "following",
    } | changes  # fmt: skip


def dump(*tables: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"dumps": [{"dump_id": "d1", "status": "running", "tables": list(tables)} | changes]}


def table(name: str = "public.t", **changes: Any) -> dict[str, Any]:
    return {"table": name, "status": "running", "rows_read": 0, "estimated_rows": 0} | changes


def status_text(found: Overview) -> str:
    return "\n".join(lines(found))


def test_a_healthy_system_is_reported_in_a_few_lines() -> None:
    found = overview(status(), NOW_MS)
    assert found.severity is Severity.OK
    assert next(lines(found)) == "✓ All is well: at most 1s behind the source."
    assert "source   at 0/208C0C0; up to date" in status_text(found)
    assert "log      the slot keeps 1MiB, with 1GiB to spare" in status_text(found)
    assert "verify   nothing was compared yet" in status_text(found)
    assert "output   shop/delta is up to date" in status_text(found)
    assert len(list(lines(found))) == 6


LED = {
    "pipeline": "shop", "leader": "h:1", "epoch": 1, "zone": "", "since_ms": 0, "standbys": [],
}  # fmt: skip
REFUSED = {"table": "public.x", "reason": "no key", "remedy": "ALTER TABLE x\nADD k", "since_ms": 0}
LEFT_OUT = {"table": "public.x", "columns": ["g", "h"], "reason": "why", "remedy": "compute them"}
UNLOGGED = {
    "table": "a.x", "reason": "a statement", "remedy": "SET", "at_ms": NOW_MS - 9, "dumped": False,
}  # fmt: skip
PAUSE = {"by": "me", "since_ms": NOW_MS - 600_000}
PAUSED = {"log_paused": PAUSE}
UNANSWERED = {"error": "cannot connect", "since_ms": NOW_MS - 60_000}
HELD = {"why": "log_in_danger", "reason": "Much is kept.", "since_ms": NOW_MS - 600_000}
END = {"at_ms": NOW_MS - 300_000, "holder": "db-host:77", "reason": "no rights"}
PROBLEMS = {
    "no-leader": ({"leader": None}, Severity.CRITICAL, "No capture leads"),
    "pipeline-ended": (
        {"ended": {"capture": None, "pipelines": {"shop": END}}},
        Severity.CRITICAL, "Nobody delivers; the last pipeline shop ended 5min ago: no rights",
    ),
    "capture-fails": (
        {"leader": None, "failing": [{"holder": "h:2", "since_ms": 0, "trouble": "it is down"}]},
        Severity.CRITICAL, "h:2 can't capture: it is down",
    ),
    "standby-fails": (
        {"failing": [{"holder": "h:2", "since_ms": 0, "trouble": "it is down"}]},
        Severity.WARNING, "h:2 stands by, but could not capture: it is down",
    ),
    "leader-silent": ({"updated_ms": NOW_MS - 90_000}, Severity.CRITICAL, "db-host:77 leads, but"),
    "source-away": (source(error="nothing answers"), Severity.CRITICAL, "nothing answers"),
    "capture-late": (source(lag_s=600.0), Severity.WARNING, "Capture is 10min"),
    "log-nearly-lost": (source(lost_in_s=120.0), Severity.CRITICAL, "still needs in 2min"),
    "log-room-small": (
        source(retained_bytes=9 << 20, spare_bytes=1 << 20), Severity.WARNING, "after 1MiB more",
    ),
    "log-fills-disk": (
        source(retained_bytes=11 << 30, spare_bytes=None), Severity.WARNING, "its disk fills",
    ),
    "table-refused": ({"refused": [REFUSED]}, Severity.WARNING, "public.x is not captured: no key"),
    "inserts-only": ({"inserts_only": [REFUSED]}, Severity.WARNING, "public.x is captured in part"),
    "columns-left-out": (
        {"left_out_columns": [LEFT_OUT, {**LEFT_OUT, "table": "public.y"}]},
        Severity.INFO,
        "public.x and 1 more table are captured without generated columns (public.x: g, h): why.",
    ),
    "rows-unlogged": (
        {"unlogged": [{**UNLOGGED, "dumped": True}, UNLOGGED, {**UNLOGGED, "at_ms": 1}]},
        Severity.WARNING, "a.x and 1 more table may differ from the source until the dump that",
    ),
    "table-renamed": (
        {"renamed": [
            {"table": f"a.{x}", "now": "a.z", "at_ms": at} for x, at in (("x", NOW_MS), ("y", 1))
        ]},
        Severity.INFO, "a.x was renamed to a.z: its copies get no more changes",
    ),
    "no-longer-captured": (
        {"left_out": [{"table": f"public.{x}", "since_ms": NOW_MS - 9} for x in "xyz"]},
        Severity.INFO, "public.x and 2 more tables are no longer captured",
    ),
    "output-stopped": (
        {"outputs": [output(state="stopped", error="no rights")]},
        Severity.CRITICAL, "Output shop/delta has stopped: no rights",
    ),
    "pipeline-silent": (
        {"outputs": [output(behind_records=5, lag_s=150.0, noted_ms=NOW_MS - 600_000)]},
        Severity.CRITICAL, "lacks 5 records",
    ),
    "output-fails": (
        {"outputs": [output(behind_records=5, failed="no route", failed_ms=NOW_MS - 9)]},
        Severity.WARNING, "Output shop/delta fails: no route",
    ),
    "output-rejects": (
        {"outputs": [output(rejected=1200, rejected_ms=NOW_MS - 60_000)]},
        Severity.WARNING, "rejects records: 1,200 records are in its dead letters",
    ),
    "output-lacks-table": (
        {"outputs": [output(refused={"public.x": "its name is too long"})]},
        Severity.WARNING, "Output shop/delta lacks rows of public.x: its name is too long",
    ),
    "output-unregistered": (
        {"outputs": [output(unregistered={f"public.{x}": "it is down" for x in "xyz"})]},
        Severity.WARNING, "Output shop/delta has not registered public.x and 2 more tables: it is",
    ),
    "output-late": (
        {"outputs": [output(behind_records=5, lag_s=900.0)]},
        Severity.WARNING, "Output shop/delta is 15min behind (5 records)",
    ),
    "engine-abandoned": (
        {"engines": [{
            "engine": "mail", "offset": 7, "behind_records": 5, "lag_s": 9e5, "noted_ms": 0,
        }]},
        Severity.WARNING, "and 5 records of the event log are kept for it",
    ),
    "chunks-unanswered": (
        {**dump(table(), status="running"), "chunks_unanswered": UNANSWERED},
        Severity.WARNING, "Dumps read nothing: cannot connect",
    ),
    "looks-unanswered": (
        {"looks_unanswered": UNANSWERED},
        Severity.WARNING, "The catalogue is not read: changed tables are seen late: cannot",
    ),
    "dump-failed": (
        {"failed": [{"table": "public.t", "reason": "no key"}]},
        Severity.WARNING, "The dump of public.t failed: no key",
    ),
    "rows-unread": (
        dump(table(failed_ranges=2)),
        Severity.WARNING, "2 key ranges of public.t",
    ),
    "dump-paused": (dump(table(), status="paused"), Severity.INFO, "Dump d1 is paused"),
    "dump-waits": (
        {"waiting": [{"table": "public.t", "since_ms": 0}]}, Severity.INFO, "an old transaction",
    ),
    "copy-repaired": (
        {"verified": {"at_ms": 0, "compared": 3, "differ": [], "repaired": ["public.t in lake"]}},
        Severity.INFO, "Verify has repaired public.t in lake; not compared again yet.",
    ),
    "copy-not-compared": (
        {"verified": {"at_ms": 0, "compared": 9, "differ": [], "not_compared": ["t in d", "u"]}},
        Severity.WARNING, "Verify could not compare t in d and 1 more copy.",
    ),
    "copy-differs": (
        {"verified": {"at_ms": NOW_MS, "compared": 3, "differ": ["public.t in lake", "b in c"]}},
        Severity.CRITICAL, "public.t in lake and 1 more copy differed",
    ),
    "log-reading-paused": (
        PAUSED, Severity.INFO,
        "The log is paused by me for 10min; the server keeps 1MiB of log for it, with room for "
        "1GiB more.",
    ),
    "pipeline-paused": (
        {"paused_pipelines": {"shop": PAUSE}}, Severity.INFO, "Pipeline shop is paused by me for",
    ),
    "dumps-held": (
        {**dump(table()), "dumps_held": [HELD]}, Severity.INFO,
        "Capture has blocked all dumps for 10min: Much is kept.",
    ),
    "channel-fails": (
        {"channels": [
            {"channel": "signal_kafka", "reason": "no broker", "remedy": "Mend.", "since_ms": 0}
        ]},
        Severity.WARNING, "no broker.",
    ),
    "check-error": (
        {"refused": [], "check_errors": [
            {"check": "table public.t", "message": "it can't be read", "fix": "GRANT …;"}
        ]},
        Severity.WARNING, "tidelog check finds an error in table public.t: it can't be read",
    ),
    "log-waits-for-dump": ({"capture": {"held": True}}, Severity.INFO, "The log waits"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_problem_has_a_sentence_a_remedy_and_an_entry_in_the_docs(kind: str) -> None:
    changes, severity, words = PROBLEMS[kind]
    found = overview(status(**changes), NOW_MS)
    problem = next(each for each in found.problems if each.kind == kind)
    assert len(found.problems) == 1
    assert (problem.severity, found.severity) == (severity, severity)
    assert words in problem.sentence
    assert words in status_text(found)
    page, _, anchor = problem.page.partition("#")
    titles = [x.lstrip("# ") for x in (ROOT / page).read_text().splitlines() if x.startswith("#")]
    assert anchor in {_anchor(title) for title in titles}
    if severity is not Severity.INFO and kind != "output-late":
        assert problem.remedy


def _anchor(title: str) -> str:
    """As GitHub makes it."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


@pytest.mark.parametrize(
    ("kept", "severity"),
    [
        ({"retained_bytes": 1 << 30, "spare_bytes": 9 << 30}, Severity.INFO),
        ({"retained_bytes": 4 << 30, "spare_bytes": 6 << 30}, Severity.WARNING),
        ({"retained_bytes": 8 << 30, "spare_bytes": 2 << 30}, Severity.CRITICAL),
        ({"retained_bytes": 1 << 30, "spare_bytes": None}, Severity.INFO),
        ({"retained_bytes": 5 << 30, "spare_bytes": None}, Severity.WARNING),
        ({"retained_bytes": 1 << 30, "spare_bytes": 9 << 30, "lag_s": 600.0}, Severity.WARNING),
        ({"retained_bytes": None, "spare_bytes": None, "kept_s": 1000.0, "lag_s": 900.0},
         Severity.CRITICAL),
    ],
)  # fmt: skip
def test_a_paused_log_is_the_worse_the_more_the_server_keeps(
    kept: dict[str, Any], severity: Severity
) -> None:
    found = overview(status(**PAUSED, **source(**kept)), NOW_MS)
    (problem,) = (each for each in found.problems if each.kind == "log-reading-paused")
    assert problem.severity is severity
    assert "capture-late" not in {each.kind for each in found.problems}


def test_a_paused_pipeline_says_how_late_its_outputs_are() -> None:
    late = output(behind_records=5, lag_s=900.0, noted_ms=NOW_MS - 900_000)
    paused = {"paused_pipelines": {"shop": PAUSE}, "outputs": [late], "pipelines": [LED]}
    found = overview(status(**paused), NOW_MS)
    (problem,) = found.problems
    assert (problem.kind, problem.severity) == ("pipeline-paused", Severity.WARNING)
    assert "up to 15min behind (5 records, which the event log keeps)" in problem.sentence
    assert "pipeline shop: paused by me since " in status_text(found)


def test_a_pause_hides_no_other_problem_of_an_output() -> None:
    wrong = output(rejected=3, rejected_ms=NOW_MS, refused={"public.t": "no"},
                   unregistered={"public.u": "no"})  # fmt: skip
    running = {"outputs": [wrong], "pipelines": [LED]}
    kinds = {each.kind for each in overview(status(**running), NOW_MS).problems}
    assert kinds == {"output-rejects", "output-lacks-table", "output-unregistered"}
    paused = overview(status(**running, paused_pipelines={"shop": PAUSE}), NOW_MS)
    assert {each.kind for each in paused.problems} == {*kinds, "pipeline-paused"}


def test_a_damaged_file_of_a_consumer_is_a_problem() -> None:
    (found,) = overview(status(damaged_consumers=["lake"]), NOW_MS).problems
    assert (found.kind, found.severity) == ("consumer-damaged", Severity.CRITICAL)
    assert "consumers/lake.json is damaged" in found.sentence


def test_what_is_paused_says_by_whom_and_since_when() -> None:
    found = overview(status(**PAUSED, paused_pipelines={"later": PAUSE}), NOW_MS)
    assert (found.source.paused_by, found.source.paused_ms) == ("me", PAUSE["since_ms"])
    (later,) = found.pipelines  # that never ran
    assert (later.pipeline, later.leader) == ("later", None)
    assert (later.paused_by, later.paused_ms) == ("me", PAUSE["since_ms"])
    assert overview(status(), NOW_MS).source.paused_ms is None


def test_dumps_that_capture_blocks_are_shown_as_blocked_by_it() -> None:
    held = overview(status(**dump(table()), dumps_held=[HELD]), NOW_MS)
    assert [(each.status, each.paused_by) for each in held.dumps] == [("paused", "capture")]
    assert held.dumps[0].held == "Much is kept."
    assert " is blocked by capture: " in status_text(held)
    blocking = overview(status(**dump(table(), mode="blocking"), dumps_held=[HELD]), NOW_MS)
    assert [each.status for each in blocking.dumps] == ["running"]


def test_what_check_says_of_a_refused_table_is_reported_once() -> None:
    error = {"check": "table public.t", "message": "no", "fix": ""}
    for list_name in ("refused", "inserts_only"):
        known = {list_name: [{**REFUSED, "table": "public.t"}], "check_errors": [error]}
        assert len(overview(status(**known), NOW_MS).problems) == 1


def test_a_failed_dump_is_reported_once() -> None:
    failed = {"failed": [{"table": "public.t", "reason": "no key"}]}
    for list_name in ("refused", "inserts_only"):
        known = {list_name: [{**REFUSED, "table": "public.t"}]}
        found = overview(status(**failed, **known), NOW_MS)
        assert [each.about for each in found.problems] == ["public.t"]
        assert found.problems[0].kind != "dump-failed"


def test_a_table_that_was_renamed_to_what_is_not_captured_names_the_option() -> None:
    moved = {"table": "a.x", "now": "b.x", "at_ms": NOW_MS, "captured": False}
    [problem] = overview(status(renamed=[moved]), NOW_MS).problems
    assert problem.sentence.endswith("its copies get no more changes, and b.x is not captured.")
    assert "source.tables" in problem.remedy


def test_the_worst_problem_is_the_verdict_and_comes_first() -> None:
    found = overview(status(refused=[REFUSED], **source(error="nothing answers")), NOW_MS)
    assert found.verdict == "The database does not answer: nothing answers"
    written = list(lines(found))
    assert written[0] == "✗ The database does not answer: nothing answers"
    assert sum("nothing answers" in line for line in written) == 1
    assert "! public.x is not captured: no key" in written
    after = written[written.index("! public.x is not captured: no key") + 1 :]
    assert after[:2] == ["    ALTER TABLE x", "    ADD k"]


@pytest.mark.parametrize("part", ["capture", "pipelines"])
def test_why_the_last_process_ended_is_reported_once(part: str) -> None:
    """Its pipeline's error ends a process that captures, too."""
    ended = {"capture": None, "pipelines": {}, part: END if part == "capture" else {"shop": END}}
    found = overview(status(leader=None, holder="db-host:77", ended=ended), NOW_MS)
    assert found.verdict == "No capture leads; the last one ended 5min ago: no rights"
    assert sum("no rights" in each.sentence for each in found.problems) == 1
    never = overview({"leader": None, "capture": None, "ended": ended | {"capture": END}}, NOW_MS)
    assert never.verdict == "No capture has begun here; the last try ended 5min ago: no rights"


def test_a_process_that_is_about_to_capture_is_no_reason_to_start_another() -> None:
    """It has the lease and has not reported yet, with and without documents of earlier runs; or it
    is about to take the lease.
    """
    nothing = {"leader": "h:1", "standbys": [], "capture": None}
    assert overview(nothing, NOW_MS).verdict == "Starting: capture."
    waits = {**nothing, "leader": None, "standbys": [{"holder": "h:1", "zone": None}]}
    assert overview(waits, NOW_MS).verdict == "Starting: capture."
    old = status(holder="h:0", leader="h:1", updated_ms=NOW_MS - 3_600_000)
    assert overview(old, NOW_MS).verdict == "Starting: capture."
    silent = status(holder="h:1", leader="h:1", updated_ms=NOW_MS - 3_600_000)
    assert overview(silent, NOW_MS).verdict.startswith("h:1 leads, but has reported nothing")
    [lost] = overview({**old, "leader": None, "standbys": waits["standbys"]}, NOW_MS).problems
    assert lost.remedy == "h:1 stands by: it takes over once the lease has expired."


def test_a_stopped_run_is_started_as_run() -> None:
    stopped = status(leader=None, configured_outputs=["shop/delta"], updated_ms=NOW_MS - 13_000)
    assert overview(stopped, NOW_MS).problems[0].remedy == "tidelog run CONFIG"
    alone = overview({**stopped, "pipelines": [LED]}, NOW_MS)
    assert alone.problems[0].remedy == "tidelog capture CONFIG"


def test_all_is_not_well_before_an_output_has_delivered_its_first_batch() -> None:
    more = {"configured_outputs": ["shop/delta"], "pipelines": [LED]}
    first = output(behind_records=288, begun_ms=NOW_MS - 9_000, begun_records=288, lag_s=21.0)
    found = overview(status(**more, outputs=[first]), NOW_MS)
    assert found.verdict == "Starting: the first batch, nothing is delivered yet."
    more["configured_outputs"].append("shop/new")
    old = {**first, "committed_ms": NOW_MS}
    found = overview(status(**more, outputs=[old]), NOW_MS)
    assert found.verdict == "Starting: the first batch, nothing is delivered to shop/new yet."
    more["configured_outputs"].pop()
    later = overview(status(**more, outputs=[old]), NOW_MS)
    assert later.verdict == "All is well: at most 21s behind the source."


def test_an_output_that_catches_up_since_the_start_needs_no_more_cores() -> None:
    late = output(behind_records=5, lag_s=1800.0, committed_ms=NOW_MS - 9)
    for begun_s, severity in ((120, Severity.INFO), (7200, Severity.WARNING)):
        led = {**LED, "since_ms": NOW_MS - begun_s * 1000}
        [found] = overview(status(outputs=[late], pipelines=[led]), NOW_MS).problems
        assert (found.kind, found.severity) == ("output-late", severity)
        assert ("cores" in found.remedy) == (severity is Severity.WARNING)
        assert ("started 2min ago" in found.sentence) == (severity is Severity.INFO)


def test_an_output_that_does_not_move_does_not_catch_up() -> None:
    """It lags by more than its pipeline runs, for ever."""
    led = {**LED, "since_ms": NOW_MS - 86_400_000}
    late = output(behind_records=5, lag_s=87_000.0, committed_ms=NOW_MS - 80_000_000)
    [found] = overview(status(outputs=[late], pipelines=[led]), NOW_MS).problems
    assert (found.kind, found.severity) == ("output-late", Severity.WARNING)
    late = {**late, "committed_ms": NOW_MS - 9}
    [found] = overview(status(outputs=[late], pipelines=[led]), NOW_MS).problems
    assert found.severity is Severity.INFO


def test_tables_of_one_cause_are_one_problem() -> None:
    denied = "CREATE: permission denied for schema public. Run: CREATE TABLE public.{0} (...)"
    refused = {f"public.{name}": denied.format(name) for name in "abc"}
    refused["public.d"] = "public.d has a name that is too long. Rename it"
    found = overview(status(outputs=[output(refused=refused)]), NOW_MS)
    assert [each.sentence for each in found.problems] == [
        "Output shop/delta lacks rows of public.a and 2 more tables: CREATE: permission denied for "
        "schema public. Run: CREATE TABLE public.a (...)",
        "Output shop/delta lacks rows of public.d: public.d has a name that is too long. Rename it",
    ]
    keyless = {f"public.{x}": f"public.{x} has no key: it is appended. Give it {x}" for x in "abc"}
    shown = status_text(overview(status(outputs=[output(keyless=keyless)]), NOW_MS))
    line = "public.a has no key: it is appended; so for public.b, public.c. Give it a"
    assert line in shown
    keyed = {"public.a": "public.a has a key now, and appends. For a copy, move it away"}
    shown = status_text(overview(status(outputs=[output(keyless=keyed)]), NOW_MS))
    assert "public.a has a key now, and appends. For a copy, move it away" in shown
    assert "how to give a key" not in shown


def test_tables_that_wait_for_their_first_dump_are_not_captured_whole() -> None:
    tables = [table("public.a", status="done", finished_ms=NOW_MS - 9), table("public.b")]
    found = status_text(overview(status(**dump(*tables)), NOW_MS))
    assert "tables   2 tables, 1 of them not dumped yet" in found


def test_a_system_that_never_ran_says_what_to_run() -> None:
    found = overview({"leader": None, "standbys": [], "capture": None}, NOW_MS)
    never = "✗ No capture has begun here; one that was started just now appears within seconds."
    assert list(lines(found))[:2] == [never, "    tidelog capture CONFIG"]
    assert found.at_ms is None
    with_outputs = {"leader": None, "capture": None, "configured_outputs": ["shop/lake"]}
    assert next(each.remedy for each in overview(with_outputs, NOW_MS).problems) == (
        "tidelog run CONFIG"
    )


@pytest.mark.parametrize(
    ("error", "command"),
    [("GapError", "reset"), ("PreflightError", "check"), ("SourceError", "capture")],
)
def test_after_an_error_the_command_is_the_one_that_helps(error: str, command: str) -> None:
    ended = {"capture": {**END, "error": error}, "pipelines": {}}
    found = overview(status(leader=None, holder="db-host:77", ended=ended), NOW_MS)
    assert found.problems[0].remedy.splitlines()[0] == f"tidelog {command} CONFIG"


def test_a_capture_that_has_ended_does_not_retry_its_reads() -> None:
    asked = {**dump(table(), status="running"), "chunks_unanswered": UNANSWERED}
    for leader, told in (("db-host:77", True), (None, False)):
        found = overview(status(**asked, leader=leader, holder="db-host:77"), NOW_MS)
        assert ("chunks-unanswered" in {each.kind for each in found.problems}) is told


def test_a_dump_tells_its_total_and_when_it_will_end() -> None:
    running = dump(
        table("public.a", status="done", rows_read=100, started_ms=NOW_MS - 10_500),
        table("public.b", rows_read=100, estimated_rows=400, started_ms=NOW_MS - 5_000),
        table("public.c", status="pending", estimated_rows=500),
    )
    found = overview(status(**running), NOW_MS)
    one = found.dumps[0]
    assert (one.tables, one.tables_done, one.rows, one.estimated_rows) == (3, 1, 200, 1000)
    assert one.left_s == 40.0
    assert (
        "d1 is running: 1 of 3 tables, 200 rows of about 1,000 (20%), about 40s left"
        in status_text(found)
    )


def test_the_size_of_a_part_of_a_table_is_not_guessed() -> None:
    part = dump(table(rows_read=10, estimated_rows=1000, where="(condition)", started_ms=NOW_MS))
    one = overview(status(**part), NOW_MS).dumps[0]
    assert (one.estimated_rows, one.left_s) == (None, None)


def test_a_server_that_keeps_its_log_for_a_time_loses_it_when_that_is_over() -> None:
    late = source(spare_bytes=None, retained_bytes=None, kept_s=86_400.0, lag_s=84_000.0)
    found = overview(status(**late), NOW_MS)
    assert found.source.lost_in_s == 2400.0
    assert found.problems[0].kind == "log-nearly-lost"
    idle = source(spare_bytes=None, retained_bytes=None, kept_s=3000.0, lag_s=0.0)
    assert overview(status(**idle), NOW_MS).problems == ()


HOUR_AGO = {"updated_ms": NOW_MS - 3_600_000}
DOWN = {"nobody leads": {**HOUR_AGO, "leader": None}, "the leader is silent": HOUR_AGO}


@pytest.mark.parametrize("down", DOWN.values(), ids=list(DOWN))
def test_the_last_status_of_a_capture_that_is_down_is_not_reported_as_of_now(
    down: dict[str, Any],
) -> None:
    found = overview(status(**down, **source(lag_s=0.0, lost_in_s=5400.0)), NOW_MS)
    assert (found.source.lag_s, found.source.lost_in_s) == (3600.0, 1800.0)
    assert {each.kind for each in found.problems} <= {
        "no-leader", "leader-silent", "log-nearly-lost",
    }  # fmt: skip
    (lost,) = (each for each in found.problems if each.kind == "log-nearly-lost")
    assert "still needs in 30min" in lost.sentence
    assert lost.remedy.startswith("Start capture")
    assert "up to date" not in status_text(found)
    assert "source   at 0/208C0C0; up to 60min behind" in status_text(found)
    assert (
        "the slot kept 1MiB, with 1GiB to spare; while capture is down it is lost"
        in status_text(found)
    )
    assert "output   shop/delta has all that was captured" in status_text(found)
    gone = overview(status(**down, **source(lost_in_s=60.0)), NOW_MS)
    assert gone.source.lost_in_s == 0.0
    assert "still needs now" in status_text(gone)


@pytest.mark.parametrize("down", DOWN.values(), ids=list(DOWN))
def test_a_log_that_is_kept_for_a_time_runs_out_while_capture_is_down(down: dict[str, Any]) -> None:
    kept = source(spare_bytes=None, retained_bytes=None, kept_s=7000.0, lag_s=0.0)
    found = overview(status(**down, **kept), NOW_MS)
    assert found.source.lost_in_s == 3400.0
    assert "log-nearly-lost" in {each.kind for each in found.problems}


def test_of_a_source_that_capture_never_asked_nothing_is_guessed() -> None:
    found = overview(status(**HOUR_AGO, leader=None, **source(lag_s=None)), NOW_MS)
    assert (found.source.lag_s, found.source.lost_in_s) == (None, None)
    assert "up to date" not in status_text(found)


def test_many_of_a_kind_are_counted_not_listed() -> None:
    many = [{**REFUSED, "table": f"public.t{n}", "reason": f"no key {n}"} for n in range(500)]
    outputs = [output(output=f"o{n}") for n in range(30)]
    written = list(lines(overview(status(refused=many, outputs=outputs), NOW_MS)))
    assert len(written) < 50
    assert "  … 498 more problems: tidelog status --json has them" in written
    assert "  … 22 more outputs: tidelog status --json has them" in written


def test_commands_name_the_configuration_that_was_given() -> None:
    found = overview(status(**PAUSED), NOW_MS)
    written = [str(row) for row in rows_with_config(status_rows(found), "my shop.yaml")]
    assert "    tidelog resume 'my shop.yaml' --log" in written
    assert not any("CONFIG" in line for line in written)
    assert name_config("CONFIG of tidelog", "a.yaml") == "CONFIG of tidelog"


def test_a_few_problems_are_all_listed() -> None:
    refused = [{**REFUSED, "table": f"public.t{n}", "reason": f"no key {n}"} for n in range(5)]
    written = status_text(overview(status(refused=refused), NOW_MS))
    assert all(f"public.t{n} is not captured" in written for n in range(5))
    assert "more problem" not in written


def test_no_kind_of_problem_hides_another() -> None:
    many = [{**REFUSED, "table": f"public.t{n}", "reason": f"no key {n}"} for n in range(500)]
    late = output(behind_records=5, lag_s=900.0)
    assert "Output shop/delta is 15min behind" in status_text(
        overview(status(refused=many, outputs=[late]), NOW_MS)
    )


def test_a_pipeline_says_nothing_while_there_is_nothing_to_deliver() -> None:
    """An hour without changes, then one: it is not silent, it was idle."""
    just_now = output(behind_records=1, lag_s=0.2, noted_ms=NOW_MS - 3_600_000)
    assert overview(status(outputs=[just_now]), NOW_MS).problems == ()
    busy = output(behind_records=9, lag_s=200.0, noted_ms=NOW_MS - 200_000)  # a large batch
    assert overview(status(outputs=[busy], pipelines=[LED]), NOW_MS).problems == ()
    found = overview(status(outputs=[busy], pipelines=[{**LED, "leader": None}]), NOW_MS)
    assert [each.kind for each in found.problems] == ["pipeline-silent"]


def test_an_output_that_never_ran_is_reported() -> None:
    found = overview(status(configured_outputs=["shop/delta", "shop/kafka"]), NOW_MS)
    assert [(each.kind, each.about) for each in found.problems] == [
        ("output-never-ran", "shop/kafka")
    ]


def test_a_process_that_tries_to_lead_is_failing_while_it_tries() -> None:
    trying = {"holder": "db-host:77", "since_ms": 0, "trouble": "it is down"}
    found = overview(status(updated_ms=NOW_MS - 90_000, failing=[trying]), NOW_MS)
    assert [each.kind for each in found.problems] == ["capture-fails"]


def test_a_slot_that_an_old_transaction_holds_is_reported_as_that() -> None:
    found = overview(status(**source(lost_in_s=60.0, lag_s=0.0)), NOW_MS)
    assert "an old transaction holds the slot" in found.problems[0].remedy


def test_a_dump_of_ten_thousand_tables_is_summed_up_in_one_go() -> None:
    class Counted(dict[str, Any]):
        """Counts how often it is compared."""

        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return super().__eq__(other)

        __hash__ = None  # type: ignore[assignment]

    tables = [Counted(table(f"public.t{n}", status="done", rows_read=1)) for n in range(10_000)]
    one = overview(status(**dump(*tables)), NOW_MS).dumps[0]
    assert (one.tables_done, one.rows) == (10_000, 10_000)
    assert Counted.compared == 0


def test_names_cannot_write_to_the_terminal() -> None:
    bad = [{**REFUSED, "table": "public.\x1b[2J\nx", "reason": "r\x07"}]
    written = status_text(overview(status(refused=bad), NOW_MS))
    assert "\x1b" not in written
    assert "\x07" not in written


def test_a_document_of_an_older_capture_is_shown_as_far_as_it_goes() -> None:
    old = {"leader": "h:1", "updated_ms": NOW_MS, "lag_bytes": 5, "capture": {}, "dumps": []}
    found = overview(old, NOW_MS)
    assert found.severity is Severity.OK
    assert "not asked yet" in status_text(found)


def test_lines_for_a_log_say_what_moves_a_fact_each() -> None:
    running = dump(table(rows_read=100, estimated_rows=400), dump_id="initial")
    found = overview(status(**running, refused=[REFUSED, {**REFUSED, "reason": "a type"}]), NOW_MS)
    assert brief(found) == [
        "up to date at 0/208C0C0; 1,234 records",
        "shop/delta is up to date",
        "initial is running: 0 of 1 tables, 100 rows of about 400 (25%)",
        "public.x is not captured: no key (and 1 more problem: tidelog status CONFIG)",
    ]


def test_lines_for_a_log_come_again_once_they_have_changed() -> None:
    told = ChangedFacts()
    calm = overview(status(), NOW_MS)
    wrong = overview(status(refused=[REFUSED]), NOW_MS)
    assert told.of(calm) == brief(calm)
    assert told.of(calm) == brief(calm)[:1]
    assert told.of(wrong) == [brief(calm)[0], "public.x is not captured: no key"]
    assert told.of(calm) == brief(calm)[:1]
    assert told.of(wrong)[1:] == ["public.x is not captured: no key"]


def test_what_is_said_last_tells_how_far_it_came() -> None:
    running = dump(table(rows_read=100, estimated_rows=400), dump_id="initial")
    assert closing(overview(status(**running), NOW_MS)) == (
        "stopped: the log is captured up to 0/208C0C0; shop/delta is up to date; dump initial "
        "resumes at the next start."
    )


def test_each_table_is_reported_with_its_worst_state() -> None:
    tables = [
        table("public.a", status="done", rows_read=7, finished_ms=NOW_MS - 5000),
        table("public.b", status="running", rows_read=1, estimated_rows=10),
        table("public.c", status="pending"),
    ]
    document = status(
        **dump(*tables), captured=["public.a", "public.b", "public.c", "public.d", "public.x"],
        refused=[REFUSED], failed=[{"table": "public.e", "reason": "away"}],
        activity={"public.a": {"records": 12, "last_ms": NOW_MS}},
    )  # fmt: skip
    found = {each.table: each for each in overview(document, NOW_MS).tables}
    assert {name: each.state.value for name, each in found.items()} == {
        "public.a": "captured", "public.b": "dumping", "public.c": "dump waits",
        "public.d": "captured", "public.e": "dump failed", "public.x": "refused",
    }  # fmt: skip
    assert (found["public.a"].records, found["public.a"].last_record_ms) == (12, NOW_MS)
    assert (found["public.a"].dumped_rows, found["public.a"].dumped_ms) == (7, NOW_MS - 5000)
    assert (found["public.x"].reason, found["public.x"].remedy) == (
        "no key",
        "ALTER TABLE x\nADD k",
    )


def test_a_table_whose_dump_alone_is_refused_is_captured() -> None:
    found = overview(status(refused=[{**REFUSED, "only_dumps": True}]), NOW_MS)
    assert found.problems[0].sentence == "public.x is captured, but not dumped: no key"
    assert found.tables[0].state == "dump failed"
    assert found.tables_refused == 1
    assert "public.x (its dump failed: no key)" in status_text(found)


def test_a_dump_of_some_rows_is_no_dump_of_the_table() -> None:
    part = table("public.a", status="done", where="(condition)", finished_ms=NOW_MS, rows_read=1)
    keys = table("public.b", status="done", key_set="k", finished_ms=NOW_MS, rows_read=1)
    found = overview(status(**dump(part, keys)), NOW_MS).tables
    assert found == ()


def test_a_paused_dump_says_who_paused_it_and_what_it_reads() -> None:
    document = status(
        **dump(
            table(rows_read=3, estimated_rows=9),
            status="paused",
            paused_by="anna@host",
            paused_ms=NOW_MS - 7_200_000,
        )
    )
    found = overview(document, NOW_MS)
    assert found.dumps[0].paused_by == "anna@host"
    assert [(r.table, r.rows, r.estimated_rows) for r in found.dumps[0].reading] == [
        ("public.t", 3, 9)
    ]
    assert found.problems[0].sentence == "Dump d1 is paused by anna@host."
    answer = next(each for each in found.answers if each.name == "paused")
    assert (answer.text, answer.at_ms) == ("dump d1 by anna@host since", NOW_MS - 7_200_000)


@pytest.mark.parametrize(
    "unknown",
    [
        table("public.u", rows_read=50, estimated_rows=0),  # no statistics
        table("public.u", rows_read=50, estimated_rows=40),  # they were old
    ],
)
def test_no_end_of_a_dump_is_reported_that_is_unknown(unknown: dict[str, Any]) -> None:
    known = table(rows_read=10, estimated_rows=100, started_ms=NOW_MS - 10_000)
    found = overview(status(**dump(known, unknown)), NOW_MS).dumps[0]
    assert (found.estimated_rows, found.left_s) == (None, None)


@pytest.mark.parametrize(("chunks", "left_s"), [(2, None), (20, 56_943.0)])
def test_the_first_chunks_of_a_large_dump_do_not_tell_its_end(
    chunks: int, left_s: float | None
) -> None:
    begun = table(rows_read=2, estimated_rows=1000, started_ms=NOW_MS - 10_000, chunks=chunks)
    rest = table("public.u", status="pending", estimated_rows=10_990)
    found = overview(status(**dump(begun, rest)), NOW_MS).dumps[0]
    assert found.left_s == left_s


def test_a_table_that_was_read_up_to_its_estimate_ends_soon() -> None:
    """It has not ended before another chunk found nothing, or the last one's window closed."""
    full = table(rows_read=100, estimated_rows=100, started_ms=NOW_MS - 10_000)
    rest = table("public.u", status="pending", estimated_rows=100)
    found = overview(status(**dump(full, rest)), NOW_MS).dumps[0]
    assert (found.estimated_rows, found.left_s) == (200, pytest.approx(10.0, abs=1))


def test_tables_that_have_not_begun_are_as_large_as_the_others() -> None:
    known = table(rows_read=10, estimated_rows=100, started_ms=NOW_MS - 10_000)
    found = overview(status(**dump(known, table("public.u", status="pending"))), NOW_MS).dumps[0]
    assert (found.estimated_rows, found.left_s) == (None, pytest.approx(190, abs=20))


def test_a_table_without_statistics_is_as_large_as_at_its_last_dump() -> None:
    last = table("public.u", status="done", rows_read=90, finished_ms=NOW_MS - 60_000)
    now = table("public.u", rows_read=30, started_ms=NOW_MS - 10_000)
    dumps = dump(last, dump_id="d0", status="completed")["dumps"] + dump(now)["dumps"]
    found = overview(status(dumps=dumps), NOW_MS).dumps[0]
    assert (found.estimated_rows, found.left_s) == (90, pytest.approx(20.0, abs=2))


def test_a_large_table_that_has_not_begun_is_not_hidden_by_an_empty_one() -> None:
    """At its last dump that was empty, so its size is known though the server has no statistics."""
    before = [
        table("public.empty", status="done", finished_ms=NOW_MS - 60_000),
        table("public.large", status="done", rows_read=9000, finished_ms=NOW_MS - 60_000),
    ]
    small = table("public.s", status="done", rows_read=1000, started_ms=NOW_MS - 10_000)
    waits = [table("public.empty"), table("public.large", status="pending")]
    dumps = dump(*before, dump_id="d0", status="completed")["dumps"]
    dumps += dump(small, *waits)["dumps"]
    found = overview(status(dumps=dumps), NOW_MS).dumps[0]
    assert (found.estimated_rows, found.share) == (10_000, 0.1)
    assert found.left_s == pytest.approx(90, abs=10)
    new = [table("public.new"), table("public.known", status="pending", estimated_rows=9000)]
    found = overview(status(**dump(small, *new)), NOW_MS).dumps[0]
    assert found.estimated_rows is None
    assert found.left_s == pytest.approx(140, abs=15)  # the new one as the mean of the others


def answers(**changes: Any) -> dict[str, str]:
    found = overview(status(**changes), NOW_MS)
    return {each.name: f"{each.severity}: {each.text} {each.at_ms or ''}" for each in found.answers}


def test_when_the_log_is_lost_is_reported_as_a_time() -> None:
    minute = NOW_MS // 60_000 * 60_000
    at_this_rate = answers(**source(lost_in_s=5400.0))["log"]
    assert "ok: the slot keeps 1MiB, with 1GiB to spare; at this rate it is lost in" in at_this_rate
    assert abs(int(at_this_rate.split()[-1]) - minute - 5_400_000) <= 60_000
    assert "enough for about 5 days without capture" in answers(**source(lasts_s=432_000.0))["log"]
    assert "never lost" in answers(**source(spare_bytes=None))["log"]
    assert answers(**source(spare_bytes=0))["log"].startswith("critical: the slot keeps 1MiB, all")
    by_age = source(retained_bytes=None, spare_bytes=None, kept_s=604_800.0, lag_s=3600.0)
    assert "removes its log after 7 days: without capture, what" in answers(**by_age)["log"]


def test_a_log_that_nothing_used_up_is_lost_once_capture_is_down() -> None:
    calm = source(lag_s=0.0, lost_in_s=None, lasts_s=5400.0)
    found = overview(status(updated_ms=NOW_MS - 3_600_000, leader=None, **calm), NOW_MS)
    assert found.source.lost_in_s == 1800.0
    assert "log-nearly-lost" in {each.kind for each in found.problems}
    assert "while capture is down it is lost in 30min, at" in status_text(found)


def test_what_is_asked_first_has_an_answer_each() -> None:
    paused = dump(table(), dump_id="d2", status="paused", paused_by="otto@db")["dumps"]
    found = answers(
        dumps=[*dump(table("public.a"), table("public.b", status="done"))["dumps"], *paused],
        refused=[REFUSED],
        inserts_only=[{**REFUSED, "table": "public.w"}, {**REFUSED, "table": "public.y"}],
        verified={"at_ms": NOW_MS, "compared": 3, "differ": ["public.t in lake", "b in c", "d"]},
        log_paused=PAUSE,
    )
    assert found["tables"].startswith(
        "warning: 3 of 5 with a problem: public.x (not captured: no key), "
        "public.w (captured in part: no key) and 1 more"
    )
    assert "d1 (and 1 more dump): 1 of 2 tables to go; how long is not known" in found["dump"]
    assert found["paused"].strip() == "info: the log by me, dump d2 by otto@db"
    assert found["verify"] == (
        f"critical: 3 differed: public.t in lake, b in c and 1 more; 3 copies compared at {NOW_MS}"
    )
    calm = answers(verified={"at_ms": NOW_MS, "compared": 1, "differ": []}, captured=["public.t"])
    assert calm["verify"] == f"ok: 1 copy, equal to the source, compared at {NOW_MS}"
    assert calm["tables"].strip() == "ok: 1 table, all captured whole"
    without = {"at_ms": NOW_MS, "compared": 1, "differ": [], "left_out": ["public.t in lake"]}
    assert answers(verified=without)["verify"] == (
        f"ok: 1 left out; 1 copy, equal to the source, compared at {NOW_MS}"
    )
    ended = {"at_ms": NOW_MS, "compared": 1, "differ": [], "not_compared": ["public.t in lake"]}
    assert answers(verified=ended)["verify"] == (
        "warning: 1 not compared: public.t in lake; 1 copy, equal to the source, compared at "
        f"{NOW_MS}"
    )
    assert calm["dump"].strip() == "ok: none runs"
    assert "paused" not in calm
    assert answers()["verify"].startswith("info: nothing was compared yet")
    assert not overview({"leader": None, "standbys": [], "capture": None}, NOW_MS).answers


def test_status_fits_a_terminal_and_tears_no_word_apart() -> None:
    many = [{**REFUSED, "table": f"public.t{at}", "since_ms": 0} for at in range(9)]
    found = overview(status(refused=many, **source(error="nothing answers")), NOW_MS)
    shown = [line.plain for line in fit_rows(status_rows(found), 80, 12, "CONFIG | more")]
    assert len(shown) == 12
    assert max(map(len, shown)) <= 80
    assert shown[0] == "✗ The database does not answer: nothing answers"
    assert shown[-1].endswith("more lines: tidelog status CONFIG | more")
    assert any(line.startswith("source ") for line in shown)
    whole = [line.plain for line in fit_rows(status_rows(found), 80, 100, "CONFIG")]
    assert "more lines" not in whole[-1]
    words = " ".join("\n".join(lines(found)).split())
    assert " ".join("\n".join(whole).replace("→ ", "").split()) == words


def test_deliveries_are_reported_below_their_output() -> None:
    told_of = output(
        committed_ms=NOW_MS - 5000, batch_s=3.0, batch_records=12_000, records_per_s=4000.0,
        rejected=7, rejected_ms=NOW_MS - 3 * 86_400_000,
        failed="the broker\nis down " + "x" * 500, failed_ms=NOW_MS - 60_000,
    )  # fmt: skip
    found = overview(status(outputs=[told_of]), NOW_MS)
    assert found.problems == ()  # the failure is over, and the rejections are days old
    told_first = "output   shop/delta is up to date; 7 in dead letters\n"
    below = status_text(found).split(told_first)[1].split("\n")[0]
    assert below.endswith("12,000 records in 3s, 4,000 a second")  # it works again
    about, large = "; what waits takes about 5min", {"batch_records": 120_000, "batch_s": 30.0}
    for waiting, batch, told in (
        (200_000, {}, ""),
        (1_200_000, {}, ""),  # the batch is too small
        (1_200_000, large, about),
    ):
        behind = status(outputs=[{**told_of, **batch, "behind_records": waiting}])
        told_now = status_text(overview(behind, NOW_MS))
        [line] = [each for each in told_now.split("\n") if "4,000 a second" in each]
        assert line.endswith(f"4,000 a second{told}")
    failing = {**told_of, "behind_records": 5, "failed_ms": NOW_MS - 1000}
    below = status_text(overview(status(outputs=[failing]), NOW_MS)).split(
        "(5 records), and fails"
    )[1]
    below = below.split("\n")[1]
    assert "4,000 a second; failed last at" in below
    assert "the broker is down" in below
    assert below.endswith("…")
    assert len(below) < 300
    empty = overview(status(outputs=[{**told_of, "batch_records": 0}]), NOW_MS)
    assert status_text(empty).split(told_first)[1].split("\n")[0].endswith(", without records")


def test_a_start_is_reported_with_its_progress_and_no_command_starts_a_second_process() -> None:
    unborn = {"configured_outputs": ["shop/lake"], "outputs": [], "capture": None}
    begins = {"leader": None, "failing": [], "pipelines": [], **unborn}
    starts = [{"holder": "h:1", "since_ms": NOW_MS, "starting": "capture"}]
    spark = [{"holder": "h:1", "since_ms": NOW_MS, "starting": "Spark"}]
    found = overview({**begins, "starting": starts, "starting_pipeline": spark}, NOW_MS)
    assert found.verdict == "Starting: capture, Spark, nothing is delivered yet."
    assert found.severity is Severity.INFO
    tables = [table(f"public.t{n}", status="done" if n < 3 else "pending") for n in range(12)]
    dumps = {**dump(*tables), "configured_outputs": ["shop/lake"], "outputs": []}
    found = overview(status(**dumps, starting_pipeline=spark), NOW_MS)
    text = "Starting: Spark, 3 of 12 tables dumped, nothing is delivered yet."
    assert next(lines(found)) == f"· {text}"
    found = overview(status(**dumps, pipelines=[LED]), NOW_MS)
    assert found.verdict == text.replace("Spark", "the first batch")
    for each in found.problems:
        assert "tidelog run" not in each.remedy
        assert "tidelog capture" not in each.remedy
        assert "tidelog pipeline" not in each.remedy


def test_a_start_tells_when_its_dump_ends_only_at_a_rate_that_was_seen() -> None:
    tables = [
        table("public.a", status="done", rows_read=100, started_ms=NOW_MS - 10_500),
        table("public.b", rows_read=100, estimated_rows=400, started_ms=NOW_MS - 5_000),
        table("public.c", status="pending", estimated_rows=500),
    ]
    unborn = {"configured_outputs": ["shop/lake"], "outputs": [], "pipelines": [LED]}
    told_ = overview(status(**unborn, **dump(*tables)), NOW_MS).verdict
    assert "1 of 3 tables dumped (about 40s left), nothing is delivered yet." in told_
    paused = overview(status(**unborn, **dump(*tables, status="paused")), NOW_MS)
    assert "left" not in paused.verdict
    tables[1]["estimated_rows"] = 0  # of unknown size
    assert "left" not in overview(status(**unborn, **dump(*tables)), NOW_MS).verdict


def test_a_process_that_will_stand_by_is_no_start() -> None:
    starts = [{"holder": "h:9", "since_ms": NOW_MS, "starting": "capture"}]
    spark = [{"holder": "h:9", "since_ms": NOW_MS, "starting": "Spark"}]
    more = {"configured_outputs": ["shop/delta"], "pipelines": [LED], "starting_pipeline": spark}
    found = overview(status(starting=starts, **more), NOW_MS)
    assert found.severity is Severity.OK


def test_a_retry_is_promised_only_where_a_process_delivers() -> None:
    stopped = {"outputs": [output(state="stopped", error="no rights")]}
    [problem] = overview(status(**stopped, pipelines=[LED]), NOW_MS).problems
    assert problem.remedy == "Tidelog retries by itself once that is fixed."
    [problem] = overview(status(**stopped, pipelines=[{**LED, "leader": None}]), NOW_MS).problems
    assert problem.remedy == "Fix that, then start the pipeline again; no process delivers now."


def test_a_copy_that_is_gone_differs_no_more() -> None:
    verified = {"at_ms": NOW_MS, "compared": 2, "differ": ["public.t in delta", "public.u in kept"]}
    there = {"captured": ["public.t", "public.u"], "configured_outputs": ["shop/delta"]}
    found = overview(status(verified=verified, **there), NOW_MS)
    assert [each.about for each in found.problems] == ["public.t in delta"]
    there["captured"] = ["public.u"]
    found = overview(status(verified=verified, **there), NOW_MS)
    assert found.severity is Severity.OK
    assert found.verified is not None
    assert found.verified.differ == ()


def test_a_failure_without_anything_to_deliver_is_over() -> None:
    assert overview(status(outputs=[output(failed="x", failed_ms=NOW_MS)]), NOW_MS).problems == ()


def test_a_full_disk_leads_to_what_is_written_about_it() -> None:
    full = "cannot write log: No space left on device. Check free space there, and make room."
    for trouble, entry in ((full, "storageerror"), ("no route", "connectionlosterror")):
        failing = [{"holder": "h:1", "trouble": trouble, "since_ms": NOW_MS}]
        found = overview(status(leader=None, failing=failing), NOW_MS).problems
        assert [each.page for each in found if each.kind == "capture-fails"] == [
            f"docs/failure-modes.md#{entry}"
        ]


def test_log_that_is_lost_has_no_date() -> None:
    """MySQL's expiry is days away, and the binlogs were purged by hand."""
    end = {"error": "GapError", "reason": "purged", "at_ms": NOW_MS - 1000}
    kept = source(kept_s=604_800.0, lag_s=1.0)
    for ended, said in (
        (None, "is lost in 7 days"),
        (end, "what capture needs next is lost: tidelog"),
    ):
        shown = status(leader=None, ended={"capture": ended}, **kept)
        written = status_text(overview(shown, NOW_MS))
        assert said in written, written
        assert ("tidelog reset CONFIG" in written) is (ended is not None)
