"""Commands in messages, which are written without the file that they are given."""

from __future__ import annotations

import re
import shlex
from typing import Final

_COMMAND: Final = re.compile(r"\btidelog ([a-z-]+) CONFIG\b")


def name_config(text: str, file: str, database: str = "") -> str:
    """Return the text, its commands with the configuration's file in place of ``CONFIG``, and with
    ``--database`` if it has several of which they need one.
    """
    if "CONFIG" not in text:
        return text
    chosen = f"--database {shlex.quote(database)} " if database else ""
    return _COMMAND.sub(lambda found: f"tidelog {chosen}{found[1]} {shlex.quote(file)}", text)
