"""Every type as a column of the key and of the row, dumped and logged, in every format: a value has
one text wherever it stands, two values have two, and the text is what the database itself says.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.event_messages import capturing, events, messages, wait_for
from tests.integration.mysql import random_values
from tests.integration.test_types import CASES, PINNED
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer
from tests.unit.spark.avro_rows import decoded

from tidelog.config import Config
from tidelog.outputs.formatters.avro import Avro
from tidelog.outputs.formatters.json_formats import CloudEvents, Debezium, Flat
from tidelog.ports import Formatter
from tidelog.spark.formats.json_values import ValueModes

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 60
TWIN = 1000  # from a dumped row's number to that of its twin, which is logged
KEY_PARTS = 12
EXACT = ValueModes("string", "isostring", "hex", "precise")
DOUBLE = ValueModes("double", "nanoseconds", "base64-url-safe")
HANDLINGS = (ValueModes(), EXACT, DOUBLE, ValueModes("precise", "adaptive_time_microseconds"))

NO_KEYS = (
    "json", "point", "line", "lseg", "box", "path", "polygon", "circle", "jsonpath",
    "text compressed", "blob", "tinytext", "mediumtext", "longtext", "geometry", "compressed",
    "tinyblob", "mediumblob", "longblob", "linestring",
)  # fmt: skip
"""Types, or words of them, that no key takes."""
OWN_TYPES = ("mood", "mood[]", "positive", "amount", "pair")  # of tests.integration.test_types
OTHER_FORMS = re.compile(r".*\[\]|bit.*|varbit|point|linestring|geometry.*|float.*")
"""Types whose JSON is no text of the database's: `tests.integration.test_event_texts` has them."""
_FAR = re.compile(r"-?infinity|29424[7-9].*|2942[5-7].*")
_INSTANT = re.compile(r"(\d+)-(\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d+))?)?(?:\+00)?( BC)?")

Rows = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Typed:
    sql: str
    literals: list[str]
    in_key: bool
    parts: int = 1


@dataclass(frozen=True)
class Table:
    name: str
    types: Sequence[Typed]

    @property
    def create(self) -> str:
        keys = [f"k{i}" for i, one in enumerate(self.types) if one.in_key]
        columns = [f"{name} {self.types[int(name[1:])].sql} NOT NULL" for name in keys]
        columns += [f"v{i} {one.sql}" for i, one in enumerate(self.types)]
        listed = ", ".join(column.replace(" null NOT NULL", " NOT NULL") for column in columns)
        return (
            f"CREATE TABLE {self.name} (x int, {listed}, PRIMARY KEY ({', '.join(['x', *keys])}))"
        )

    def insert(self, number: int) -> str:
        """A row of its own, or from `TWIN` on the twin of one.

        The twins are written anew, not selected: MariaDB 10.11.5 loses the texts of `varchar
        COMPRESSED` in an INSERT … SELECT of a table into itself.
        """
        cells = [one.literals[number % TWIN] for one in self.types]
        keys = [cell for cell, one in zip(cells, self.types, strict=True) if one.in_key]
        return f"INSERT INTO {self.name} VALUES ({', '.join([str(number), *keys, *cells])})"


def tables(types: Sequence[Typed]) -> list[Table]:
    """As many types in one as a key holds."""
    found: list[list[Typed]] = [[]]
    for one in types:
        if sum(each.parts for each in found[-1]) + one.parts > KEY_PARTS:
            found.append([])
        found[-1].append(one)
    return [Table(f"t{n}", each) for n, each in enumerate(found)]


@contextmanager
def captured(
    made: Sequence[Table], execute: Callable[[str], object], directory: Path, url: str, of: str
) -> Iterator[Config]:
    """The tables with rows that were dumped, and their twins, which were logged."""
    for table in made:
        execute(table.create)
        for number in range(ROWS):
            execute(table.insert(number))
    with capturing(directory, kind_of(url), url, of) as config:
        wait_for(config, ROWS * len(made))
        for table in made:
            for number in range(ROWS):
                execute(table.insert(TWIN + number))
        wait_for(config, 2 * ROWS * len(made))
    yield config


def kind_of(url: str) -> str:
    return url.split(":")[0].replace("postgresql", "postgres")


def in_json(
    config: Config,
    table: Table,
    form: Formatter,
    row_of: Callable[[Any], Any] = lambda value: value["after"],
) -> tuple[Rows, Rows]:
    """Keys and rows."""
    keys, rows = {}, {}
    for key, value in messages(config, form, table.name):
        row = row_of(json.loads(value or b""))
        keys[row["x"]] = json.loads(key or b"")
        rows[row["x"]] = {name: row[name] for name in row if not name.startswith("__")}
    return keys, rows


def debezium(handling: ValueModes) -> Debezium:
    return Debezium(tombstones=False, handling=handling)


