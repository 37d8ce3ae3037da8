"""What the words of the picture mean, in those of docs/explanation/glossary.md."""

from __future__ import annotations

from rich.text import Text

from tidelog.cli.watch.lines import wrapped

WORDS = (
    ("source", "the database; behind: since when its log ends after what is captured"),
    ("capture", "the process that reads the source's log into the event log; one leads"),
    ("output", "a destination; behind: the age of the oldest record that it lacks"),
    ("to spare", "log that may be written until the server removes what is needed"),
    ("refused", "a table that is left out; the problem says why, and what mends it"),
    ("dump", "a read of full tables, chunk by chunk, while the log goes on"),
    ("chunk", "rows of a table in a range of keys, read by one short SELECT"),
    ("window", "the log between the two watermarks around a chunk's SELECT"),
    ("superseded", "rows of a chunk that are dropped: the log has newer ones"),
    ("void", "a chunk that could not be placed in the log; it is read again"),
    ("readers", "connections that read chunks; + and - have twice or half as many"),
    ("slowed down", "the throttle: capture, a replica, SELECTs or commits are slow"),
    ("paused", "p pauses the dump that is shown, and resumes it; ← → show others"),
)
_SIGNS = (
    "✓ all is well   · wanted so, or mends itself   ! late, or left out   ✗ stands, or is lost soon"
)
_COLUMN = 14


def words_lines(width: int) -> list[Text]:
    """A word a line, or more where the terminal is narrow."""
    lines = wrapped(_SIGNS, width, rest="  ")
    for word, meaning in WORDS:
        indent = " " * _COLUMN
        its = wrapped(meaning, width, first=indent, rest=indent)
        its[0] = Text(f"  {word:<{_COLUMN - 2}}", style="bold").append_text(its[0][_COLUMN:])
        lines += its
    lines.append(Text("  more: docs/explanation/glossary.md", style="dim"))
    return lines
