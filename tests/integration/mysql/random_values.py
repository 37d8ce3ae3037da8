"""Column types of both servers, and random SQL literals for them."""

from __future__ import annotations

import json
import random
from typing import Any

TYPES = (
    "tinyint", "tinyint unsigned", "smallint", "smallint unsigned", "mediumint",
    "mediumint unsigned", "int", "int unsigned", "bigint", "bigint unsigned", "int(6) zerofill",
    "decimal(1,0)", "decimal(10,2)", "decimal(65,30)", "decimal(9,9)", "decimal(38,10) unsigned",
    "decimal(20,0)", "decimal(18,9)", "decimal(12,3) zerofill", "float", "double",
    "float unsigned", "float(7,3)", "double(10,2)", "bit(1)", "bit(7)", "bit(8)", "bit(63)",
    "bit(64)", "year", "date", "time", "time(1)", "time(2)", "time(3)", "time(4)", "time(5)",
    "time(6)", "datetime", "datetime(1)", "datetime(2)", "datetime(3)", "datetime(4)",
    "datetime(5)", "datetime(6)", "timestamp null", "timestamp(1) null", "timestamp(3) null",
    "timestamp(6) null", "char(10)", "char(255)", "varchar(20)", "varchar(300)", "tinytext",
    "text", "mediumtext", "longtext", "binary(5)", "binary(255)", "varbinary(20)",
    "varbinary(300)", "tinyblob", "blob", "mediumblob", "longblob",
    r"enum('a','b','it''s','é')", r"enum('x\\y','n\nn','','c,c')", r"set('a','b\\','c''c','dé')",
    "json", "point", "geometry", "linestring", "geometrycollection",
)  # fmt: skip
MYSQL_9_TYPES = ("vector(3)", "vector(7)")
MARIADB_TYPES = (
    "uuid", "inet6", "inet4", "varchar(100) compressed", "text compressed", "blob compressed",
    "varbinary(254) compressed", "varbinary(255) compressed",
)  # fmt: skip
CHARSETS = (
    "big5", "latin2", "dec8", "cp850", "latin1", "hp8", "koi8r", "swe7", "ascii", "ujis", "sjis",
    "cp1251", "hebrew", "tis620", "euckr", "latin7", "koi8u", "gb2312", "greek", "cp1250", "gbk",
    "cp1257", "latin5", "armscii8", "utf8mb3", "ucs2", "cp866", "keybcs2", "macce", "macroman",
    "cp852", "utf8mb4", "utf16", "utf16le", "cp1256", "utf32", "geostd8", "cp932", "eucjpms",
)  # fmt: skip
MYSQL_CHARSETS = ("gb18030",)
LETTERS = (
    "abc zéüßñÄÖ漢字日本語한국어中文АБВабвאבגαβγกขคŁżđŠłİğşָ€ا"
    "–—‘’‚§£¥\u00a0\\~^`{|}@[]#ԱԲ😀ァアー～∥－￠￡￢―ⅰ№"
)


