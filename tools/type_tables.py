"""Write the tables of types in docs from the code, or with --check say what is out of date.

What a column becomes is the schema builder's to say; here are only the types' names and the remarks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.codecs.columns.values import arrow_type
from tidelog.codecs.mysql.charsets import BINARY_COLLATION
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.codecs.wire_formats import native_logicals
from tidelog.kinds.sections import TypesSection
from tidelog.model.schema import LOGICAL_TYPES, Column, TableName, TableSchema, struct_of
from tidelog.sources.postgres.catalogue.schemas import logical_type
from tidelog.spark.formats.shapes import spark_type

DOCS = Path(__file__).parent.parent / "docs"
BEGIN = "<!-- types: written by `make docs` from the code -->\n"
END = "<!-- /types -->\n"
UTF8MB4 = 45  # utf8mb4_general_ci, in both flavors
HEAD = """\
| {name} type | logical type | Arrow type | Spark type | remarks |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Types of a table's row, as one writes them in CREATE TABLE; all become the same.

    Attributes:
        types: the first is shown and asked for, the others too.
        remarks: how exact, and what else there is to know.
        shown: instead of ``types``, for families of types.
        flavors: which servers have them.
    """

    types: tuple[str, ...]
    remarks: str
    shown: str = ""
    flavors: tuple[Flavor, ...] = tuple(Flavor)

    @property
    def names(self) -> str:
        return self.shown or ", ".join(f"`{name}`" for name in self.types)


MYSQL = (Flavor.MYSQL,)
MARIADB = (Flavor.MARIADB,)

ROWS = (
    Row(("bit(1)",), ""),
    Row(("bit(2)", "bit(63)"), "the bits as a number", "`bit(2)` to `bit(63)`"),
    Row(("bit(64)",), "the bits as a number"),
    Row(
        ("tinyint", "tinyint(1)", "tinyint unsigned", "smallint"),
        "`boolean` is a name of `tinyint(1)`: a number, since it may hold 2",
    ),
    Row(("smallint unsigned", "mediumint", "mediumint unsigned", "int"), ""),
    Row(("int unsigned", "bigint"), ""),
    Row(("bigint unsigned",), "every value; no signed 64-bit type could hold it"),
    Row(("decimal(38,10)", "decimal(10,0)", "decimal(10,2) unsigned"), "every digit",
        "`decimal(p,s)`, p ≤ 38"),
    Row(("decimal(65,30)",), "every digit, as a SELECT prints it", "`decimal(p,s)`, p > 38"),
    Row(("float", "float unsigned"), "bit for bit: a SELECT of the column alone would print fewer "
        "digits", "`float`"),
    Row(("double", "double unsigned"), "bit for bit", "`double`, `real`"),
    Row(("year",), "0 for the zero year"),
    Row(("date",), "[zero dates](#zero-dates) are NULL, but not in keys"),
    Row(("datetime", "datetime(6)"), "microseconds; no time zone; zero dates as for `date`",
        "`datetime(0…6)`"),
    Row(("timestamp", "timestamp(6)"), "microseconds, an instant; zero dates as for `date`",
        "`timestamp(0…6)`"),
    Row(("time", "time(3)", "time(6)"), "`-838:59:59` to `838:59:59`, with the column's number of "
        "digits after the point: no time type has negative values", "`time(0…6)`"),
    Row(("char(10)", "varchar(100)", "tinytext", "text", "mediumtext", "longtext"),
        "of any character set, as UTF-8; `char` without the padding, as a SELECT gives it",
        "`char`, `varchar`, `tinytext`, `text`, `mediumtext`, `longtext`"),
    Row(("binary(10)",), "padded with zero bytes to its length", "`binary(n)`"),
    Row(("varbinary(100)", "tinyblob", "blob", "mediumblob", "longblob"), "the bytes",
        "`varbinary`, `tinyblob`, `blob`, `mediumblob`, `longblob`"),
    Row(("enum('a','b')",), "the label; empty for the number 0, which the server stores for "
        "what is no label", "`enum`"),
    Row(("set('a','b')",), "the labels, joined by commas in the order of their definition", "`set`"),
    Row(("json",), "as a SELECT prints it, with the keys in the server's order; or, by "
        "[option](../reference/types.md#types-by-option), VARIANT", "", MYSQL),
    Row(("json",), "its text as it was written: `json` is a name of `longtext` with a check", "",
        MARIADB),
    Row(("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
         "multipolygon"),
        "WKB, without the SRID", "`geometry`, `point`, `polygon`, …"),
    Row(("uuid",), "as a SELECT prints it; MariaDB 10.7 or later", "", MARIADB),
    Row(("inet6",), "as a SELECT prints it; MariaDB 10.5 or later", "", MARIADB),
    Row(("inet4",), "as a SELECT prints it; MariaDB 10.10 or later", "", MARIADB),
    Row(("varchar(100) compressed", "text compressed"), "as the type without `compressed`",
        "`varchar … compressed` and the like", MARIADB),
    Row(("vector(3)",), "the bytes: little-endian 32-bit floats; MySQL 9", "`vector`", MYSQL),
    Row(("vector(3)",), "the bytes: little-endian 32-bit floats; MariaDB 11.7 or later", "`vector`",
        MARIADB),
)  # fmt: skip


def rows_of(flavor: Flavor) -> list[Row]:
    return [row for row in ROWS if flavor in row.flavors]


def logical(column_type: str, flavor: Flavor) -> str:
    """The logical type of a column that was made with this type."""
    kind = column_type.split("(")[0].split()[0]
    if kind == "json" and flavor is Flavor.MARIADB:
        kind = "longtext"
    texts = kind in ("char", "varchar", "enum", "set") or kind.endswith("text")
    return binlog_column(
        "c",
        kind,
        column_type,
        flavor=flavor,
        octet_length=400,
        collation_id=UTF8MB4 if texts else BINARY_COLLATION,
    ).logical


def table(flavor: Flavor) -> Iterator[str]:
    yield HEAD.format(name={Flavor.MYSQL: "MySQL", Flavor.MARIADB: "MariaDB"}[flavor])
    for row in rows_of(flavor):
        if flavor is not Flavor.MYSQL and row.flavors == tuple(Flavor):
            continue  # MariaDB's page names what differs from MySQL's
        found = {logical(name, flavor) for name in row.types}
        if len(found) != 1 and "decimal" not in row.names:
            raise ValueError(f"{row.names}: {found}")
        kind = logical(row.types[0], flavor)
        arrow, spark = str(arrow_type(kind)), spark_type(kind).simpleString()
        if row.shown.startswith("`decimal") and kind.startswith("decimal"):
            kind, arrow, spark = "decimal(p,s)", "decimal128(p, s)", "decimal(p,s)"
        yield f"| {row.names} | `{kind}` | {arrow} | {spark} | {row.remarks} |\n"


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A type of PostgreSQL: its spelling, oid and typmod, and the structure of a user's type."""

    name: str
    oid: int
    mod: int = -1
    structure: str = ""

    def schema(self) -> TableSchema:
        column = Column("cells", self.oid, self.mod, self.name, logical_type(self.oid, self.mod))
        found = (("cells", self.structure),) if self.structure else ()
        return schema_of(column, "pgoutput", found)


