"""Converts text in MySQL's multi-byte character sets to Unicode, as the server does.

Python's codecs convert it except for the characters below, which were read from the servers
(``CONVERT(… USING utf8mb4)``); MySQL and MariaDB agree. Characters that a set does not define
become question marks there.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

import numpy as np

WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
"""The character sets whose ASCII characters take several bytes too."""

SURROGATES = frozenset({"ucs2", "utf32"})
"""The character sets that store a surrogate as a character of its own."""

_WIDE_CODECS = {
    "ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be",
}  # fmt: skip
_CODECS = {
    "big5": "big5", "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "sjis": "shift_jis",
    "cp932": "cp932", "euckr": "cp949", "ujis": "euc_jp", "eucjpms": "euc_jp",
}  # fmt: skip
_TWO = re.compile(rb"[\x00-\x80]+|[\x81-\xff][\x30-\xff]|.", re.DOTALL)
_SHIFT = re.compile(rb"[\x00-\x80\xa0-\xdf]+|[\x81-\x9f\xe0-\xff][\x40-\xff]|.", re.DOTALL)
_EUC = re.compile(rb"[\x00-\x80]+|\x8f[\xa1-\xfe][\xa1-\xfe]|[\x81-\xff][\xa1-\xff]|.", re.DOTALL)
_FOUR = re.compile(
    rb"[\x00-\x80]+|[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]|[\x81-\xfe][\x40-\xfe]|.",
    re.DOTALL,
)
_CHARACTERS = {
    "sjis": _SHIFT, "cp932": _SHIFT, "ujis": _EUC, "eucjpms": _EUC, "gb18030": _FOUR,
}  # fmt: skip
_REPLACED = "\ufffd"
_QUESTION_MARK = "tidelog-question-mark"  # U+FFFD itself is a valid character
codecs.register_error(_QUESTION_MARK, lambda error: ("?", error.end))  # type: ignore[attr-defined]
_BIG5_UNDEFINED = (0xA15A, 0xA1C3, 0xA1C5, 0xA1FE, 0xA240, 0xA2CC, 0xA2CE)
_ETEN = "碁銹裏墻恒粧嫺"  # big5 F9D6 to F9DC
# eucjpms 8FF3F3 to 8FF3FE and 8FF4A1 to 8FF4FE: NEC's selection of IBM's extensions.
_IBM = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓"
    "﨑德悅愠敎昻晥晴朗栁﨓﨔橫櫢淸淲瀨凞猪甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇"
    "諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑"
)
_PATCHES: dict[str, dict[bytes, str]] = {
    "big5": {code.to_bytes(2, "big"): _REPLACED for code in _BIG5_UNDEFINED}
    | {(0xF9D6 + k).to_bytes(2, "big"): character for k, character in enumerate(_ETEN)},
    "sjis": {b"\x81\x5f": "\\"},
    "ujis": {b"\xa1\xc0": "\\"},
    "eucjpms": {b"\x8f\xa2\xb7": "～", b"\x8f\xa2\xc3": "￤"}
    | {
        b"\x8f" + (0xF3F3 + k if k < 12 else 0xF4A1 + k - 12).to_bytes(2, "big"): character
        for k, character in enumerate(_IBM)
    },
    "gb18030": {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"},
}


def decode(charset: str, text: bytes) -> str:
    """Decode the text; raises LookupError for any other character set."""
    if charset == "ucs2":  # it has no surrogate pairs
        units = np.frombuffer(text[: len(text) // 2 * 2], ">u2").copy()
        units[(units >= 0xD800) & (units < 0xE000)] = ord("?")
        text = units.tobytes() + text[len(units) * 2 :]
    if charset in WIDE:
        return text.decode(_WIDE_CODECS[charset], _QUESTION_MARK)
    codec = _CODECS[charset]
    patches = _PATCHES.get(charset, {})
    of_code = _USER_DEFINED.get(charset)

    def character(match: re.Match[bytes]) -> str:
        code = match[0]
        found = patches.get(code)
        if found is None and of_code is not None:
            found = of_code(code)
        if found is None:
            try:
                found = code.decode(codec)
            except UnicodeDecodeError:
                found = "?"
        return found

    pattern = _CHARACTERS.get(charset, _TWO)
    return "".join(character(match) for match in pattern.finditer(text))


def characters(charset: str, text: bytes) -> list[bytes]:
    """The codes of a text in a set that includes ASCII; a run of ASCII counts as one."""
    return [match[0] for match in _CHARACTERS.get(charset, _TWO).finditer(text)]


def _euc_user_defined(code: bytes) -> str | None:
    """Rows 85 to 94 of both planes map to Unicode's private use area."""
    if len(code) == 2 and code[0] >= 0xF5:
        return chr(0xE000 + (code[0] - 0xF5) * 94 + code[1] - 0xA1)
    if len(code) == 3 and code[1] >= 0xF5:
        return chr(0xE3AC + (code[1] - 0xF5) * 94 + code[2] - 0xA1)
    return None


def _eucjpms(code: bytes) -> str | None:
    """The two-byte characters are those of cp932, at EUC's code positions."""
    found = _euc_user_defined(code)
    if found is not None or len(code) != 2 or code[0] in (0x8E, 0x8F) or code[0] < 0xA1:
        return found
    row, cell = code[0] - 0xA1, code[1] - 0xA1
    lead = row // 2 + 0x81
    lead += 0x40 if lead > 0x9F else 0
    trail = cell + 0x9F if row & 1 else cell + 0x40 + (cell >= 0x3F)
    try:
        return bytes([lead, trail]).decode("cp932")
    except UnicodeDecodeError:
        return "?"


_USER_DEFINED: dict[str, Callable[[bytes], str | None]] = {
    "ujis": _euc_user_defined,
    "eucjpms": _eucjpms,
}
