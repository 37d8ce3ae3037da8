"""Draw docs/images/watch.svg from a real run: ``python tools/watch_picture.py [RECORDING]``.

Without a recording it makes one: a PostgreSQL, the demo's shop with writers, capture, and a dump by
four readers, watched by ``tidelog watch --record``. The picture is one frame of it.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from rich.console import Console

from tidelog import app
from tidelog.app.overview.lanes import lanes_of
from tidelog.cli.watch.feed import recorded
from tidelog.cli.watch.view import frame
from tidelog.config import load_config
from tidelog.control.commands import ExecuteSnapshot
from tidelog.demo.servers.postgres import PostgresServer
from tidelog.demo.shop import Sizes
from tidelog.demo.workload import Workload, create_shop

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "watch.svg"
WIDTH = 116
HISTORY = 40
SIZES = Sizes(customers=200_000, products=20_000, orders=800_000, items=1_200_000)
CONFIG = """\
source: {{kind: postgres, url: "{dsn}", tables: ["public.*"], snapshot: no_data}}
log:    {{path: ./log}}
state:  {{url: "sqlite:///state.db"}}
dump:   {{parallelism: 4, chunk_rows: 20000, rows_per_second: 250000}}
"""


def record(directory: Path) -> Path:
    """A run of some ten seconds; its recording."""
    recording = directory / "run.jsonl"
    with PostgresServer(16, {"max_wal_size": "2GB"}, fsync=True) as server:
        server.create_database("shop")
        dsn = server.dsn("shop")
        file = directory / "tidelog.yaml"
        file.write_text(CONFIG.format(dsn=dsn))
        create_shop(dsn, SIZES)
        config = load_config(file)
        workload = Workload(dsn, SIZES, writers=4, per_second=1000)
        stop = threading.Event()
        capture = threading.Thread(target=lambda: app.capture(config, stop_event=stop), daemon=True)
        workload.start()
        capture.start()
        command = [sys.executable, "-m", "tidelog", "watch", str(file), "--record", str(recording)]
        watching = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
        try:
            app.send_command(config, ExecuteSnapshot(dump_id="again"), timeout_s=60)
            app.dump_wait(config, "again", timeout_s=180)
        finally:
            watching.terminate()
            watching.wait(20)
            workload.stop()
            stop.set()
            capture.join(30)
    return recording


def draw(recording: Path) -> None:
    """The frame with the most different windows, and chunks of which rows were superseded."""
    history: list[dict[str, Any]] = list(recorded(recording))

    def worth(at: int) -> tuple[int, int]:
        status = history[at]
        states = {window["state"] for window in status.get("windows", ())}
        return len(states), sum(lane.superseded > 0 for lane in lanes_of(status)[-10:])

    at = max(range(len(history)), key=worth)
    shown = history[max(0, at - HISTORY) : at + 1]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print("$ tidelog watch tidelog.yaml", style="bold")
    console.print(frame(shown, shown[-1]["updated_ms"] + 20, lanes=10, events=6, width=WIDTH))
    drawn = console.export_svg(title="tidelog watch")
    # without the fonts that Rich would have the reader's browser fetch from elsewhere
    PICTURE.write_text(re.sub(r"@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL))


def main() -> None:
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as directory:
        draw(record(Path(directory)))


if __name__ == "__main__":
    main()
