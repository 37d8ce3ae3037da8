"""Checks that MySQL reads a dump's condition as one expression that ends where its text ends.

The condition of a command was checked by the rules of other databases
(`tidelog.control.conditions`). Here a backslash escapes, quotes of both kinds delimit strings, and
# begins a comment (manual, "Language Structure"). A condition that ended early would void the
chunk's bounds.
"""

from __future__ import annotations

import re

from tidelog.errors import ChunkRefusedError

_TOKEN = re.compile(
    r"""(?P<quoted> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
      | (?P<comment> --(?=[\s\x00-\x1f]|$) | /\* | \# )
      | (?P<open> \( ) | (?P<close> \) )
      | (?P<wrong> [;'"`] )
      | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)


def checked_condition(condition: str) -> str:
    """Return the condition if it is one expression under the sql_mode of Tidelog's sessions.

    Raises:
        ChunkRefusedError: names what the condition may not contain, never the condition itself.
    """
    depth = 0
    for token in _TOKEN.finditer(condition):
        kind = token.lastgroup
        depth += (kind == "open") - (kind == "close")
        if kind == "comment":
            raise ChunkRefusedError("the dump's condition holds a comment: leave it out")
        if kind == "wrong" or depth < 0:
            break
    else:
        if depth == 0:
            return condition
    raise ChunkRefusedError(
        "the dump's condition is not one expression of SQL: its quotes or parentheses are not in "
        "pairs (\\ escapes in strings), or it holds a ';'"
    )
