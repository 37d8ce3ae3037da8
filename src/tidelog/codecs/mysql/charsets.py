"""MySQL's and MariaDB's character sets, by the ids of their collations.

The ids are those of ``information_schema.collations`` (MySQL) and
``collation_character_set_applicability`` (MariaDB); both servers use the same ids, and MariaDB has
more from 576 on.
"""

from __future__ import annotations

from typing import Final

BINARY_COLLATION: Final = 63

# name: most bytes of a character, ids
_CHARSETS = {
    "big5": (2, "1 84 1025 1108"),
    "latin2": (1, "2 9 21 27 77 1033 1101"),
    "dec8": (1, "3 69 1027 1093"),
    "cp850": (1, "4 80 1028 1104"),
    "latin1": (1, "5 8 15 31 47-49 94 1032 1071"),
    "hp8": (1, "6 72 1030 1096"),
    "koi8r": (1, "7 74 1031 1098"),
    "swe7": (1, "10 82 1034 1106"),
    "ascii": (1, "11 65 1035 1089"),
    "ujis": (3, "12 91 1036 1115"),
    "sjis": (2, "13 88 1037 1112"),
    "cp1251": (1, "14 23 50-52 1074-1075"),
    "hebrew": (1, "16 71 1040 1095"),
    "tis620": (1, "18 89 1042 1113"),
    "euckr": (2, "19 85 1043 1109"),
    "latin7": (1, "20 41-42 79 1065 1103"),
    "koi8u": (1, "22 75 1046 1099"),
    "gb2312": (2, "24 86 1048 1110"),
    "greek": (1, "25 70 1049 1094"),
    "cp1250": (1, "26 34 44 66 99 1050 1090"),
    "gbk": (2, "28 87 1052 1111"),
    "cp1257": (1, "29 58-59 1082-1083"),
    "latin5": (1, "30 78 1054 1102"),
    "armscii8": (1, "32 64 1056 1088"),
    "utf8mb3": (3, "33 76 83 192-215 223 576-607 1057 1107 1216-1247 2048-2303"),
    "ucs2": (2, "35 90 128-151 159 640-671 1059 1114 1152-1183 2560-2815"),
    "cp866": (1, "36 68 1060 1092"),
    "keybcs2": (1, "37 73 1061 1097"),
    "macce": (1, "38 43 1062 1067"),
    "macroman": (1, "39 53 1063 1077"),
    "cp852": (1, "40 81 1064 1105"),
    "utf8mb4": (4, "45-46 224-247 255-323 608-639 1069-1070 1248-1279 2304-2559"),
    "utf16": (4, "54-55 101-124 672-703 1078-1079 1125-1151 2816-3071"),
    "utf16le": (4, "56 62 1080 1086"),
    "cp1256": (1, "57 67 1081 1091"),
    "utf32": (4, "60-61 160-183 736-767 1084-1085 1184-1215 3072-3327"),
    "binary": (1, "63"),
    "geostd8": (1, "92-93 1116-1117"),
    "cp932": (2, "95-96 1119-1120"),
    "eucjpms": (3, "97-98 1121-1122"),
    "gb18030": (4, "248-250"),
}


def _by_id() -> dict[int, str]:
    names: dict[int, str] = {}
    for name, (_, ids) in _CHARSETS.items():
        for part in ids.split():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names[number] = name
    return names


_NAMES = _by_id()


def charset_of(collation_id: int) -> str | None:
    """The name of a collation's character set; ``binary`` for 0, None if the id is unknown."""
    return "binary" if collation_id == 0 else _NAMES.get(collation_id)


def bytes_per_character(collation_id: int) -> int:
    """The most bytes of a character in a collation's character set; 1 if it is unknown."""
    name = charset_of(collation_id)
    return _CHARSETS[name][0] if name is not None else 1