def schema_of(column: Column, wire: str, structures: Any = ()) -> TableSchema:
    table = TableName("public", "grids")
    return TableSchema(table, 1, (column,), (), (), "n", wire, 1, (), structures)


USERS = 16_384  # the first oid of types that users define
PLACE = struct_of([("street", "text"), ("number", "int32")])
POSTGRES = (
    PostgresType("boolean", 16),
    PostgresType("smallint", 21),
    PostgresType("integer", 23),
    PostgresType("bigint", 20),
    PostgresType("oid", 26),
    PostgresType("real", 700),
    PostgresType("double precision", 701),
    PostgresType("numeric(10,2)", 1700, 10 << 16 | 2 + 4),
    PostgresType("numeric(50,10)", 1700, 50 << 16 | 10 + 4),
    PostgresType("numeric", 1700),
    PostgresType("date", 1082),
    PostgresType("timestamp without time zone", 1114),
    PostgresType("timestamp with time zone", 1184),
    PostgresType("bytea", 17),
    PostgresType("text", 25),
    PostgresType("uuid", 2950),
    PostgresType("time without time zone", 1083),
    PostgresType("interval", 1186),
    PostgresType("jsonb", 3802),
    PostgresType("integer[]", 1007),
    PostgresType("numeric(10,2)[]", 1231, 10 << 16 | 2 + 4),
    PostgresType("text[]", 1009),
    PostgresType("int4range", 3904),
    PostgresType("numrange", 3906),
    PostgresType("tsrange", 3908),
    PostgresType("datemultirange", 4535),
)
"""Types that a server has; a test compares them with one."""
BY_OPTION = {
    **{f"`{each.name}`": each.schema() for each in POSTGRES},
    "`hstore`": PostgresType("hstore", USERS).schema(),
    "composite `(street text, number integer)`": PostgresType("c", USERS, structure=PLACE).schema(),
    "array of that": PostgresType("c[]", USERS, structure=f"array({PLACE})").schema(),
    **{
        f"`{kind}` of MySQL": schema_of(
            binlog_column(
                "cells", kind, kind, flavor=Flavor.MYSQL, octet_length=400, collation_id=UTF8MB4
            ),
            "binlog",
        )
        for kind in ("json", "time")
    },
}
OPTIONS: dict[str, Any] = {  # values of the option beside text
    "arrays": "native",
    "dimensions": {"public.grids.cells": 2},
    "hstore": "map",
    "ranges": "struct",
    "composites": "struct",
    "interval": "struct",
    "time": "time",
    "numeric": {"decimal": [38, 18]},
    "json": "variant",
}
OPTION_HEAD = """\
| type | `types` | logical type | Spark type |
|---|---|---|---|
"""
LOGICAL_HEAD = """\
| logical type | Arrow type | Spark type |
|---|---|---|
"""
DEFAULT_HEAD = """\
| PostgreSQL type | logical type | Arrow type | Spark type |
|---|---|---|---|
"""