def plain(schema: str) -> str:
    """Without what has fastavro make Python's dates and instants, which hold four digits' years."""
    return re.sub(r'"logicalType": ?"(date|(local-)?timestamp-micros)"', '"x": ""', schema)


def in_avro(config: Config, table: Table) -> tuple[Rows, Rows]:
    target, batches = events(config, table.name)
    schemas = Avro().schemas(target)
    by_id = {1: plain(schemas.key or ""), 2: plain(schemas.value)}
    target = replace(target, schema_ids=(1, 2))
    keys, rows = {}, {}
    for batch in batches:
        for message in Avro(tombstones=False).format(target, batch).to_pylist():
            after = decoded(message["value"], by_id.__getitem__)["after"]
            keys[after["x"]] = decoded(message["key"], by_id.__getitem__)
            rows[after["x"]] = after
    return keys, rows


def check_ways(keys: Rows, rows: Rows, table: Table, how: object) -> None:
    """A key is its row's, a dumped row its logged twin, a value the same in key and row."""
    assert len(rows) == 2 * ROWS
    for number, row in rows.items():
        twin = rows[number % TWIN + TWIN]
        for name, value in row.items():
            if name == "x":
                continue
            kind = table.types[int(name[1:])].sql
            assert repr(value) == repr(twin[name]), (kind, how, number)
            if name in keys[number]:
                assert repr(keys[number][name]) == repr(value), (kind, how)
                beside = row["v" + name[1:]]
                alike = (repr(value), f"-{value!r}" if value == 0 else "")  # a key's -0 is 0
                assert beside is None or repr(beside) in alike, (kind, how)


def check_texts(rows: Rows, texts: Rows, table: Table) -> None:
    """In mode `EXACT`."""
    for i, one in enumerate(table.types):
        if OTHER_FORMS.fullmatch(one.sql):
            continue
        for number, theirs in texts.items():
            value, text = rows[number][f"v{i}"], theirs[f"v{i}"]
            assert says(one.sql, value, text), (one.sql, value, text)


def check_distinct(rows: Rows, texts: Rows, table: Table) -> None:
    for i, one in enumerate(table.types):
        seen: dict[str, str | None] = {}
        for number, theirs in texts.items():
            value, text = rows[number][f"v{i}"], theirs[f"v{i}"]
            if value is not None and not (text and _FAR.fullmatch(text)):
                assert seen.setdefault(repr(value), text) == text, (one.sql, value)


def check_avro(rows: Rows, texts: Rows, table: Table) -> None:
    """What has a text there; the ways of times and bytes are those of JSON."""
    for i, one in enumerate(table.types):
        if OTHER_FORMS.fullmatch(one.sql) or re.match(
            r"date|time|year|.*(bin|blob|bytea)", one.sql
        ):
            continue
        for number, theirs in texts.items():
            value, text = rows[number][f"v{i}"], theirs[f"v{i}"]
            if not isinstance(value, bool | int | float | None):
                value = f"{value:f}" if isinstance(value, Decimal) else str(value)
            assert says(one.sql, value, text), (one.sql, value, text)


def check_doubles(rows: Rows, texts: Rows, table: Table) -> None:
    """In mode `DOUBLE` a decimal is the float that is nearest to it."""
    for i, one in enumerate(table.types):
        if re.fullmatch(r"(numeric|decimal)\b[^]]*", one.sql):
            for number, theirs in texts.items():
                value, text = rows[number][f"v{i}"], theirs[f"v{i}"]
                if text in (None, "NaN"):
                    assert value in (None, text), (one.sql, value)
                    continue
                assert float(value) == float(text or ""), (one.sql, value, text)
                assert isinstance(value, float) or "Infinity" in value, (one.sql, value)


def says(kind: str, value: Any, text: str | None) -> bool:
    """Is it what the database calls ``text``?"""
    base = kind.split("(")[0].split(" ")[0]
    if text is None:
        return value is None
    if base in ("date", "timestamp", "timestamptz", "datetime"):
        return bool(_FAR.fullmatch(text)) or instant(value) == iso(text)
    if base == "time":
        return bool(value == text.replace("24:00:00", "00:00:00") + "Z" or value == text + "Z")
    if base == "boolean":
        return value is {"t": True, "f": False}[text]
    if isinstance(value, int):
        return value == int(text)
    if isinstance(value, float):
        if shown := re.search(r",(\d+)\)", kind):  # the server shows so many digits of what it has
            return f"{value:.{shown[1]}f}" == f"{float(text):.{shown[1]}f}"
        exact = np.float32 if base == "real" else np.float64
        return repr(exact(value)) == repr(exact(text))
    if base == "decimal":
        return Decimal(value) == Decimal(text)
    if any(word in base for word in ("bytea", "binary", "blob")):
        return str(value) == text.lower().removeprefix("\\x")
    return bool(value == text)


