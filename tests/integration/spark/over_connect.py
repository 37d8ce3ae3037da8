"""Pipelines over Spark Connect, by a client that, unless asked otherwise, has no Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog


class Delivery:
    """A pipeline of one output, and the log that it delivers."""

    def __init__(
        self,
        directory: Path,
        remote: str,
        *outputs: dict[str, Any],
        java: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.python = sys.executable
        self._hidden = {} if java else {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
        self.built = BuiltLog(directory / "log")
        self.config = directory / "tidelog.yaml"
        document = {
            "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
            "log": {"path": "log"},
            "state": {"url": "sqlite:///state.db"},
            "pipeline": {"remote": remote, "conf": dict(conf or {})},
            "outputs": list(outputs),
        }
        self.config.write_text(json.dumps(document))

    def run(self) -> None:
        done = self.run_once()
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]

    def run_once(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "tidelog", "pipeline", str(self.config), "--once"],
            capture_output=True,
            text=True,
            env={**os.environ, **self._hidden},
            timeout=200,
            check=False,
        )

    def deliver(self) -> Iterator[None]:
        """Rows, then changes of them; returns after each."""
        table = orders(self.built)
        self.run()
        yield
        self.built.update(table, "1", "changed", "2.5")
        self.built.delete(table, "2")
        self.built.flush()
        self.run()
        yield
