"""``outputs`` of ``tidelog.yaml``: one model for each kind, selected by ``kind``.

A new kind of ours is a folder of `tidelog.outputs`: its section, derived from one of
`tidelog.outputs.base.sections` and listed in `OUTPUTS`, and its `BuiltinKind`, which
`tidelog.kinds.adapters` names. Kinds of other distributions are found by entry points
(docs/how-to/extend.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tidelog.kinds.sections import OneOf
from tidelog.outputs.base.sections import OutputSection
from tidelog.outputs.custom.kind import PythonSection
from tidelog.outputs.database.kinds import MySqlSection, PostgresSection
from tidelog.outputs.files.kind import FilesSection
from tidelog.outputs.http.kind import HttpSection
from tidelog.outputs.kafka.kind import KafkaSection
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.outputs.lake.iceberg.config import IcebergSection
from tidelog.outputs.opensearch.kind import OpenSearchSection

OUTPUTS: dict[str, type[OutputSection]] = {
    "delta": DeltaSection,
    "files": FilesSection,
    "http": HttpSection,
    "iceberg": IcebergSection,
    "kafka": KafkaSection,
    "opensearch": OpenSearchSection,
    "python": PythonSection,
    "postgres": PostgresSection,
    "mysql": MySqlSection,
}

if TYPE_CHECKING:
    AnyOutput = OutputSection
else:
    AnyOutput = Annotated[object, OneOf(OUTPUTS)]
