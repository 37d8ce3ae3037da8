"""Converts text in MySQL's character sets to Unicode, as the server does.

Python's codecs convert most sets. The tables and characters below are for those that it does not
have, or has differently; they were read from the servers (``CONVERT(… USING utf8mb4)``), which
agree. Characters that a set does not define become question marks there.

Keys have exact texts. Some sets have characters without a text (surrogates in ``ucs2`` and
``utf32``, codes that ``gbk`` does not define), or two characters with the same text (``cp932`` has
NEC's and IBM's). For other columns the server's question mark is good enough, but two keys must not
become one. So a key's value that does not survive the conversion to UTF-8 and back is written as
`EXACT_TEXT_MARK` and the hexadecimal digits of its bytes, both from the log and from a dump.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import charset_of
from tidelog.model.records import UInt8s
from tidelog.model.schema import Column

# Multi-byte character sets.

WIDE_CHARSETS = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
"""The character sets whose ASCII characters take several bytes too."""

CHARSETS_WITH_SURROGATES = frozenset({"ucs2", "utf32"})
"""The character sets that store a surrogate as a character of its own."""

_WIDE_CODECS = {
    "ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be",
}  # fmt: skip
_MULTIBYTE_CODECS = {
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
_MULTIBYTE_PATCHES: dict[str, dict[bytes, str]] = {
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


def decode_multibyte(charset: str, text: bytes) -> str:
    """Decode the text; raises LookupError for any other character set."""
    if charset == "ucs2":  # it has no surrogate pairs
        units = np.frombuffer(text[: len(text) // 2 * 2], ">u2").copy()
        units[(units >= 0xD800) & (units < 0xE000)] = ord("?")
        text = units.tobytes() + text[len(units) * 2 :]
    if charset in WIDE_CHARSETS:
        return text.decode(_WIDE_CODECS[charset], _QUESTION_MARK)
    codec = _MULTIBYTE_CODECS[charset]
    patches = _MULTIBYTE_PATCHES.get(charset, {})
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


def multibyte_codes(charset: str, text: bytes) -> list[bytes]:
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

# All character sets, and the tables of those with one byte per character.

UTF8 = frozenset({"utf8mb3", "utf8mb4", "binary"})
"""The character sets whose bytes are UTF-8 already, or no text."""

_CODECS = {
    "latin1": "cp1252", "latin2": "iso8859_2", "cp850": "cp850", "hp8": "hp_roman8",
    "koi8r": "koi8_r", "swe7": "ascii", "ascii": "ascii", "cp1251": "cp1251",
    "hebrew": "iso8859_8", "tis620": "tis_620", "latin7": "iso8859_13", "koi8u": "koi8_u",
    "greek": "iso8859_7", "cp1250": "cp1250", "cp1257": "cp1257", "latin5": "iso8859_9",
    "cp866": "cp866", "macce": "mac_latin2", "macroman": "mac_roman", "cp852": "cp852",
    "cp1256": "cp1256",
}  # fmt: skip
_PATCHES: dict[str, dict[int, str]] = {
    "latin1": {b: chr(b) for b in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "hebrew": {0xAF: "\u203e"},
    "koi8u": {0x95: "\u2022"},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc", 0xA4: "?", 0xA5: "?", 0xAA: "?"},
    "cp866": {0xFC: "\u207f", 0xFD: "\u00b2"},
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), "?"),
    "swe7": {
        0x40: "É", 0x5B: "Ä", 0x5C: "Ö", 0x5D: "Å", 0x5E: "Ü", 0x60: "é", 0x7B: "ä", 0x7C: "ö",
        0x7D: "å", 0x7E: "ü", 0x7F: "?",
    },
}  # fmt: skip
_UNDEFINED = {"tis620": "\ufffd"}
# The upper 128 characters of the sets that Python has no codec for.
_UPPER = {
    "dec8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0¡¢£?¥?§¤©ª«????°±²³?µ¶·?¹º»¼½?¿"
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ?ÑÒÓÔÕÖŒØÙÚÛÜŸ?ß"
        "àáâãäåæçèéêëìíîï?ñòóôõöœøùúûüÿ??"
    ),
    "armscii8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէ"
        "ԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշ"
        "ՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"
    ),
    "keybcs2": (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘť"
        "áíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
        "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
        "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    ),
    "geostd8": (
        "€?‚?„…†‡?‰?‹?????‘’“”•–—???›????"
        "\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿"
        "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწ"
        "ჭხჴჯჰჵ???????????????????????№??"
    ),
}


def is_single_byte(charset: str) -> bool:
    """Return True if the character set has one byte per character."""
    return charset in _CODECS or charset in _UPPER


def keeps_ascii(charset: str) -> bool:
    """Return True if a text of bytes below 0x80 is ASCII."""
    return charset not in WIDE_CHARSETS


def decode_text(text: bytes, charset: str | None) -> str:
    """Decode the text; as UTF-8 if the character set is unknown. Undefined characters become a
    replacement character, or the server's substitute.
    """
    if charset is None or charset in UTF8:
        return text.decode("utf-8", "replace")
    if is_single_byte(charset):
        return codecs.charmap_decode(text, "strict", _characters(charset))[0]
    return decode_multibyte(charset, text)


@cache
def _characters(charset: str) -> str:
    return "".join(_character(charset, byte) for byte in range(256))


@cache
def single_byte_table(charset: str) -> tuple[UInt8s, UInt8s]:
    """(uint8[256, 3], uint8[256]): each byte's UTF-8, and its length."""
    codes = np.zeros((256, 3), dtype=np.uint8)
    sizes = np.zeros(256, dtype=np.uint8)
    for byte in range(256):
        encoded = _character(charset, byte).encode()
        codes[byte, : len(encoded)] = list(encoded)
        sizes[byte] = len(encoded)
    return codes, sizes


