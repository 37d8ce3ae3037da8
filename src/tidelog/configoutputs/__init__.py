"""``outputs`` of ``tidelog.yaml``: one model for each kind, told apart by ``kind``.

A new kind of ours is a model in a module here, derived from a section of `sections`, listed in
`OUTPUTS` and `_Ours`, and a factory in `tidelog.runtime.outputs`. Those of other distributions are
found by entry points (docs/how-to/extend.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tidelog.brought import OneOf
from tidelog.configoutputs.database import DatabaseSection, MySqlOutput, PostgresOutput
from tidelog.configoutputs.delta import DeltaOutput
from tidelog.configoutputs.files import FilesOutput
from tidelog.configoutputs.http import HttpOutput
from tidelog.configoutputs.iceberg import IcebergOutput
from tidelog.configoutputs.kafka import KafkaOutput
from tidelog.configoutputs.opensearch import DocumentPart, JoinedDocument, OpenSearchOutput
from tidelog.configoutputs.python import PythonOutput
from tidelog.configoutputs.sections import (
    DeadLetter,
    DebeziumModes,
    ExecutorSection,
    OutputSection,
    Step,
    SteppedSection,
)

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
