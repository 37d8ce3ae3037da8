"""Converts text in MySQL's single-byte character sets to UTF-8, as the server does.

The tables below are for sets without a Python codec, or with a different one; they were read from
the servers (``CONVERT(… USING utf8mb4)``), which agree. Characters that a set does not define
become question marks there.
"""

from __future__ import annotations

import codecs
from functools import cache

import numpy as np
from numba import njit

from tidelog.codecs.mysql.texts.multibyte_texts import WIDE, decode
from tidelog.model.records import UInt8s

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
    return charset not in WIDE


def decode_text(text: bytes, charset: str | None) -> str:
    """Decode the text; as UTF-8 if the character set is unknown.

    Undefined characters become a replacement character, or the server's substitute.
    """
    if charset is None or charset in UTF8:
        return text.decode("utf-8", "replace")
    if is_single_byte(charset):
        return codecs.charmap_decode(text, "strict", _characters(charset))[0]
    return decode(charset, text)


@cache
def _characters(charset: str) -> str:
    return "".join(_character(charset, byte) for byte in range(256))


@cache
def table(charset: str) -> tuple[UInt8s, UInt8s]:
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
def by_table(data, start, length, binary, codes, sizes, to):  # type: ignore[no-untyped-def]
    """Write the cells that are not ASCII as UTF-8; returns the end of ``data``.

    From ``to`` on, ``data`` has room for three bytes for each byte of the cells.
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
