"""`source.exclude_columns`: its patterns, and schemas without the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.capture.catalogue_watch import changes_rows
from tidelog.config import parse_config
from tidelog.errors import ConfigError, ExcludedKeyError
from tidelog.model.patterns import check_column_pattern, matching_columns, unmatched_columns
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SchemaSeen
from tidelog.sources.mysql.catalogue import storage as mysql_storage
from tidelog.sources.postgres.catalogue import storage as postgres_storage
from tidelog.sources.table_settings import ColumnExclusion, settings_version

USERS = TableName("public", "users")
NAMES = ("id", "name", "ssn", "a.b")


def schema(identity_kind: str = "d", key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = tuple(Column(name, 25, -1, "text", "text") for name in NAMES)
    identity = NAMES if identity_kind == "f" else key
    return TableSchema(USERS, 1, columns, key, identity, identity_kind, "pgoutput")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["public.users.ssn"], ("ssn",)),
        (["*.*.ssn"], ("ssn",)),
        (["*.ssn"], ("ssn",)),
        (["public.*.s*n", "other.users.name"], ("ssn",)),
        (["public.users.*", "!public.users.id"], ("name", "ssn", "a.b")),
        (["!*.*.name", "public.users.n*"], ()),
        (["public.users.a.b"], ("a.b",)),
        (['"public".users.ssn'], ("ssn",)),
        (["public.user.ssn", "public.users.SSN", "ssn", "users.ssn", "public.users"], ()),
        (["public.*", "public.us*"], ()),  # of tables
        ([], ()),
    ],
)
def test_columns_that_patterns_match(patterns: list[str], expected: tuple[str, ...]) -> None:
    assert matching_columns(patterns, USERS, NAMES) == expected


def test_case_is_ignored_where_the_source_ignores_it() -> None:
    table = TableName("Shop", "users")
    assert matching_columns(["shop.*.ssn"], table, ["SSN"], ignore_case=True) == ("SSN",)
    assert unmatched_columns(["SHOP.users.ssn", "x.y.z"], {table: ["Ssn"]}, ignore_case=True) == [
        "x.y.z"
    ]
    assert unmatched_columns(["!shop.users.ssn"], {table: ["ssn"]}) == ["!shop.users.ssn"]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("public.users", "expected namespace.table.column"),
        ("ssn", "expected namespace.table.column"),
        (r"public\.users\.ssn", "instead of this one: public.users.ssn"),
        ("public.users.%", r"any text is \*"),
        ('public.users."ssn"', "leave out the quotes"),
    ],
)
def test_a_pattern_that_can_match_no_column_is_refused(pattern: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_column_pattern(pattern)
    text = f"source: {{kind: postgres, url: 'postgresql://x/y', exclude_columns: [{pattern!r}]}}"
    with pytest.raises(ConfigError, match="exclude_columns"):
        parse_config(f"{text}\nlog: {{path: x}}\nstate: {{url: 'sqlite:///x'}}\n", "c", Path(), {})


@pytest.mark.parametrize(
    ("place", "key", "told"),
    [
        ("source", "exclude_column", "did you mean 'exclude_columns'"),
        ("source", "column.exclude.list", "did you mean 'exclude_columns'"),
        ("output", "exclude_columns", r"steps: \[{drop: \[COLUMN\]}\]"),
    ],
)
def test_who_looks_for_another_option_is_shown_the_right_one(
    place: str, key: str, told: str
) -> None:
    more = {"source": "", "output": ""} | {place: f", {key}: [public.users.ssn]"}
    text = (
        f"source: {{kind: postgres, url: 'postgresql://x/y'{more['source']}}}\n"
        f"log: {{path: x}}\nstate: {{url: 'sqlite:///x'}}\n"
        f"outputs: [{{kind: delta, path: x{more['output']}}}]\n"
    )
    with pytest.raises(ConfigError, match=told):
        parse_config(text, "c", Path(), {})


@pytest.mark.parametrize("identity_kind", ["d", "f", "n"])
def test_a_schema_without_columns_knows_the_whole(identity_kind: str) -> None:
    before = schema(identity_kind)
    found = ColumnExclusion(("public.users.ssn", "*.users.name")).apply(before)
    assert found.column_names == ("id", "a.b")
    assert set(found.identity) <= {"id", "a.b"}
    assert [(each.place, each.column.name) for each in found.excluded] == [(1, "name"), (2, "ssn")]
    assert found.whole == before
    assert TableSchema.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert "excluded" not in before.to_json()  # as it was stored by earlier versions
    assert found.fingerprint != before.fingerprint
    # Another configuration, over a schema that was stored with this one.
    assert ColumnExclusion().apply(found) == before
    assert ColumnExclusion(("public.users.ssn",)).apply(found).column_names == ("id", "name", "a.b")
    numbered = found.numbered(4)
    assert ColumnExclusion(("public.users.ssn", "*.users.name")).apply(numbered) is numbered


@pytest.mark.parametrize(
    ("whole", "pattern"),
    [
        (schema(), "public.users.id"),
        (schema("f", ("ssn", "id")), "*.*.ssn"),
        (schema("i", ("name",)), "*.*.name"),
    ],
)
def test_a_column_by_which_rows_are_matched_is_refused(whole: TableSchema, pattern: str) -> None:
    with pytest.raises(ExcludedKeyError, match="by which its rows are matched") as refused:
        ColumnExclusion((pattern,)).apply(whole)
    assert "add '!public.users' to source.tables" in refused.value.reason


def test_a_column_that_is_shown_again_leads_to_a_dump_and_one_that_is_excluded_does_not() -> None:
    whole = schema().numbered(1)
    less = whole.without({"ssn"}).numbered(2)
    assert changes_rows(SchemaSeen(less, whole)) is None
    assert changes_rows(SchemaSeen(whole, less)) == "columns are no longer excluded"
    columns = [
        Column("renamed" if c.name == "ssn" else c.name, 25, -1, "text", "text")
        for c in whole.columns
    ]
    renamed = TableSchema(USERS, 1, tuple(columns), ("id",), ("id",), "d", "pgoutput", 3)
    assert changes_rows(SchemaSeen(renamed, less)) == "columns were renamed, or dropped and added"


def _postgres(columns: dict[str, str], excluded: list[str]) -> str:
    storage: dict[str, Any] = {"oid": 1, "file": 1, "parts": "", "missing": {}, "published": [1]}
    storage |= {"members": [], "types": {}}
    storage["columns"] = {number: [name, "7", 0] for number, name in columns.items()}
    return json.dumps(storage | ({"excluded": excluded} if excluded else {}))


def _mysql(columns: dict[str, str], excluded: list[str]) -> str:
    text = json.dumps(["InnoDB", "", {name: ["kind", "0"] for name in columns.values()}])
    return mysql_storage.excluding(text, excluded)


@pytest.mark.parametrize(
    ("text", "differ"),
    [
        (_postgres, postgres_storage.rows_may_differ),
        (_mysql, mysql_storage.rows_may_differ),
    ],
)
def test_the_catalogue_shows_that_a_column_is_no_longer_excluded(text: Any, differ: Any) -> None:
    columns = {"1": "id", "2": "ssn", "3": "a"}
    assert not differ(text(columns, []), text(columns, ["ssn"]))
    assert not differ(text(columns, ["ssn"]), text(columns, ["ssn", "a"]))
    assert differ(text(columns, ["ssn"]), text(columns, []))
    assert differ(text(columns, ["ssn", "a"]), text(columns, ["ssn"]))
    dropped = {"1": "id", "3": "a"}
    assert not differ(text(dropped, []), text(columns, ["ssn"]))
    assert not differ(text(columns, ["ssn"]), text(dropped, []))


def test_the_versions_of_tables_change_with_the_configuration() -> None:
    assert settings_version((), {}) == ""
    found = [
        settings_version(("a.b.c",), {}),
        settings_version(("a.b.d",), {}),
        settings_version(("a.b.d",), {"a.b": ("c",)}),
        settings_version((), {"a.b": ("c",)}),
        settings_version((), {"a.b": ("d",)}),
    ]
    assert len({"", *found}) == 6
