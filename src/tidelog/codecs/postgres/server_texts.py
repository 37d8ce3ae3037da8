"""Converts text of a PostgreSQL database that is not UTF-8 to Unicode, and back.

The characters are those of the server's own conversion (``convert_from``); Python's codecs have
them except for the few below, which were read from the server.

**Undefined bytes.** Bytes that are invalid in the database's encoding, or have no character, are
kept: each such byte ``b`` becomes the character U+EF00 + ``b``, of Unicode's private use area, so
that different values stay different and the conversion can be reversed exactly. The same applies to
the bytes of a character's second code (EUC_JP has 23) and, in a database of encoding SQL_ASCII,
whose text is read as UTF-8, to the bytes of one of these private characters.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

import numpy as np

from tidelog.model.records import UInt8s

KEPT = 0xEF00
"""The base of the characters for undefined bytes."""

# The server's name → Python's, by pg_encoding's names (manual, "Character Set Support").
_CODECS = {
    "SQL_ASCII": "utf-8", "LATIN1": "iso8859-1", "LATIN2": "iso8859-2", "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4", "LATIN5": "iso8859-9", "LATIN6": "iso8859-10", "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14", "LATIN9": "iso8859-15", "LATIN10": "iso8859-16",
    "ISO_8859_5": "iso8859-5", "ISO_8859_6": "iso8859-6", "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8", "KOI8R": "koi8-r", "KOI8U": "koi8-u", "WIN866": "cp866",
    "WIN874": "cp874", "WIN1250": "cp1250", "WIN1251": "cp1251", "WIN1252": "cp1252",
    "WIN1253": "cp1253", "WIN1254": "cp1254", "WIN1255": "cp1255", "WIN1256": "cp1256",
    "WIN1257": "cp1257", "WIN1258": "cp1258", "EUC_JP": "euc_jp", "EUC_CN": "gb2312",
    "EUC_KR": "euc_kr",
}  # fmt: skip
# Characters that the server has and Python's codec does not, by the first one's code.
_RUNS = {
    "EUC_JP": {
        0xADA1: "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
        0xADC0: "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
        0xADDF: "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
        0x8FF3F3: "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ",
        # Compatibility ideographs by their numbers: editors that normalise text would change them.
        0x8FF4A1: (
            "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥"
            "\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a"
            "\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24"
            "\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
        ),
    },
    "EUC_KR": {0xA2E8: "㉾", 0xA4D4: "\u3164"},
}
# Characters for which Python's codec has another one → the server's.
_OTHERS = {"EUC_JP": {"〜": "～", "‖": "∥", "−": "－", "¢": "￠", "£": "￡", "¬": "￢", "¦": "￤"}}

_PRIVATE = re.compile("([\uef80-\uefff]+)")
# Codes that the codec converts to a character, but that are kept as bytes.
_AS_BYTES = {
    "SQL_ASCII": re.compile(rb"(\xee[\xbe\xbf][\x80-\xbf])"),
    "EUC_JP": re.compile(rb"(\x8f\xa2[\xb7\xf1])"),
}
# Characters whose code is the server's although Python's codec has another → one that it lacks.
_OVERRIDDEN = {"EUC_JP": {"№": "\ue0e2"}}


class ServerText:
    """Converts text of one encoding. Use `server_text` to get it."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._codec = _CODECS[encoding]
        self._as_bytes = _AS_BYTES.get(encoding)
        others, overridden = _OTHERS.get(encoding, {}), _OVERRIDDEN.get(encoding, {})
        self._codes: dict[str, bytes] = {}
        self._lacking: dict[bytes, str] = {}
        for first, run in _RUNS.get(encoding, {}).items():
            for place, character in enumerate(run):
                code = (first + place).to_bytes(2 if first < 1 << 16 else 3, "big")
                spelled = overridden.get(character, character)
                if spelled not in self._codes and _code(spelled, self._codec) in (None, code):
                    self._codes[spelled], self._lacking[code] = code, character
        self._to_ours = str.maketrans(others)
        self._to_codec = str.maketrans({ours: codec for codec, ours in others.items()} | overridden)
        self._errors = f"tidelog.{encoding}"
        codecs.register_error(self._errors, self._kept)

    def decode(self, data: bytes) -> str:
        """Decode the text; never fails."""
        if data.isascii():
            return data.decode("ascii")
        if self._as_bytes is None or not self._as_bytes.search(data):
            return data.decode(self._codec, self._errors).translate(self._to_ours)
        return "".join(
            _kept(part)
            if place & 1
            else part.decode(self._codec, self._errors).translate(self._to_ours)
            for place, part in enumerate(self._as_bytes.split(data))
        )

    def encode(self, text: str) -> bytes:
        """Encode the text. Raises UnicodeEncodeError for a character that the encoding lacks."""
        if text.isascii():
            return text.encode("ascii")
        parts = _PRIVATE.split(text)
        return b"".join(
            bytes(ord(character) - KEPT for character in part)
            if place & 1
            else part.translate(self._to_codec).encode(self._codec, self._errors)
            for place, part in enumerate(parts)
        )

    def to_utf8(self, data: UInt8s) -> UInt8s:
        """Convert texts that only ASCII characters separate, e.g. COPY's output."""
        if not len(data) or int(data.max()) < 0x80:
            return data
        return np.frombuffer(self.decode(data.tobytes()).encode(), dtype=np.uint8)

    def _kept(self, error: UnicodeError) -> tuple[str | bytes, int]:
        if isinstance(error, UnicodeDecodeError):
            if not self.encoding.startswith("EUC"):
                return _kept(error.object[error.start : error.end]), error.end
            # A whole code, otherwise the rest would be read out of step.
            end = error.start + (3 if error.object[error.start] == 0x8F else 2)
            code: bytes = error.object[error.start : end]
            if len(code) < end - error.start or min(code[1:]) < 0xA1:
                code = code[:1]
            return self._lacking.get(code, _kept(code)), error.start + len(code)
        if isinstance(error, UnicodeEncodeError):
            known = self._codes.get(error.object[error.start])
            if known is not None:
                return known, error.start + 1
        raise error


@cache
def server_text(encoding: str) -> ServerText | None:
    """The converter for a database's encoding, by the server's name of it; None for UTF-8 or an
    unknown encoding.
    """
    return ServerText(encoding) if encoding in _CODECS else None


def _code(character: str, codec: str) -> bytes | None:
    try:
        return character.encode(codec)
    except UnicodeEncodeError:
        return None


def _kept(data: bytes) -> str:
    return "".join(chr(KEPT + byte) if byte > 0x7F else chr(byte) for byte in data)
