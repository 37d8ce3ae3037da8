"""One picture of a Tidelog: what it does, how late it is, and what is wrong with it.

`overview` makes it from a status document; terminal, HTTP interface and metrics show it and judge
nothing themselves.
"""

from tidelog.app.overview.build import dumping, overview
from tidelog.app.overview.document import (
    Answer,
    Delivering,
    Drop,
    Dumping,
    EngineHealth,
    Lane,
    OutputHealth,
    Overview,
    Problem,
    Severity,
    SourceHealth,
    Table,
    TableBeingRead,
    TableCaptureState,
    Verified,
)
from tidelog.app.overview.outputs import consumers_of

__all__ = [
    "Answer",
    "Delivering",
    "Drop",
    "Dumping",
    "EngineHealth",
    "Lane",
    "OutputHealth",
    "Overview",
    "Problem",
    "Severity",
    "SourceHealth",
    "Table",
    "TableBeingRead",
    "TableCaptureState",
    "Verified",
    "consumers_of",
    "dumping",
    "overview",
]
