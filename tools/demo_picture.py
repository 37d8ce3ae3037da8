"""Draw docs/images/demo.svg from a real run: ``tidelog demo --json | python tools/demo_picture.py``.

The demo writes a JSON line now and then, and its report last. The picture shows what a terminal of
80 columns shows: while capture is dead, and at the end.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule

from tidelog.cli.demo import story_screen

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"
WIDTH, HEIGHT = 80, 23


def main() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    report = lines[-1]
    if report.get("equal") is not True:
        raise SystemExit("the demo did not end with equal tables: no picture")
    told = [line for line in lines if "step" in line]
    killed = [line for line in told if line.get("capture", {}).get("state") == "killed"]
    ended = {**told[-1], "story": report["story"]}
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for line in story_screen(killed[-1], WIDTH, HEIGHT):
        console.print(line)
    console.print(Rule(style="dim"))
    for line in story_screen(ended, WIDTH, HEIGHT, report):
        console.print(line)
    drawn = console.export_svg(title="tidelog demo")
    # without the fonts that Rich would have the reader's browser fetch from elsewhere
    PICTURE.write_text(re.sub(r"@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