def literal(kind: str, chance: random.Random) -> str:
    """A random SQL literal that a column of this type takes."""
    if chance.random() < 0.1:
        return "NULL"
    base = kind.split("(")[0].split(" ")[0]
    numbers = [int(n) for n in kind.partition("(")[2].partition(")")[0].split(",") if n.isdigit()]
    positive = "unsigned" in kind or "zerofill" in kind
    if base in _BITS:
        return _integer(_BITS[base], positive, chance)
    if base == "decimal":
        return _decimal(numbers[0], numbers[1], positive, chance)
    if base in ("float", "double"):
        return _float(kind, positive, chance)
    if base == "bit":
        top = 2 ** numbers[0] - 1
        return str(chance.choice([0, 1, top, chance.randint(0, top)]))
    if base in ("time", "datetime", "timestamp"):
        digits = "".join(chance.choice("0019") for _ in range(numbers[0] if numbers else 0))
        return f"'{chance.choice(_TEMPORALS[base])}{'.' + digits if digits else ''}'"
    if base in _FIXED:
        return str(chance.choice(_FIXED[base]))
    if base in ("enum", "set"):
        return str(chance.randint(0, 4 if base == "enum" else 15))
    if base in _SHAPES:
        point = f"{chance.randint(-9, 9)} {chance.random()}"
        return f"ST_GeomFromText('{_SHAPES[base].format(point)}', 0)"
    if base == "vector":
        return f"TO_VECTOR('{[chance.uniform(-9, 9) for _ in range(numbers[0])]}')"
    if base == "json":
        return quoted(json.dumps(_document(chance, 0), ensure_ascii=chance.random() < 0.5))
    if base == "uuid":
        return f"'{chance.getrandbits(128):032x}'"
    if base == "inet4":
        return "'" + ".".join(chance.choice(["0", "1", "255", "192"]) for _ in range(4)) + "'"
    if base == "inet6":
        groups = ":".join(chance.choice(["0", "0", "1", "ffff", "db8"]) for _ in range(8))
        return f"'{chance.choice([groups, '::ffff:1.2.3.4', '::1.2.3.4', '::', '::1', '1::'])}'"
    size = chance.choice([0, 1, (numbers or [60])[0] // 2, (numbers or [60])[0]])
    if "char" in base or "text" in base:
        return quoted("".join(chance.choice("abc é漢😀'\\ \tZ  ") for _ in range(size)))
    return f"X'{bytes(chance.choice(bytes(2) + b' ' + bytes([255, 128]) + b'ab') for _ in range(size)).hex()}'"  # noqa: E501


def document(chance: random.Random) -> Any:
    """A random JSON document that is an object or an array."""
    return {f"k{i}": _document(chance, 1) for i in range(chance.randint(0, 5))} or [1, "two"]


def json_change(column: str, held: Any, chance: random.Random) -> str:
    """An expression that changes a document somewhere, as the server may log in parts."""
    path = "$"
    while isinstance(held, dict | list) and (path == "$" or chance.random() < 0.6):
        if isinstance(held, dict):
            key = chance.choice([*held, "new"])
            path += "." + json.dumps(key, ensure_ascii=False)
            held = held.get(key)
        else:
            index = chance.randint(0, len(held))
            path += f"[{index}]"
            held = held[index] if index < len(held) else None
    where = quoted(path)
    what = chance.randrange(4)
    if what == 0 and path != "$":
        return f"JSON_REMOVE({column}, {where})"
    value = quoted(json.dumps(_document(chance, 2), ensure_ascii=False))
    name = chance.choice(["JSON_SET", "JSON_REPLACE"])
    return f"{name}({column}, {where}, CAST({value} AS json))"


def text(chance: random.Random, most: int) -> str:
    """A random text of letters that most character sets lack some of, as a literal."""
    return quoted("".join(chance.choice(LETTERS) for _ in range(chance.randint(0, most))))


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


_SHAPES = {
    "point": "POINT({})", "geometry": "POINT({})", "linestring": "LINESTRING({}, 1 1)",
    "geometrycollection": "GEOMETRYCOLLECTION(POINT({}))",
}  # fmt: skip
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_FIXED = {
    "year": [1901, 2155, 2024, 1970, "'0000'"],
    "date": [
        "'0000-00-00'", "'2024-00-00'", "'2024-05-00'", "'1000-01-01'", "'9999-12-31'",
        "'2024-02-29'", "'2024-02-31'", "'0000-05-01'", "'0001-01-01'",
    ],
}  # fmt: skip
_TEMPORALS = {
    "time": [
        "-838:59:58", "838:59:58", "00:00:00", "-00:00:00", "-00:00:01", "12:34:56",
        "-100:00:01", "-01:02:03",
    ],
    "datetime": [
        "0000-00-00 00:00:00", "2024-00-00 00:00:00", "1000-01-01 00:00:00",
        "9999-12-31 23:59:59", "2024-02-29 12:13:14",
    ],
    "timestamp": [
        "0000-00-00 00:00:00", "1970-01-01 00:00:01", "2038-01-19 03:14:06",
        "2024-02-29 12:13:14", "2000-12-31 23:59:59", "2001-03-01 00:00:00",
    ],
}  # fmt: skip


def _integer(bits: int, positive: bool, chance: random.Random) -> str:
    low, high = (0, 2**bits - 1) if positive else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return str(chance.choice([0, 1, low, high, chance.randint(low, high)]))


def _decimal(precision: int, scale: int, positive: bool, chance: random.Random) -> str:
    digits = "".join(chance.choice("0123456789") for _ in range(chance.choice([1, precision])))
    digits = "9" * precision if chance.random() < 0.1 else digits.rjust(precision, "0")
    whole, fraction = digits[: precision - scale] or "0", digits[precision - scale :] or "0"
    sign = "-" if not positive and chance.random() < 0.4 else ""
    return f"{sign}{whole}.{fraction}"


def _float(kind: str, positive: bool, chance: random.Random) -> str:
    values = [0.0, 1.5, -2.25, chance.uniform(-1000, 1000), 12.5]
    if kind == "double":
        values += [1.7976931348623157e308, 5e-324, 123456.789, 0.1]
    if kind == "float":
        values += [3.4e38, 1e-30, 0.1]
    value = chance.choice(values)
    return repr(abs(value) if positive else value)


_NUMBERS = [
    0, 1, -1, 127, -32768, 32767, 65535, 65536, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63),
    2**64 - 1, 0.5, 1.0, -1.5e300, 1e15, 1e16, 123456789012345.6, 1e-5, 1e-14, 1e-15, 1e-16,
    1e100, 0.1, -0.0, 100.0, 1.25e14, 3e15,
]  # fmt: skip


def _document(chance: random.Random, depth: int) -> Any:
    what = chance.randrange(7 if depth < 3 else 5)
    if what == 0:
        return chance.choice([None, True, False])
    if what in (1, 2):
        return chance.choice([*_NUMBERS, chance.random()])
    if what in (3, 4):
        letters = 'abc"\\/\n\t\x01é漢😀\x7f\b\f\r\x1f'
        return "".join(chance.choice(letters) for _ in range(chance.choice([0, 1, 10, 200])))
    if what == 5:
        return [_document(chance, depth + 1) for _ in range(chance.choice([0, 1, 3, 20]))]
    return {
        "".join(chance.choice('abcé"') for _ in range(chance.randint(0, 4))): _document(
            chance, depth + 1
        )
        for _ in range(chance.choice([0, 1, 3, 10]))
    }
