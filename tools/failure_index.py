"""Finds the messages that docs/failure-modes.md explains: the site shows them as its index.

A message is what is in backticks in a sentence that begins with *You see*, or at the beginning of a
list item. Its entry is the nearest heading above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HEAD = "## Index by message\n\n`…` stands for names and numbers.\n\n"
SHORTEST = 3  # words: below it is a word of the status, or an option
SEEN = re.compile(r"\*You see\*(.*?)(?=\*Why\*|\*Do\*|\n\n|\Z)", re.DOTALL)
ITEM = re.compile(r"^- ((?:`[^`]+`(?:, )?)+)", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")


def with_index(page: str) -> str:
    """Return the page with an index of its messages before the first entry."""
    before, entries = page.split("\n## ", 1)
    lines = [f"- `{message}`: [{title}](#{anchor(title)})\n" for message, title in messages(page)]
    return f"{before}\n{HEAD}{''.join(lines)}\n## {entries}"


def messages(entries: str) -> list[tuple[str, str]]:
    """Return each message with the heading of its entry, in alphabetical order."""
    found = {
        (message, title): None
        for title, body in sections(entries)
        for text in [*SEEN.findall(body), *ITEM.findall(body)]
        for message in (" ".join(span.split()) for span in SPAN.findall(text))
        if len([word for word in message.split() if word != "…"]) >= SHORTEST
        and not message.startswith(("tidelog ", "UPDATE ", "function ", "pip "))
    }
    return sorted(found, key=lambda each: each[0].strip("… ,").lower())


def sections(entries: str) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each entry."""
    parts = re.split(r"^#{2,3} (.*)\n", entries, flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
