"""What `tidelog verify` shows while it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.cli.live.fetching import progress
from tidelog.system.download_progress import Download


def verify_facts(document: Mapping[str, Any]) -> list[tuple[str, str, float | None]]:
    """What `verify` downloads first, and then the table that it compares, as facts."""
    fetching = document.get("fetching")
    if isinstance(fetching, Download):
        if fetching.done:
            return [("verify", f"has {fetching.what}", None)]
        text, share = progress(fetching), fetching.share
        return [("verify", f"fetches {fetching.what}", None), ("", text, share)]
    if "number" not in document:
        return [("verify", document["stage"], None)]
    number, of = document["number"], document["of"]
    text = f"table {number} of {of}: {document['table']} with {document['output']}"
    shown: list[tuple[str, str, float | None]] = [("verify", text, (number - 1) / of)]
    if "stage" in document:
        shown.append(("", document["stage"], None))
    return shown