def logical_by(schema: TableSchema, **options: Any) -> str:
    """The logical type of a column with these values of the option ``types``."""
    given = {"arrays": "text", "hstore": "text"} | options
    found = native_logicals(schema, TypesSection.model_validate(given).column_types())
    return found.get("cells", schema.columns[0].logical)


def defaults() -> Iterator[str]:
    """What is not text without the option."""
    yield DEFAULT_HEAD
    for each in POSTGRES:
        kind = logical_by(each.schema())
        if kind != "text":
            yield f"| `{each.name}` | `{kind}` | {arrow_type(kind)} | {spark_of(kind)} |\n"


def logicals() -> Iterator[str]:
    yield LOGICAL_HEAD
    for kind in (*LOGICAL_TYPES, "decimal(10,2)"):
        yield f"| `{kind}` | {arrow_type(kind)} | {spark_of(kind)} |\n"


def options() -> Iterator[str]:
    """Each type whose columns have another type with some value of the option."""
    yield OPTION_HEAD
    standard = TypesSection().model_dump(by_alias=True)
    for shown, schema in BY_OPTION.items():
        for name, value in OPTIONS.items():
            needs = {} if "[]" not in shown and "array" not in shown else {"arrays": "native"}
            before = logical_by(schema, **(needs if name != "arrays" else {}))
            kind = logical_by(schema, **(needs | {name: value}))
            if kind != before and (name != "dimensions" or shown == "`integer[]`"):
                asked = value if isinstance(value, str) else f"{value}".replace("'", "")
                default = " (default)" if standard[name] == value else ""
                yield f"| {shown} | `{name}: {asked}`{default} | `{kind}` | `{spark_of(kind)}` |\n"


def spark_of(logical: str) -> str:
    return spark_type(logical).simpleString()


def pages() -> dict[Path, str]:
    tables = {
        DOCS / "sources" / "mysql.md": [table(Flavor.MYSQL)],
        DOCS / "sources" / "mariadb.md": [table(Flavor.MARIADB)],
        DOCS / "sources" / "postgresql.md": [defaults()],
        DOCS / "reference" / "types.md": [logicals(), options()],
    }
    found = {}
    for path, written in tables.items():
        first, *rest = path.read_text(encoding="utf-8").split(BEGIN)
        for lines, part in zip(written, rest, strict=True):
            first += BEGIN + "".join(lines) + END + part.split(END)[1]
        found[path] = first
    return found


def main() -> int:
    stale = 0
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"docs/{path.relative_to(DOCS)} is out of date: run `make docs`")
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{path.relative_to(DOCS)}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
