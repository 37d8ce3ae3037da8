"""Columns of information_schema as the table map shows them, and back."""

from __future__ import annotations

import pytest

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import bytes_per_character, charset_of
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import UnknownTypeError, binlog_column, column_of_map, fits, labels


def column(text: str, octets: int | None = None, collation: int | None = None, name: str = "c"):
    kind = text.split("(")[0].split(" ")[0]
    return binlog_column(
        name, kind, text, flavor=Flavor.MYSQL, octet_length=octets, collation_id=collation
    )


@pytest.mark.parametrize(
    ("text", "octets", "collation", "code", "meta", "logical"),
    [
        ("tinyint(1)", None, None, 1, 0, "int16"),
        ("int(10) unsigned", None, None, 3, 0, "int64"),
        ("bigint unsigned", None, None, 8, 0, "decimal(20,0)"),
        ("decimal(10,2)", None, None, 246, 10 << 8 | 2, "decimal(10,2)"),
        ("decimal(39,2)", None, None, 246, 39 << 8 | 2, "text"),
        ("bit(12)", None, None, 16, 1 << 8 | 4, "int64"),
        ("year(4)", None, None, 13, 0, "int16"),
        ("datetime(6)", None, None, 18, 6, "timestamp"),
        ("timestamp", None, None, 17, 0, "timestamptz"),
        ("time(3)", None, None, 19, 3, "text"),
        ("time /* 5.5 binary format */", None, None, 11, 0, "text"),
        ("char(10)", 40, 255, 254, 0xFE28, "text"),
        ("char(255)", 1020, 255, 254, (0xFE ^ 0x30) << 8 | 0xFC, "text"),
        ("binary(16)", 16, None, 254, 0xFE10, "bytes"),
        ("varchar(20)", 80, 255, 15, 80, "text"),
        ("mediumtext", 1, 33, 252, 3, "text"),
        ("tinyblob", 255, None, 252, 1, "bytes"),
        ("json", None, None, 245, 4, "text"),
        ("point", None, None, 255, 4, "bytes"),
        ("vector(3)", None, None, 242, 4, "bytes"),
        ("enum('a','b')", 1, 255, 247, 0xF701, "text"),
        ("set('a','b','c','d','e','f','g','h','i')", 17, 8, 248, 0xF802, "text"),
        ("varchar(9) /*M!100301 COMPRESSED*/", 36, 255, 141, 37, "text"),
        ("varchar(9) /*!100301 COMPRESSED*/", 36, 255, 141, 37, "text"),
    ],
)
def test_columns_stand_in_the_table_map_as_computed(
    text: str, octets: int | None, collation: int | None, code: int, meta: int, logical: str
) -> None:
    made = column(text, octets, collation)
    assert (made.type_id, types.metadata(made), made.logical) == (code, meta, logical)
    wire_code = types.STRING if code in (types.ENUM, types.SET) else code
    assert fits(made, wire_code, meta)
    assert not fits(made, wire_code, meta + 1)
    mapped = column_of_map(
        "c",
        wire_code,
        meta,
        unsigned="unsigned" in text,
        collation_id=types.collation(made),
        members=labels(made) if code in (types.ENUM, types.SET) else (),
        like=made if code in (types.VECTOR, types.GEOMETRY) else None,
    )
    assert mapped == made


def test_labels_are_unescaped_and_escaped_again() -> None:
    text = r"enum('a''b','c\\d','e\nf','','g,h','\\''','\0')"
    made = column(text, 4, 255)
    assert labels(made) == ("a'b", r"c\d", "e\nf", "", "g,h", "\\'", "\0")
    assert made.type_name == text


@pytest.mark.parametrize(("kind", "size"), [("uuid", 16), ("inet6", 16), ("inet4", 4)])
def test_types_that_the_map_cannot_distinguish_follow_the_known_version(
    kind: str, size: int
) -> None:
    known = binlog_column("c", kind, kind, flavor=Flavor.MARIADB)
    code, meta = types.STRING, types.STRING << 8 | size
    assert column_of_map("c", code, meta, collation_id=63, like=known) == known
    assert column_of_map("c", code, meta, collation_id=63).type_name == f"binary({size})"


def test_display_widths_make_no_other_column() -> None:
    assert column("int(11)") == column("int")
    assert column("bigint(20) unsigned") == column("bigint unsigned")


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownTypeError, match=r"column c: .*hyperlog\(3\)"):
        column("hyperlog(3)")
    with pytest.raises(UnknownTypeError, match="241"):
        column_of_map("c", 241, 0)


def test_collations_name_their_character_sets() -> None:
    assert [charset_of(n) for n in (8, 33, 63, 255, 309, 2304, 9999)] == [
        "latin1", "utf8mb3", "binary", "utf8mb4", "utf8mb4", "utf8mb4", None,
    ]  # fmt: skip
    assert [bytes_per_character(n) for n in (8, 33, 54, 255)] == [1, 3, 4, 4]
