"""Removes passwords and keys from texts."""

from __future__ import annotations

import re
from typing import Final

from tidelog.kinds.sections import SecretUrl

_USER_PASSWORD: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^:/?#@\s]*):\S*@")
_KEY: Final = re.compile(r"(https?://)[^:/?#@\s]+@", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return the text without the passwords and keys of URLs in it."""
    return _KEY.sub(r"\1***@", _USER_PASSWORD.sub(r"\1:***@", SecretUrl(text).redacted))
