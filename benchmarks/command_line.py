"""Tidelog as its users run it: commands over a configuration file, and what memory they take."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

_LOOK_EVERY_S = 0.2
_END_S = 120.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command that ends took and said; its output counts in bytes of UTF-8."""

    seconds: float
    code: int
    said: str

    @property
    def last(self) -> dict[str, Any]:
        """The last JSON document that it wrote."""
        found: dict[str, Any] = json.loads(self.said.splitlines()[-1])
        return found


def configure(directory: Path, dsn: str, memory: str, outputs: str) -> Path:
    """Write ``tidelog.yaml`` into ``directory``: all tables of a PostgreSQL database, and two Spark
    tasks at once with ``memory`` (``spark.driver.memory``) for the driver.
    """
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', tables: ['public.*']}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "pipeline: {checkpoint: checkpoint, master: 'local[2]', "
        f"conf: {{spark.driver.memory: {memory}}}}}\n"
        f"outputs: [{outputs}]\n"
    )
    return file


def command(directory: Path, name: str, *arguments: str) -> Finished:
    """Run ``tidelog NAME tidelog.yaml --json`` in ``directory``."""
    call = [sys.executable, "-m", "tidelog", name, "tidelog.yaml", "--json", *arguments]
    began = time.perf_counter()
    done = subprocess.run(call, cwd=directory, capture_output=True, text=True)
    return Finished(time.perf_counter() - began, done.returncode, done.stdout or done.stderr)


class Service:
    """A command that goes on, and its peak resident bytes by kind of process.

    ``peaks``: of one process each, by ``python`` (the command itself), ``java`` and ``worker`` (one
    of Spark's Python processes); ``all workers``: of those together, shared pages counted in each.
    """

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._said = directory / f"{name}.log"
        call = [sys.executable, "-m", "tidelog", name, "tidelog.yaml", "--json", *arguments]
        with self._said.open("w") as file:
            self._process = subprocess.Popen(
                call, cwd=directory, stdout=file, stderr=subprocess.STDOUT
            )
        self.peaks: dict[str, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(_END_S)
        self._done.set()
        self._thread.join()

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def documents(self) -> list[dict[str, Any]]:
        """What it told so far."""
        found = []
        for line in self.said.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, dict)]

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended by itself."""
        return self._process.wait(timeout_s)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, every_s: float) -> float:
        """Seconds until it holds. Raises RuntimeError if the command ends, or it takes longer."""
        began = time.perf_counter()
        while not condition():
            if self._process.poll() is not None:
                raise RuntimeError(f"it has ended with {self._process.returncode}: {self.said}")
            if time.perf_counter() - began > timeout_s:
                raise RuntimeError(f"not done after {timeout_s:.0f} s: {self.said[-3000:]}")
            time.sleep(every_s)
        return time.perf_counter() - began

    def _watch(self) -> None:
        process = psutil.Process(self._process.pid)
        while not self._done.wait(_LOOK_EVERY_S):
            with suppress(psutil.Error):
                self._look(process)

    def _look(self, process: psutil.Process) -> None:
        now = {"python": process.memory_info().rss}
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                kind = "java" if child.name() == "java" else "worker"
                resident = child.memory_info().rss
                now[kind] = max(now.get(kind, 0), resident)
                if kind == "worker":
                    now["all workers"] = now.get("all workers", 0) + resident
        for kind, resident in now.items():
            self.peaks[kind] = max(self.peaks.get(kind, 0), resident)


def megabytes(peaks: dict[str, int]) -> str:
    """``peaks`` of a service in words."""
    return ", ".join(f"{kind} {resident >> 20:,} MB" for kind, resident in sorted(peaks.items()))
