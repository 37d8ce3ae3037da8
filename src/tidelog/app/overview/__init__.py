"""The overview of one Tidelog: what it does, how far behind it is, and what is wrong.

`overview` computes it from a status document; terminal, HTTP interface and metrics show it and
judge nothing themselves.
"""

from tidelog.app.overview.build import dump_progress, overview
from tidelog.app.overview.reader import consumers_of
from tidelog.results import (
    ChunkSpan,
    EngineHealth,
    OperationDrop,
    OutputHealth,
    Overview,
    PipelineOverview,
    Problem,
    RunningDump,
    Severity,
    SourceHealth,
    SummaryLine,
    Table,
    TableCaptureState,
    TableInProgress,
    VerifyResult,
)

__all__ = [
    "ChunkSpan",
    "EngineHealth",
    "OperationDrop",
    "OutputHealth",
    "Overview",
    "PipelineOverview",
    "Problem",
    "RunningDump",
    "Severity",
    "SourceHealth",
    "SummaryLine",
    "Table",
    "TableCaptureState",
    "TableInProgress",
    "VerifyResult",
    "consumers_of",
    "dump_progress",
    "overview",
]