def _character(charset: str, byte: int) -> str:
    if charset in _UPPER:
        return chr(byte) if byte < 128 else _UPPER[charset][byte - 128]
    patched = _PATCHES.get(charset, {}).get(byte)
    if patched is not None:
        return patched
    text = bytes([byte]).decode(_CODECS[charset], "replace")
    return _UNDEFINED.get(charset, "?") if text == "\ufffd" else text


@njit(cache=True, nogil=True)
def convert_single_byte(data, start, length, binary, codes, sizes, to):  # type: ignore[no-untyped-def]
    """Write the cells that are not ASCII as UTF-8; returns the end of ``data``. From ``to`` on,
    ``data`` has room for three bytes for each byte of the cells.
    """
    for i in range(len(start)):
        if not binary[i] or length[i] <= 0:
            continue
        position = np.int64(start[i])
        end = position + np.int64(length[i])
        same = True
        for k in range(position, end):
            byte = data[k]
            if sizes[byte] != 1 or codes[byte, 0] != byte:
                same = False
                break
        if same:
            continue
        start[i] = to
        first = to
        for k in range(position, end):
            byte = data[k]
            for m in range(sizes[byte]):
                data[to] = codes[byte, m]
                to += 1
        length[i] = to - first
    return to


@njit(cache=True, nogil=True)
def not_ascii(data, start, length, binary, out):  # type: ignore[no-untyped-def]
    """Fill bool[n] ``out``: True if the cell is binary and has a byte above 0x7F."""
    for i in range(len(start)):
        out[i] = False
        if not binary[i]:
            continue
        position = np.int64(start[i])
        for k in range(position, position + np.int64(length[i])):
            if data[k] > 0x7F:
                out[i] = True
                break


# Exact texts of keys.

EXACT_TEXT_MARK = "\U0010ffff"
"""The prefix of such a text: a code point that is never a character."""

_WHOLE = frozenset({"utf16", "utf16le"})
"""Multi-byte sets whose characters all have distinct texts."""
_SINGLE_AGAIN = {
    "armscii8": bytes.fromhex("a4a5a9abacff"),
    "tis620": bytes.fromhex("a0dbdcdddefcfdfe"),
}
"""Bytes whose character another byte has too, and the server converts back to that one."""
_AGAIN = {
    "big5": rb"\xa1[\x5a\xc3\xc5\xfe]|\xa2[\x40\xcc]",
    "sjis": rb"\x81\x5f",  # a backslash like 0x5C, which is the one that people type
    "cp932": rb"\x87[\x90-\x92\x95-\x97\x9a-\x9c]|[\xed\xee].|\xfa[\x4a-\x54\x58-\x5b]",
    "ujis": rb"\x8f\xa2\xb7|\xa1\xc0",
    "eucjpms": rb"\x8f\xa2[\xb7\xf1]|\x8f\xf3[\xfd\xfe]|\x8f\xf4[\xa1-\xa8\xab-\xad]"
    rb"|\xad[\xf0-\xf2\xf5-\xf7\xfa-\xfc]",
}
"""The same for codes of multi-byte sets. Both lists were read from the servers."""
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_ODD = {
    "ucs2": "HEX({k}) REGEXP '^(....)*D[89A-F]'",
    "utf32": "HEX({k}) REGEXP '^(........)*0000D[89A-F]|^0010FFFF'",
}


