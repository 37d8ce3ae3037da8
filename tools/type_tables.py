"""Write the tables of types in docs/sources from the code, or with --check say what is out of date.

What a column becomes is the schema builder's to say; here are only the types' names and the remarks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog.codecs.columns.values import arrow_type
from tidelog.codecs.mysql.charsets import BINARY_COLLATION
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.spark.formats.shapes import spark_type

PAGES = Path(__file__).parent.parent / "docs" / "sources"
BEGIN = "<!-- types: written by `make docs` from the code -->\n"
END = "<!-- /types -->\n"
UTF8MB4 = 45  # utf8mb4_general_ci, in both flavours
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
    Row(("datetime", "datetime(6)"), "microseconds; no time zone; zero dates are NULL",
        "`datetime(0…6)`"),
    Row(("timestamp", "timestamp(6)"), "microseconds, an instant; zero dates are NULL",
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


def pages() -> dict[Path, str]:
    found = {}
    for flavor in Flavor:
        path = PAGES / f"{flavor.value}.md"
        before, rest = path.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        found[path] = before + BEGIN + "".join(table(flavor)) + END + after
    return found


def main() -> int:
    stale = 0
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"docs/sources/{path.name} is out of date: run `make docs`")
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/sources/{path.name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
