"""The script of `tidelog check --sql`: what may be run at once, and what is only shown."""

from __future__ import annotations

from tidelog.sources.findings import ADMINISTRATOR, CAPTURE, SUPERUSER, Finding, fix_script


def test_parts_follow_the_order_of_what_was_found_and_name_who_runs_them() -> None:
    lines = list(
        fix_script(
            [
                Finding("a", "error", "no a", "GRANT a;", SUPERUSER),
                Finding("b", "error", "no b", "CREATE b;"),
                Finding("c", "ok", "there is c", "CREATE c;"),
                Finding("d", "warning", "no d", "GRANT d;", ADMINISTRATOR),
                Finding("e", "warning", "no e", "put e into the configuration"),
            ]
        )
    )
    assert [line for line in lines if line.startswith("-- as ")] == [
        f"-- as {SUPERUSER}:", f"-- as {CAPTURE}:", f"-- as {ADMINISTRATOR}:",
    ]  # fmt: skip
    assert [line for line in lines if line and not line.startswith("--")] == [
        "GRANT a;", "CREATE b;", "GRANT d;",
    ]  # fmt: skip
    assert lines[-3:] == ["-- by hand:", "-- e: no e", "--   put e into the configuration"]


def test_a_failure_without_a_fix_is_not_left_out() -> None:
    findings = [
        Finding("connection", "error", "nothing answers there"),
        Finding("clock", "warning", "it differs"),
    ]
    assert list(fix_script(findings)) == ["", "-- by hand:", "-- connection: nothing answers there"]


def test_what_a_person_should_weigh_is_never_run() -> None:
    drop = Finding("t", "error", "it is in the way", "DROP t;\nCREATE t;", "app", by_hand=True)
    assert list(fix_script([drop])) == [
        "", "-- by hand:", "-- t: it is in the way", "--   as app:", "--   DROP t;",
        "--   CREATE t;",
    ]  # fmt: skip
    assert drop.remedy == "-- as app:\nDROP t;\nCREATE t;"


def test_names_cannot_leave_a_comment() -> None:
    bad = "x\nDROP TABLE t;"
    for by_hand in (False, True):
        found = Finding(bad, "error", bad, "CREATE t;", bad, by_hand=by_hand)
        assert not [line for line in fix_script([found]) if "\n" in line]