def needs_exact_text(column: Column) -> bool:
    """Return True if the column is text in such a set."""
    charset = charset_of(types.collation(column))
    return column.type_id in types.CHARACTER and is_lossy(charset)


def longest_exact_text(column: Column) -> int:
    """The most characters of such a text of the column; 0 if it needs none."""
    if not needs_exact_text(column):
        return 0
    size = types.metadata(column)
    return 1 + 2 * (types.string_bytes(size) if column.type_id == types.STRING else size)


@cache
def is_lossy(charset: str | None) -> bool:
    """Return True if the set has characters that need such texts."""
    if charset is None or charset in UTF8 or charset in _WHOLE:
        return False
    return not is_single_byte(charset) or bool(_odd_bytes(charset))


def is_plain_ascii(charset: str) -> bool:
    """Return True if values of bytes below 0x80 survive the conversion."""
    return keeps_ascii(charset) and charset != "swe7"


def exact_text(charset: str, value: bytes) -> str | None:
    """The text of a value that does not survive the conversion; None if it does. ``charset``: a
    lossy set.
    """
    return EXACT_TEXT_MARK + value.hex() if _is_odd(charset, value) else None


def bytes_of_exact_text(charset: str | None, text: str) -> bytes | None:
    """The bytes from which `exact_text` made this text; None if it did not, or the text is spelled
    differently.
    """
    if charset is None or not text.startswith(EXACT_TEXT_MARK) or not is_lossy(charset):
        return None
    digits = text[len(EXACT_TEXT_MARK) :]
    value = bytes.fromhex(digits) if _HEX.fullmatch(digits) else b""
    return value if exact_text(charset, value) == text else None


def exact_text_sql(name: str, charset: str) -> str:
    """SQL for the text of column ``name``, quoted, in a lossy set."""
    plain = f"CONVERT({name} USING utf8mb4)"
    marked = f"CONCAT(_utf8mb4 X'{EXACT_TEXT_MARK.encode().hex()}', LOWER(HEX({name})))"
    return f"IF({_odd_sql(name, charset)}, {marked}, {plain})"


def _odd_sql(name: str, charset: str) -> str:
    if charset in CHARSETS_WITH_SURROGATES:
        return _ODD[charset].format(k=name)
    back = f"CONVERT(CONVERT({name} USING utf8mb4) USING {charset})"
    if charset != "sjis":
        return f"CAST({back} AS BINARY) <> CAST({name} AS BINARY)"
    # Its 0x5C becomes 0x815F, one byte longer. 0x3F is no other character's second byte.
    text = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    marks = f"{_count(text, '3F')} <> {_count(f'CAST({name} AS BINARY)', '3F')}"
    return f"({marks} OR LENGTH({back}) <> LENGTH({name}) + {_count(text, '5C')})"


def _count(value: str, digits: str) -> str:
    return f"(LENGTH({value}) - LENGTH(REPLACE({value}, X'{digits}', '')))"


def _is_odd(charset: str, value: bytes) -> bool:
    if charset in CHARSETS_WITH_SURROGATES:
        size = 2 if charset == "ucs2" else 4
        units = (int.from_bytes(value[at : at + size]) for at in range(0, len(value), size))
        marked = size == 4 and value[:4] == ord(EXACT_TEXT_MARK).to_bytes(4)
        return marked or any(0xD800 <= unit < 0xE000 for unit in units)
    if is_single_byte(charset):
        return bool(value.translate(None, _plain_bytes(charset)))
    if value.isascii():
        return False
    if decode_multibyte(charset, value).count("?") > value.count(b"?"):
        return True
    again = _AGAIN.get(charset)
    return again is not None and any(
        re.fullmatch(again, code, re.DOTALL) for code in multibyte_codes(charset, value)
    )


@cache
def _plain_bytes(charset: str) -> bytes:
    odd = _odd_bytes(charset)
    return bytes(byte for byte in range(256) if byte not in odd)


@cache
def _odd_bytes(charset: str) -> bytes:
    again = _SINGLE_AGAIN.get(charset, b"")
    return bytes(
        byte
        for byte in range(256)
        if byte in again or (byte != 0x3F and decode_text(bytes([byte]), charset) == "?")
    )