def instant(value: str | None) -> str | None:
    """Without the zeros that no digit follows."""
    if value is None:
        return None
    found = value.removesuffix("Z")
    return found.rstrip("0").rstrip(".") if "." in found else found


def iso(text: str) -> str | None:
    """A date or an instant as isostring has it; None of a date that no calendar has."""
    found = _INSTANT.fullmatch(text)
    assert found is not None, text
    if found[2] in ("00-00", "05-00", "02-31") or (found[1] == "0000"):
        return None
    year = 1 - int(found[1]) if found[5] else int(found[1])
    years = f"{year:+05d}" if year < 0 else f"+{year}" if year > 9999 else f"{year:04d}"
    clock = f"T{found[3]}.{found[4] or 0}" if found[3] else ""
    return instant(f"{years}-{found[2]}{clock}")


def check(config: Config, made: Sequence[Table], texts_of: Callable[[Table], Rows]) -> None:
    for table in made:
        texts = texts_of(table)
        assert len(texts) == ROWS
        for handling in HANDLINGS:
            check_ways(*in_json(config, table, debezium(handling)), table, handling)
        check_ways(*in_json(config, table, Flat(), lambda value: value), table, "flat")
        cloud = in_json(config, table, CloudEvents(), lambda value: value["data"]["after"])
        check_ways(*cloud, table, "cloudevents")
        keys, rows = in_avro(config, table)
        check_ways(keys, rows, table, "avro")
        check_avro(rows, texts, table)
        _, rows = in_json(config, table, debezium(EXACT))
        check_texts(rows, texts, table)
        _, rows = in_json(config, table, debezium(DOUBLE))
        check_doubles(rows, texts, table)
        _, rows = in_json(config, table, debezium(ValueModes()))
        check_distinct(rows, texts, table)


def seeded() -> random.Random:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def postgres_types(chance: random.Random) -> list[Typed]:
    found = []
    for case in CASES:
        literals: list[str] = []
        while len(literals) < ROWS and case.sql not in OWN_TYPES:
            text = case.generate(chance)
            # NaN is no decimal.
            if case.logical.startswith("decimal") and text == "NaN":
                continue
            literals.append("'" + text.replace("'", "''") + f"'::{case.sql}")
        if literals:
            found.append(Typed(case.sql, literals, case.sql not in (*NO_KEYS, "xid8")))
    return found


def test_postgres(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    made = tables(postgres_types(seeded()))
    with psycopg.connect(database, options=PINNED, autocommit=True) as sql:

        def texts_of(table: Table) -> Rows:
            columns = ", ".join(
                f"CASE WHEN num_nulls(v{i}) = 0 THEN format('%s', v{i}) END"
                for i, _ in enumerate(table.types)
            )
            found = sql.execute(f"SELECT x, {columns} FROM {table.name} WHERE x < {TWIN}")
            return {x: {f"v{i}": text for i, text in enumerate(cells)} for x, *cells in found}

        with captured(made, sql.execute, tmp_path, database, "public.*") as config:
            check(config, made, texts_of)


def mysql_types(chance: random.Random, flavor: str) -> list[Typed]:
    kinds = [*random_values.TYPES, *(random_values.MARIADB_TYPES if flavor == "mariadb" else ())]
    found = []
    for kind in kinds:
        base = kind.split("(")[0]
        literals: list[str] = []
        while len(literals) < ROWS:
            value = random_values.literal(kind, chance)
            if base == "time" and chance.random() < 0.5:
                hours = chance.choice([24, 240, chance.randrange(838)])
                clock = f"{hours}:{chance.randrange(60)}:{chance.randrange(60)}"
                value = f"'{chance.choice(['', '-'])}{clock}'"
            if value != "NULL" and not ("timestamp" in kind and "0000-00" in value):
                literals.append(value)
        keyed = base not in ("text", "json", "point") and not any(word in kind for word in NO_KEYS)
        wide = re.search(r"\((255|300)\)", kind) is not None
        found.append(Typed(kind, literals, keyed, 5 if wide else 1))
    return found


def test_mysql(mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path) -> None:
    name = mysql_family_database
    made = tables(mysql_types(seeded(), mysql_family.flavor))
    with mysql_family.connect(name) as session, session.cursor() as sql:
        sql.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")

        def texts_of(table: Table) -> Rows:
            columns = ", ".join(
                f"hex(v{i})" if re.search("binary|blob|bit|point|linestring|geometry", one.sql)
                else f"CAST(v{i} AS CHAR)"
                for i, one in enumerate(table.types)
            )  # fmt: skip
            sql.execute(f"SELECT x, {columns} FROM {table.name} WHERE x < {TWIN}")
            found = sql.fetchall()
            return {x: {f"v{i}": text for i, text in enumerate(cells)} for x, *cells in found}

        url = mysql_family.dsn(name)
        with captured(made, sql.execute, tmp_path, url, f"{name}.*") as config:
            check(config, made, texts_of)
