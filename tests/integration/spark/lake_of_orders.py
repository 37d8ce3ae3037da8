"""A Delta output that holds something else than copies, of the table ``public.orders``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.integration.spark.conftest import Lake

from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.output import DeltaOptions, DeltaOutput
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.settling.tasks import rewrite_files
from tidelog.ports import StateStore
from tidelog.spark.datasource.segment_rows import batch_of

NAME = "public.orders"


class LakeOfOrders(Lake):
    """``holds``: what its tables contain."""

    holds: str

    def output(self, state: StateStore | None = None, **options: Any) -> DeltaOutput:
        chosen = DeltaOptions(**{"holds": {"*.*": self.holds}, **options})
        return DeltaOutput(self.spark, self.built.path, self.path, options=chosen, state=state)

    @property
    def place(self) -> str:
        return path_of(self.path, TableName.parse(NAME), NAME)

    @property
    def table(self) -> DeltaTable:
        layout = DeltaOptions(holds={"*.*": self.holds}).layout_of(TableName.parse(NAME))
        table = DeltaTable(self.place, layout, lambda works: [rewrite_files(w) for w in works])
        assert table.exists()
        return table

    def bring(self, *cuts: int, output: DeltaOutput | None = None) -> None:
        """All of the log in batches that end at these offsets; what is there is skipped."""
        output = output or self.output()
        bounds = [0, *cuts, self.built.log.latest_offset()]
        for start, end in pairwise(bounds):
            if start < end:
                output.write(batch_of(self.built.log, start, end))
        output.close()
