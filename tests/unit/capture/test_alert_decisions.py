"""When a problem, and its end, is reported: once, not at once, and also by the next leader."""

from __future__ import annotations

from tidelog.app.overview.alerts import PROBLEMS_NAMED, AlertHistory, AlertReport, message_of
from tidelog.results import Problem, Severity


def problem(kind: str = "late", severity: Severity = Severity.WARNING, about: str = "") -> Problem:
    return Problem(kind, severity, about, f"{kind} {about}.", "Mend it.", "page")


def kinds(news: AlertReport) -> tuple[list[str], list[str]]:
    return [each["kind"] for each in news.begun], [each["kind"] for each in news.ended]


def looked(
    ledger: AlertHistory, problems: list[Problem], now: float
) -> tuple[list[str], list[str]]:
    """What is told, which then has been."""
    news = ledger.update(problems, now, int(now * 1000))
    ledger.record(news)
    return kinds(news)


def test_what_lasts_is_reported_once_and_so_is_its_end() -> None:
    ledger = AlertHistory(Severity.WARNING, 60)
    assert looked(ledger, [problem()], 0) == ([], [])
    assert looked(ledger, [problem()], 59) == ([], [])
    assert looked(ledger, [problem()], 61) == (["late"], [])
    assert looked(ledger, [problem()], 500) == ([], [])
    assert looked(ledger, [], 501) == ([], [])
    assert looked(ledger, [], 562) == ([], ["late"])
    assert looked(ledger, [], 900) == ([], [])
    assert ledger.reported == []


def test_what_comes_and_goes_is_not_reported() -> None:
    ledger = AlertHistory(Severity.WARNING, 60)
    for now in range(0, 600, 50):
        assert looked(ledger, [problem()] if now % 100 else [], now) == ([], [])


def test_a_gap_in_a_problem_that_was_reported_is_not_its_end() -> None:
    ledger = AlertHistory(Severity.WARNING, 60)
    looked(ledger, [problem()], 0)
    looked(ledger, [problem()], 60)
    looked(ledger, [], 70)
    looked(ledger, [problem()], 100)
    assert looked(ledger, [], 140) == ([], [])
    assert looked(ledger, [], 200) == ([], ["late"])


def test_what_could_not_be_reported_is_tried_again() -> None:
    ledger = AlertHistory(Severity.WARNING, 0)
    assert kinds(ledger.update([problem()], 0, 0)) == (["late"], [])
    assert kinds(ledger.update([problem()], 5, 5)) == (["late"], [])


def test_less_bad_problems_are_not_reported_and_worse_ones_are() -> None:
    ledger = AlertHistory(Severity.CRITICAL, 0)
    both = [problem(), problem("lost", Severity.CRITICAL), problem("held", Severity.INFO)]
    assert looked(ledger, both, 0) == (["lost"], [])
    assert looked(ledger, [problem("lost")], 1) == ([], ["lost"])  # it is only a warning now


def test_each_table_is_a_problem_of_its_own() -> None:
    ledger = AlertHistory(Severity.WARNING, 0)
    looked(ledger, [problem(about="a")], 0)
    news = ledger.update([problem(about="a"), problem(about="b")], 1, 1)
    assert [each["about"] for each in news.begun] == ["b"]


def test_the_next_leader_tells_only_what_is_new_and_what_ended() -> None:
    first = AlertHistory(Severity.WARNING, 0)
    looked(first, [problem(about="a"), problem(about="b")], 0)
    second = AlertHistory(Severity.WARNING, 0)
    second.load(first.reported)
    news = second.update([problem(about="b"), problem(about="c")], 100, 100)
    assert [each["about"] for each in news.begun] == ["c"]
    assert [each["about"] for each in news.ended] == ["a"]


def test_the_text_names_the_first_and_counts_the_others() -> None:
    many = [problem(about=f"t{n}") for n in range(PROBLEMS_NAMED + 5)]
    news = AlertHistory(Severity.WARNING, 0).update(many, 0, 0)
    message = message_of("shop", "host:1", news, 7)
    lines = message["text"].splitlines()
    assert lines[0] == "Tidelog shop"
    assert lines[1] == "warning: late t0. Mend it."
    assert lines[-1] == "… and 5 more: tidelog status"
    assert len(message["begun"]) == PROBLEMS_NAMED + 5


def test_a_problem_that_blinks_is_one_that_lasts() -> None:
    """Two processes take turns in not reaching the database, ten seconds each."""
    ledger = AlertHistory(Severity.WARNING, 60)
    told: list[str] = []
    for now in range(0, 120, 5):
        present = problem(about="ab"[now // 10 % 2])
        told += [each["about"] for each in ledger.update([present], now, now).begun]
    assert set(told) == {"a", "b"}


def test_a_later_report_knows_how_long_it_has_lasted() -> None:
    ledger = AlertHistory(Severity.WARNING, 60)
    for now in range(0, 60, 5):
        ledger.update([problem()], now, now)  # another process leads
    ledger.load([])
    assert kinds(ledger.update([problem()], 61, 61)) == (["late"], [])
