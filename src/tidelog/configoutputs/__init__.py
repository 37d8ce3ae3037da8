"""``outputs`` of ``tidelog.yaml``: one model for each kind, told apart by ``kind``.

A new kind is a model in a module here, derived from a section of `sections`, listed in `OUTPUTS`
and `AnyOutput`, and a factory in `tidelog.runtime.outputs`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidelog.configoutputs.database import MySqlOutput, PostgresOutput
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

AnyOutput = Annotated[
    MySqlOutput
    | PostgresOutput
    | DeltaOutput
    | FilesOutput
    | HttpOutput
    | IcebergOutput
    | PythonOutput
    | KafkaOutput
    | OpenSearchOutput,
    Field(discriminator="kind"),
]

__all__ = [
    "OUTPUTS",
    "AnyOutput",
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
]
