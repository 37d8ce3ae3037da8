"""Debezium's signals, as its manual shows them, become our commands."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.control.commands import (
    CancelDump,
    LogMessage,
    PauseDump,
    ResumeDump,
    StartDump,
    TableSelection,
    command_from_json,
)
from tidelog.control.debezium import (
    Signal,
    another_dump_id,
    dump_id_of,
    parse,
    parse_line,
)
from tidelog.errors import UsageError
from tidelog.model.schema import TableName

TABLES = [
    TableName("public", "MyFirstTable"),
    TableName("public", "MySecondTable"),
    TableName("public", "My.Table"),
    TableName("schema1", "products"),
    TableName("schema1", "table1"),
    TableName("schema1", "table2"),
    TableName("schema1", "table10"),
    TableName("schemaX1", "odd$name"),
]


def execute(data: Any, signal_id: str = "ad-hoc-1") -> StartDump:
    text = data if isinstance(data, str) else json.dumps(data)
    command = parse(Signal(signal_id, "execute-snapshot", text))
    assert isinstance(command, StartDump)
    assert command_from_json(json.loads(json.dumps(command.to_json()))) == command
    return command


def chosen(command: StartDump | CancelDump, database: str | None = "shop") -> set[str]:
    choice = TableSelection(command.matching, database)
    return {str(t) for t in TABLES if any(choice.is_match(p, t) for p in command.tables)}


def conditions(command: StartDump) -> dict[str, str]:
    choice = TableSelection(command.matching, "shop")
    found = {str(t): choice.first_match(command.conditions, t) for t in TABLES}
    return {table: text for table, text in found.items() if text is not None}


# The examples of the manual, `data` as the databases store it.
EXAMPLES: list[tuple[str, set[str], dict[str, str], str]] = [
    (
        '{"data-collections": ["public.MyFirstTable", "public.MySecondTable"]}',
        {"public.MyFirstTable", "public.MySecondTable"},
        {},
        "incremental",
    ),
    (
        """{"data-collections": ["schema1.table1", "schema1.table2"],
    "type":"incremental",
    "additional-conditions":[{"data-collection": "schema1.table1" ,"filter":"color='blue'"}]}""",
        {"schema1.table1", "schema1.table2"},
        {"schema1.table1": "color='blue'"},
        "incremental",
    ),
    (
        '{"data-collections": ["schema1.products"],"type":"incremental", "additional-conditions":'
        '[{"data-collection": "schema1.products", "filter": "color=blue AND quantity>10"}]}',
        {"schema1.products"},
        {"schema1.products": "color=blue AND quantity>10"},
        "incremental",
    ),
    (
        '{"data-collections": ["public.MyFirstTable"], "type": "INCREMENTAL", '
        '"additional-conditions":[{"data-collection": "public.MyFirstTable", '
        "\"filter\":\"color='blue' AND brand='MyBrand'\"}]}",
        {"public.MyFirstTable"},
        {"public.MyFirstTable": "color='blue' AND brand='MyBrand'"},
        "incremental",
    ),
    (
        '{"type": "blocking", "data-collections": ["schema1.table1", "schema1.table2"], '
        '"additional-conditions": [{"data-collection": "schema1.table1", "filter": "SELECT * FROM '
        '[schema1].[table1] WHERE column1 = 0 ORDER BY column2 DESC"}, {"data-collection": '
        '"schema1.table2", "filter": "SELECT * FROM [schema1].[table2] WHERE column2 > 0"}]}',
        {"schema1.table1", "schema1.table2"},
        {"schema1.table1": "column1 = 0", "schema1.table2": "column2 > 0"},
        "blocking",
    ),
    (
        '{"data-collections": ["public.\\"My.Table\\""]}',
        {"public.My.Table"},
        {},
        "incremental",
    ),
    (  # before version 2.3
        '{"data-collections": ["schema1.table1"], "type": "incremental", '
        '"additional-condition": "color=\'blue\'"}',
        {"schema1.table1"},
        None,  # type: ignore[list-item]
        "incremental",
    ),
]


@pytest.mark.parametrize(("data", "tables", "wheres", "mode"), EXAMPLES)
def test_published_execute_signals_mean_the_same_here(
    data: str, tables: set[str], wheres: dict[str, str] | None, mode: str
) -> None:
    command = execute(data)
    assert chosen(command) == tables
    assert command.mode == mode
    assert command.dump_id == "ad-hoc-1"
    if wheres is None:  # the condition is for every table
        assert set(conditions(command).values()) == {"color='blue'"}
    else:
        assert conditions(command) == wheres


@pytest.mark.parametrize(
    ("expressions", "tables"),
    [
        (["public.MyFirstTable"], {"public.MyFirstTable"}),
        ([r"public\.MyFirstTable"], {"public.MyFirstTable"}),
        ([r"shop.public\.MyFirstTable"], {"public.MyFirstTable"}),
        ([r"other.public\.MyFirstTable"], set()),
        (["public.myfirsttable"], set()),  # an incremental snapshot heeds case
        (["schema1.table1"], {"schema1.table1"}),  # the whole name, not its beginning
        (["schema1.table1", "schema1.table1", r"schema1\.table1"], {"schema1.table1"}),
        ([r"schema1\.table\d"], {"schema1.table1", "schema1.table2"}),
        ([" schema1.table2 "], {"schema1.table2"}),
        (["schemaX1.odd$name"], {"schemaX1.odd$name"}),  # no expression matches: it is a name
        ([".*"], {str(table) for table in TABLES}),
    ],
)
def test_data_collections_are_expressions_of_the_whole_name(
    expressions: list[str], tables: set[str]
) -> None:
    assert chosen(execute({"data-collections": expressions})) == tables


@pytest.mark.parametrize("expression", ["(.|.|.)*!", "((.*)*)*!", "(.?){60}.{60}!", "(?i:(.+)+!)"])
def test_no_expression_takes_long(expression: str) -> None:
    """With Python's `re` each of them would hold up every thread for years."""
    choice = TableSelection("regex", "shop")
    data = {"data-collections": [expression]}
    command = execute(data)
    table = TableName("n" * 63, "t" * 63)
    assert not any(choice.is_match(pattern, table) for pattern in command.tables)
    assert execute({**data, "type": "blocking"}).mode == "blocking"


