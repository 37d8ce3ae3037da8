"""What a condition of the signal table may be: comparisons of columns, and nothing that acts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.capture.notifications import Notification
from tidelog.control.mailbox import Mailbox
from tidelog.control.plain_conditions import FUNCTIONS, checked, names
from tidelog.control.signal_intake import SignalIntake, SignalTable
from tidelog.ports import SignalSeen
from tidelog.state.sqlite import SqliteState

PLAIN = [
    "color='blue'",
    "id > 5 AND id <= 10",
    "not (a = 1 or b <> -2.5e3)",
    "status IN ('open', 'paid') AND total BETWEEN 1 AND 2",
    "name NOT LIKE 'a%' ESCAPE '!' OR name ILIKE '%é%'",
    "deleted IS NULL AND paid IS NOT TRUE",
    "a IS NOT DISTINCT FROM b",
    "created >= DATE '2024-01-01' AND at < timestamp '2024-01-01 00:00:00'",
    "created > '2024-01-01'::date AND CAST(total AS numeric(10, 2)) = 1",
    '"Order Id" = 1 AND `b c` = 2',
    "(a, b) = (1, 'x''y')",
    "lower(name) || 'x' = 'ax' AND coalesce(a, b, 0) % 2 = 0",
    "größe = 1",
    "x::double precision < 1",
    "true",
]
REFUSED = [
    "pg_read_file('/etc/passwd') IS NOT NULL",
    "pg_terminate_backend(pg_backend_pid())",
    "pg_catalog.pg_sleep(1) IS NULL",
    '"pg_sleep"(1) IS NULL',
    "orders.pg_sleep IS NULL",
    "(orders).x = 1",
    "id IN (SELECT 1)",
    "EXISTS (SELECT 1)",
    "a = ANY (ARRAY[1])",
    "CASE WHEN a THEN b END",
    "id = 1; DROP TABLE t",
    "id = 1 -- x",
    "id = 1 - - 1",
    "id = 1 /* x */",
    "id = 1 # x",
    "E'\\x41' = a",
    "e'a' = a",
    "_utf8'a' = a",
    "N'a' = a",
    "a = $$x$$",
    "a = 'x\\' OR pg_sleep(1) IS NULL OR ''",
    'a = "x\\" OR pg_sleep(1) IS NULL OR ""',
    "a ~ '(a|a)*b'",
    "a SIMILAR TO 'x'",
    "a REGEXP 'x'",
    "a OPERATOR(pg_catalog.=) 1",
    "@@version = 1",
    "@x := 1",
    "'pg_class'::regclass = 1",
    "a::my_type = 1",
    "a COLLATE evil = 1",
    "a = 1) OR (b = 2",
    "a = 'x' 'y'",
    "a = 1 b",
    "",
    "a = {x}",
    "sleep(5)",
    "load_file('/etc/passwd') is not null",
    "lower (select 1)",
    "x = 0x41",
    "(" * 100 + "a" + ")" * 100,
]


@pytest.mark.parametrize("condition", PLAIN)
def test_comparisons_are_taken_as_they_are(condition: str) -> None:
    assert checked(condition) == condition


@pytest.mark.parametrize("condition", REFUSED)
def test_all_else_is_refused_without_being_shown(condition: str) -> None:
    with pytest.raises(ValueError, match="tidelog dump --where") as refused:
        checked(condition)
    assert "passwd" not in str(refused.value)
    assert "pg_" not in str(refused.value)


PIECES = [*"()=<>+-*/%,'\"`.;:[]{}@#$\\ab1 ", "pg_sleep", "lower", "select", "::", "int", "'t'"]


@given(st.lists(st.sampled_from(PIECES), max_size=25))
@example(["lower", " ", "(", "a", ")", "=", "'t'"])
@example([".", "1 "])
@example(["ab1 ", "a", "$"])
@example(["a", "$"])
def test_whatever_is_taken_calls_only_what_is_allowed(pieces: list[str]) -> None:
    condition = "".join(pieces)
    try:
        checked(condition)
    except ValueError:
        return
    outside = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`", " 't' ", condition)
    outside = re.sub(r"[^\W\d]\w*\$[\w$]*", " w ", outside)  # names may have a dollar
    outside = re.sub(r"\d*\.\d+|\d+\.", " 1 ", outside)  # numbers
    called = {word.lower() for word in re.findall(r"(\w+)\s*\(", outside)}
    assert called <= {*FUNCTIONS, "int", "and", "or", "not", "in", "is", "1"}
    assert not set(outside) & set(";.[]{}@#$\\")
    assert "--" not in outside
    assert "/*" not in outside


def test_what_a_condition_names() -> None:
    condition = (
        """A = lower(b) AND "c""D" IN ('x', e) OR date '2026-01-01' > date AND mod(f, 2) = """
        """CAST(g AS text) AND `h` IS NOT TRUE AND i::date = a AND \u212a = 1"""
    )
    expected = ("a", "b", '"c""D"', "e", "date", "f", "g", "`h`", "i", "\u212a")
    assert names(condition) == expected


def test_the_signal_table_takes_plain_conditions_only(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    mailbox, told = Mailbox(state), list[Notification]()
    table = SignalTable(SignalIntake(mailbox, told.append), "postgres:1:shop", state)
    form = (
        '{"data-collections": ["public.t"], "additional-conditions": '
        '[{"data-collection": "public.t", "filter": "%s"}]}'
    )
    for place, condition in enumerate(["pg_sleep(1) IS NULL", "SELECT * FROM t WHERE f(a)", "a>1"]):
        signal = SignalSeen(f"s{place}", "execute-snapshot", form % condition, place, 0)
        table.on_signals([signal])
    table.deliver()
    assert [notice.dump_id for notice in told] == ["s0", "s1"]
    assert all("calls a function" in notice.data["reason"] for notice in told)
    taken = []
    mailbox.handle_pending(lambda command_id, command: taken.append(command) or {})
    assert [command.conditions for command in taken] == [{"(?i:public.t)": "a>1"}]
    assert [command.plain for command in taken] == [True]
    state.close()
