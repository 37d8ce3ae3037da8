"""Somebody else rewrites a copy's files, again and again, while a pipeline merges into it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.integration.spark.conftest import Lake

from tidelog.spark.pipeline import run_output_loops

TABLE = "public.t"
KEYS, THEIRS = 60, 1_000
"""Keys that the source changes, and one that it leaves alone."""
AT_LEAST, AT_MOST_S = 12, 240.0
LOST = ("oncurrent", "CommitFailed", "ValidationException")
"""Whose commit came second: Delta's exceptions, and Iceberg's."""


class Loop:
    """``work``, over and over in a thread: how often it was done, and how often others won."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = self.lost = 0
        self.failure: Exception | None = None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work(self.done + 1)
                self.done += 1
            except Exception as error:  # noqa: BLE001 - whatever Spark raises
                if not any(sign in str(error) for sign in LOST):
                    self.failure = error
                    return
                self.lost += 1

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


def merge_beside(
    lake: Lake, rewrite: Callable[[Any], None], conflicts: Callable[[], int]
) -> tuple[Loop, Loop]:
    """Change rows until files were rewritten and rows updated by others several times, and ours
    lost at least one commit to them (``conflicts``); then compare all rows.
    """
    built, rng = lake.built, random.Random(1)
    table = built.table(TABLE, {"id": "int64", "v": "text"})
    rows = {key: f"v{key}" for key in (*range(KEYS), THEIRS)}
    for key, value in rows.items():
        built.insert(table, str(key), value)
    built.flush()
    lake.run()
    session, users = lake.session(), lake.session()
    name = lake.name(TABLE)

    def update(number: int) -> None:
        users.sql(f"UPDATE {name} SET v = 'theirs {number}' WHERE id = {THEIRS}")
        time.sleep(1)

    stop, output, seen = threading.Event(), lake.output(), lake.output()
    call = (lake.spark, built.path, [output])
    pipeline = threading.Thread(target=run_output_loops, args=call, kwargs={"stop": stop})
    pipeline.start()
    try:
        with Loop(lambda _: rewrite(session)) as rewriting, Loop(update) as updating:
            begun = time.monotonic()
            turn = 0
            while turn < AT_LEAST or not (rewriting.done and updating.done and conflicts()):
                assert time.monotonic() < begun + AT_MOST_S, (rewriting.done, conflicts())
                assert pipeline.is_alive()
                assert not rewriting.failure, rewriting.failure
                assert not updating.failure, updating.failure
                for key in rng.sample(range(KEYS), 8):
                    if key not in rows:
                        built.insert(table, str(key), f"again {turn}")
                    elif rng.random() < 0.3:
                        built.delete(table, str(key))
                        del rows[key]
                        continue
                    else:
                        built.update(table, str(key), f"again {turn}")
                    rows[key] = f"again {turn}"
                # One that nothing later would make good, were it lost or doubled.
                once = THEIRS + 1 + turn
                built.insert(table, str(once), f"once {turn}")
                rows[once] = f"once {turn}"
                end = built.flush().next
                turn += 1
                time.sleep(0.3)
        while seen.committed(table.table) != end:
            assert pipeline.is_alive()
            assert time.monotonic() < begun + AT_MOST_S
            time.sleep(0.1)
    finally:
        stop.set()
        pipeline.join(120)
        output.close()
        seen.close()
    rows[THEIRS] = f"theirs {updating.done}"
    assert lake.rows(TABLE) == sorted(rows.items())
    return rewriting, updating
