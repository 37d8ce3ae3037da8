"""Patterns that exclude, and patterns that are written as in other tools."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.cli import main
from tidelog.config import parse_config
from tidelog.control.commands import StartDump, TableSelection
from tidelog.errors import ConfigError
from tidelog.model.patterns import (
    all_but,
    check_listed,
    dump_command,
    excludes,
    exclusion,
    matches,
    overlap,
    pattern_of,
    patterns_without_table,
)
from tidelog.model.schema import TableName

A, B, SECRET = (TableName("public", name) for name in ("a", "b", "secret"))
TABLES = [A, B, SECRET]
PARTS = ("", "a", "b", "ab", "ba", ".", "a.b", "aab")
NAMES = [TableName(x, y) for x, y in itertools.product(PARTS, PARTS) if x and y]

part = st.sampled_from(["a", "b", "*", "a*", "*b", "a.b", "*.b", "a*b", "ab*"])
pattern = st.tuples(st.sampled_from(["", "", "!"]), part, st.just("."), part).map("".join)
patterns = st.lists(pattern, min_size=1, max_size=3)


def chosen(*given: str) -> list[TableName]:
    return [table for table in TABLES if matches(given, table)]


def test_what_one_pattern_excludes_no_other_selects() -> None:
    assert chosen("public.*", "!public.secret") == [A, B]
    assert chosen("!public.secret", "public.secret", "*") == [A, B]
    assert chosen("*", "!public.*") == []
    assert chosen("!public.secret") == []
    assert excludes(["*", "!public.s*"], SECRET)
    assert not excludes(["*", "!public.s*"], A)


def test_only_exclusions_mean_all_but_where_no_pattern_means_all() -> None:
    assert all_but(["!public.secret"]) == ("*", "!public.secret")
    assert all_but([]) == ()
    assert all_but(["public.a", "!public.b"]) == ("public.a", "!public.b")
    command = StartDump(dump_id="d", tables=("!public.secret",))
    assert TableSelection().select(command.tables, TABLES) == [A, B]
    assert TableSelection().select(["public.b", "*", "!*.secret"], TABLES) == [B, A]


def test_a_namespace_in_quotes_is_taken_as_it_is() -> None:
    odd, other = TableName("a.b", "c"), TableName("a", "b.c")
    assert [t for t in (odd, other) if matches(['"a.b".*'], t)] == [odd]
    assert [t for t in (odd, other) if matches(["*", '!"a.b".c'], t)] == [other]
    bang = TableName("!a", "b")
    assert str(bang) == '"!a".b'
    assert TableName.parse(str(bang)) == bang
    assert matches([str(bang)], bang)


def test_what_matches_nothing_is_found_with_and_without_an_exclamation_mark() -> None:
    given = ["public.*", "!public.secrte", "publc.*", "!*.secret", "publc.*"]
    assert patterns_without_table(given, TABLES) == ["!public.secrte", "publc.*"]


@given(patterns, patterns)
@settings(max_examples=300)
def test_lists_overlap_if_a_table_is_selected_by_both(some: list[str], others: list[str]) -> None:
    both = any(matches(some, table) and matches(others, table) for table in NAMES)
    if both:
        assert overlap(some, others)
    if not overlap(some, others):
        assert not both


@pytest.mark.parametrize(
    ("some", "others", "expected"),
    [
        (["public.*", "!public.audit"], ["public.audit"], False),
        (["public.*", "!public.audit"], ["public.audit", "public.x"], True),
        (["public.*", "!public.au*"], ["*.audit"], False),
        (["public.*", "!public.a*"], ["*.audit"], False),
        (["public.*", "!*.audit"], ["public.audit*"], True),
        (["*", "!shop.*"], ["shop.*"], False),
        (["*", "!shop.*"], ["shop*.*"], True),
        (["*", "!*.t"], ["shop.*"], True),
        (["*", "!*.t"], ["shop.a.t"], True),  # a.t in shop is not t
        (["!public.a"], ["public.a"], False),
    ],
)
def test_exclusions_keep_outputs_of_one_place_apart(
    some: list[str], others: list[str], *, expected: bool
) -> None:
    assert overlap(some, others) == overlap(others, some) == expected


def test_many_tables_and_exclusions_are_compared_in_no_time() -> None:
    tables = [f"public.table_{number:04}" for number in range(500)]
    without = [f"!{table}" for table in tables]
    assert not overlap(["public.*", *without], tables)
    assert overlap(["public.*", *without[1:]], tables)


FOREIGN = [
    (r"public\..*", "public.*"),
    (r"public\.audit_.*", "public.audit_*"),
    (r"^public\.audit$", "public.audit"),
    ("public..*", "public.*"),
    ("public.(a|b)", "one pattern for each table"),
    (r"public\.t\d+", "one pattern for each table"),
    ("public.{a,b}", "one pattern for each table"),
    ("public.t[0-9]+", "one pattern for each table"),
    ("public.%", "public.*"),
    ('public."Orders"', "public.Orders"),
    ('"public"."Orders"', "public.Orders"),
    ("`shop`.`orders`", "shop.orders"),
    ("-public.audit", "!public.audit"),
    ("!!public.audit", "!public.audit"),
    ("public.a,public.b", "public.a, public.b"),
    ("! public.audit", "public.audit"),
    ("public.audit ", "public.audit"),
]
CONFIG = """
source: {{kind: postgres, url: "postgresql://u@h/d", tables: {source}}}
log: {{path: ./log}}
outputs: [{{kind: files, path: ./out, tables: {output}}}]
"""


def config_of(source: str, output: str = '["*.*"]') -> Any:
    return parse_config(CONFIG.format(source=source, output=output), "t.yaml", Path(), {})


@pytest.mark.parametrize(("given", "right"), FOREIGN)
def test_the_syntax_of_another_tool_is_refused_with_ours(
    given: str, right: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted = "'" + given.replace("'", "''") + "'"
    with pytest.raises(ConfigError, match=r"t\.yaml:2: source\.tables\[1\]: expected") as refused:
        config_of(f"['*.*', {quoted}]")
    assert right in str(refused.value)
    assert refused.value.exit_code == 2
    if given.startswith("-"):
        return  # an option of the command line
    with pytest.raises(SystemExit) as ended:
        main(["dump", str(tmp_path / "t.yaml"), "--table", given])
    assert ended.value.code == 2
    assert right in " ".join(capsys.readouterr().err.split())
    assert check_listed(right.split(", ")[0].removesuffix(" pattern for each table") + ".x")


@pytest.mark.parametrize(
    "text",
    [
        "public.a[1]",
        "public.?x",
        "my.s.t",
        '"my.s".t',
        '"public".100%',
        "!*.t",
        "p.t_(x",
        "p.Sales (2020)",
        r"p.a \\ b",
        "p.a, b",
        "p.a{b}",
    ],
)
def test_odd_names_are_no_syntax_of_another_tool(text: str) -> None:
    assert check_listed(text) == text


ODD = TableName("Ware House", "it's $HOME")


@pytest.mark.parametrize(
    "table",
    [TableName("p", "t"), TableName("a.b", "t"), TableName("50%", "t"), TableName("-", "T"), ODD],
)
def test_every_table_can_be_named_by_a_pattern(table: TableName) -> None:
    for text in (pattern_of(table), f"!{pattern_of(table)}"):
        assert check_listed(text) == text
    assert matches([pattern_of(table)], table)
    assert f"'!{pattern_of(table)}' to source.tables" in exclusion(table)
    command = shlex.split(dump_command(table))
    assert command == ["tidelog", "dump", "CONFIG", "--table", pattern_of(table)]


def test_lists_that_select_nothing_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'source\.tables: patterns with ! only exclude: .*"\*\.\*"'
    ):
        config_of('["!public.audit"]')
    with pytest.raises(ConfigError, match=r"outputs\[0\]\.tables: patterns with ! only exclude"):
        config_of('["*.*"]', '["!public.audit"]')
    with pytest.raises(ConfigError, match="here it names tables"):
        parse_config(
            CONFIG.format(source='["*.*"], keys: {"!public.a": [id]}', output='["*.*"]'),
            "t.yaml",
            Path(),
            {},
        )
    assert config_of('["*.*", "!public.audit"]').source.tables == ["*.*", "!public.audit"]


def test_an_exclusion_without_quotes_is_no_yaml() -> None:
    with pytest.raises(ConfigError, match=r'needs quotes, as "!public\.audit"'):
        config_of('["*.*", !public.audit]')


def test_who_looks_for_another_option_is_shown_this_one() -> None:
    with pytest.raises(ConfigError, match=r'in tables, as "!public\.audit"'):
        config_of('["*.*"], exclude_tables: [public.audit]')
