"""``outputs`` of ``tidelog.yaml``: one model for each kind, told apart by ``kind``.

A new kind of ours is a model in a module here, derived from a section of `sections`, listed in
`OUTPUTS` and `_Ours`, and a factory in `tidelog.app.outputs`. Those of other distributions are
found by entry points (docs/how-to/extend.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tidelog.brought import OneOf
from tidelog.outputs.base.sections import (
    DeadLetter,
    DebeziumModes,
    ExecutorSection,
    OutputSection,
    Step,
    SteppedSection,
)
from tidelog.outputs.custom.config import PythonOutput
from tidelog.outputs.database.config import DatabaseSection, MySqlOutput, PostgresOutput
from tidelog.outputs.files.config import FilesOutput
from tidelog.outputs.http.config import HttpOutput
from tidelog.outputs.kafka.config import KafkaOutput
from tidelog.outputs.lake.delta_config import DeltaOutput
from tidelog.outputs.lake.iceberg_config import IcebergOutput
from tidelog.outputs.opensearch.config import DocumentPart, JoinedDocument, OpenSearchOutput

OUTPUTS: dict[str, type[OutputSection]] = {
    "delta": DeltaOutput,
    "files": FilesOutput,
    "http": HttpOutput,
    "iceberg": IcebergOutput,
    "kafka": KafkaOutput,
    "opensearch": OpenSearchOutput,
    "python": PythonOutput,
    "postgres": PostgresOutput,
    "mysql": MySqlOutput,
}


_Ours = (
    MySqlOutput
    | PostgresOutput
    | DeltaOutput
    | FilesOutput
    | HttpOutput
    | IcebergOutput
    | PythonOutput
    | KafkaOutput
    | OpenSearchOutput
)
if TYPE_CHECKING:
    AnyOutput = _Ours
else:
    AnyOutput = Annotated[object, OneOf(OUTPUTS)]

__all__ = [
    "OUTPUTS",
    "AnyOutput",
    "DatabaseSection",
    "DeadLetter",
    "DebeziumModes",
    "DeltaOutput",
    "DocumentPart",
    "ExecutorSection",
    "FilesOutput",
    "HttpOutput",
    "IcebergOutput",
    "JoinedDocument",
    "KafkaOutput",
    "MySqlOutput",
    "OpenSearchOutput",
    "OutputSection",
    "PostgresOutput",
    "PythonOutput",
    "Step",
    "SteppedSection",
]