@pytest.mark.parametrize(
    ("expression", "tables"),
    [
        (r"public\.\QMyFirstTable\E", {"public.MyFirstTable"}),
        (r"\p{Ll}+1\.table[^1]", {"schema1.table2"}),
    ],
)
def test_expressions_of_java_are_understood(expression: str, tables: set[str]) -> None:
    assert chosen(execute({"data-collections": [expression]})) == tables


def test_blocking_takes_lists_in_a_text_and_heeds_no_case() -> None:
    command = execute({"type": "BLOCKING", "data-collections": ["schema1.TABLE1, schema1.table2"]})
    assert chosen(command) == {"schema1.table1", "schema1.table2"}
    assert command.mode == "blocking"


def test_unknown_fields_and_a_surrogate_key_are_taken_as_debezium_takes_them() -> None:
    data = {"data-collections": ["a.b"], "surrogate-key": "n", "colour": [1], "type": None}
    assert execute(data).surrogate_key == "n"
    assert execute({**data, "surrogate-key": " "}).surrogate_key is None


def test_first_condition_that_names_a_table_counts() -> None:
    first = {"data-collection": "SCHEMA1.table1", "filter": "n = 1"}
    others = [{"data-collection": "schema1.*", "filter": "n = 2"}, {"data-collection": "x.y"}]
    command = execute(
        {"data-collections": ["schema1.*"], "additional-conditions": [first, *others]}
    )
    assert conditions(command)["schema1.table1"] == "n = 1"
    assert conditions(command)["schema1.table2"] == "n = 2"


@pytest.mark.parametrize(
    ("data", "tables", "mode"),
    [
        ('{"type":"INCREMENTAL", "data-collections": ["public.MyFirstTable"]}', 1, "incremental"),
        (
            '{"data-collections": ["schema1.table1", "schema1.table2"],\n    "type":"incremental"}',
            2,
            "incremental",
        ),
        ('{"type":"incremental"}', 0, "incremental"),
        ('{"data-collections": []}', 0, "incremental"),
        ('{"type":"blocking"}', 0, "blocking"),
        ("", 0, "incremental"),
        (None, 0, "incremental"),
    ],
)
def test_stop_signals(data: str | None, tables: int, mode: str) -> None:
    command = parse(Signal("ad-hoc-1", "stop-snapshot", data))
    assert isinstance(command, CancelDump)
    assert (len(chosen(command)), command.mode, command.dump_id) == (tables, mode, None)


@pytest.mark.parametrize("data", [None, "", "{}", '{"type": "incremental"}', "not { JSON"])
def test_pause_and_resume_ignore_their_data(data: str | None) -> None:
    assert parse(Signal("x", "pause-snapshot", data)) == PauseDump(by="a signal")
    assert parse(Signal("x", "resume-snapshot", data)) == ResumeDump()


def test_log_signal_tells_where_it_stands() -> None:
    signal = Signal("924e3ff8", "log", '{"message": "Signal message at offset {}"}')
    assert parse(signal, coordinates="17") == LogMessage(message="Signal message at offset 17")
    long = parse(Signal("x", "log", {"message": "y" * 5000}))
    assert isinstance(long, LogMessage)
    assert len(long.message) == 1000


