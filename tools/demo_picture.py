"""Draw docs/images/demo.svg from a real run: ``tidelog demo --json | python tools/demo_picture.py``.

The demo writes a JSON line now and then, and its report last. The picture shows what a terminal
shows: the last status while the workload ran, and the report.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tidelog.cli.facts import demo_facts
from tidelog.cli.live.facts import drawn_facts
from tidelog.cli.terminal import view

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"
WIDTH = 104
SHOWN = (
    "step", "transactions", "records", "events_per_s", "lag_s", "chunks", "dumped_rows",
    "superseded_rows", "windows_open", "chunks_voided", "merged_rows", "dump",
)  # fmt: skip


def main() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    report = lines[-1]
    if report.get("equal") is not True:
        raise SystemExit("the demo did not end with equal tables: no picture")
    running = [
        line for line in lines[:-1] if "merged_rows" in line and "comparing" not in line["step"]
    ]
    status = {name: running[-1][name] for name in SHOWN if name in running[-1]}
    result = {name: report[name] for name in ("summary", "seconds")}
    result["tables"] = [
        {name: value for name, value in table.items() if name != "note"}
        for table in report["tables"]
    ]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print("$ tidelog demo", style="bold")
    for line in drawn_facts(demo_facts(status), WIDTH):
        console.print(line)
    console.print(view(result))
    drawn = console.export_svg(title="tidelog demo")
    # without the fonts that Rich would have the reader's browser fetch from elsewhere
    PICTURE.write_text(re.sub(r"@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
