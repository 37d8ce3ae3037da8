"""Every kind of output under every fault: while it lasts the status has the right words and the
other output continues; when it is over the copy is what the source is: nothing is lost, nothing is
there twice, and no key has gone back.

`docs/internals/outputs-under-faults.md` is the table of it, made from `cells`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faults.outputs.cells import CELLS, CHEAP, Cell
from tests.faults.outputs.delivery import TwoOutputs
from tests.faults.outputs.source import Source
from tests.faults.outputs.target import Target
from tests.faults.outputs.targets import TARGETS
from tests.support.build_log import BuiltLog
from tests.support.iceberg_sql import SPARK_OF_ICEBERG

from tidelog.spark import output_loop
from tidelog.spark.pipeline import OutputGroup
from tidelog.spark.sessions.versions import SPARK_VERSION
from tidelog.system.backoff import Backoff

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]
OTHERS = ("delta", "iceberg_s3") if SPARK_VERSION == SPARK_OF_ICEBERG else ("iceberg",)


class Scene:
    """What a cell is played with."""

    def __init__(
        self, root: Path, source: Source, target: Target, outputs: TwoOutputs, cell: Cell
    ) -> None:
        self.source, self.target, self.outputs, self.cell = source, target, outputs, cell
        self.root = root


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    spark: Any,
    built: BuiltLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    cell: Cell = request.getfixturevalue("cell")
    if cell.output in OTHERS:
        pytest.skip(f"it is tested on another Spark than {SPARK_VERSION}")
    # An output that has stopped is tried again soon, and so is a table that is left out.
    monkeypatch.setattr(output_loop, "_TAKE_AGAIN_S", 1.0)
    monkeypatch.setitem(OutputGroup.__init__.__kwdefaults__, "retry_s", Backoff(1.0, 2.0))
    with ExitStack() as opened:
        target = TARGETS[cell.output](request, tmp_path, opened)
        if cell.fault == "full" and hasattr(target, "give_disk"):
            target.give_disk()
        source = Source(built)
        yield Scene(tmp_path, source, target, TwoOutputs(tmp_path, source, target), cell)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=[] if cell.name in CHEAP else pytest.mark.thorough)
        for cell in CELLS
    ],
)
def test_copy_is_right_when_the_fault_is_over(scene: Scene, cell: Cell) -> None:
    cell.play(scene)