SECRET = "s3cret"


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (SECRET, "{}", "unknown signal type; known are execute-snapshot"),
        ("execute-snapshot", f'{{"message: "{SECRET}"}}', "data is not JSON"),
        ("execute-snapshot", '["a.b"]', "not a JSON object"),
        ("execute-snapshot", "[" * 100_000, "not JSON"),
        ("execute-snapshot", None, "data-collections is missing or empty"),
        ("execute-snapshot", '{"type": "blocking"}', "data-collections is missing or empty"),
        ("execute-snapshot", '{"data-collections": "a.b"}', "a list of texts"),
        ("execute-snapshot", '{"data-collections": ["a.b", 1]}', "a list of texts"),
        ("execute-snapshot", '{"data-collections": ["a.b("]}', "not a regular expression"),
        ("execute-snapshot", '{"data-collections": ["(?!a)b"]}', "neither look-around nor"),
        ("execute-snapshot", '{"data-collections": ["(a)\\\\1"]}', "nor back-references"),
        ("execute-snapshot", '{"data-collections": ["((a{1000}){1000}){9}"]}', "as RE2 has them"),
        ("execute-snapshot", '{"data-collections": ["\\udcff"]}', "valid string"),
        ("stop-snapshot", {"data-collections": ["a"] * 1001}, "more than 1000 patterns"),
        ("execute-snapshot", {"data-collections": ["a" * 1001]}, "at most 1000 characters"),
        (
            "execute-snapshot",
            {
                "data-collections": ["a.b"],
                "additional-conditions": [{"data-collection": "a.b", "filter": "'$a$" * 10**5}],
            },
            "at most 20000 characters",
        ),
        (
            "execute-snapshot",
            {
                "data-collections": ["a.b"],
                "additional-conditions": [
                    {"data-collection": "a.b", "filter": "".join(f"$a{n}$" for n in range(2500))}
                ],
            },
            "not in pairs",
        ),
        ("execute-snapshot", f'{{"data-collections": ["a.b"], "type": "{SECRET}"}}', "blocking"),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": {"a.b": "x"}}',
            "a list of objects",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": [{"filter": "x"}]}',
            "data-collection is missing",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": '
            f'[{{"data-collection": "a.b", "filter": "x = \'{SECRET}"}}]}}',
            "not in pairs",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a.b"], "additional-conditions": '
            '[{"data-collection": "a.b", "filter": "SELECT a, b FROM t"}]}',
            "only SELECT",
        ),
        ("stop-snapshot", '{"data-collections": [3]}', "a list of texts"),
        ("log", "{}", "message is missing"),
    ],
)
def test_malformed_signal_is_refused_without_its_values(
    kind: str, data: Any, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        parse(Signal("id", kind, data))
    assert SECRET not in str(caught.value)


@given(st.text(max_size=300), st.sampled_from(["execute-snapshot", "stop-snapshot", "log", "x"]))
def test_no_data_does_worse_than_be_refused(data: str, kind: str) -> None:
    with contextlib.suppress(UsageError):
        parse(Signal(data, kind, data))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "data-collections",
                        "type",
                        "additional-conditions",
                        "data-collection",
                        "filter",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_does_worse_than_be_refused(data: Any) -> None:
    with contextlib.suppress(UsageError):
        parse(Signal("id", "execute-snapshot", json.dumps(data)))


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"1", "type":"log", "data":{"message": "m"}}',
        '{"id":1, "type":"log", "data":"{\\"message\\": \\"m\\"}", "channelOffset": 5}',
    ],
)
def test_line_of_a_file_is_a_signal(line: str) -> None:
    signal = parse_line(line)
    assert signal.signal_id == "1"
    assert parse(signal) == LogMessage(message="m")


@pytest.mark.parametrize("line", ["", "[]", "{", '{"id": "1"}', '{"type": "log", "id": {}}'])
def test_line_that_is_no_signal_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        parse_line(line)


@given(st.text(), st.text())
def test_dump_is_named_after_its_signal(one: str, other: str) -> None:
    names = dump_id_of(one), dump_id_of(other)
    assert (names[0] == names[1]) == (one == other)
    for name in (*names, another_dump_id(names[0], "01J")):
        assert StartDump(dump_id=name).dump_id == name
    assert dump_id_of(one) == names[0]


@pytest.mark.parametrize("ours", ["initial", "reread", "auto-0123456789ab"])
def test_signal_can_not_take_the_name_of_a_dump_of_ours(ours: str) -> None:
    assert dump_id_of(ours) != ours
