"""What programs implement, or meet in what they implement: outputs, formats, state stores,
sources, and parts of an engine.

Each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Document",
    "Election",
    "ExecutorSection",
    "FormatOptions",
    "Formatter",
    "Lease",
    "OffsetStore",
    "Output",
    "OutputBatch",
    "OutputContext",
    "OutputKind",
    "OutputLocation",
    "OutputSection",
    "RecordProcessor",
    "RecordService",
    "Rejection",
    "Serializer",
    "Snapshotter",
    "SourceSection",
    "StateBackend",
    "StateStore",
    "StoredOffset",
    "TargetTable",
    "WriteTask",
    "Writer",
]

if TYPE_CHECKING:
    from tidelog.app.async_engine.log_task import OffsetStore, StoredOffset
    from tidelog.config.source import SourceSection
    from tidelog.engine.ports import RecordProcessor, RecordService, Serializer
    from tidelog.outputs.base.sections import ExecutorSection, OutputSection
    from tidelog.outputs.base.writer import Writer
    from tidelog.ports import (
        Document,
        Election,
        FormatOptions,
        Formatter,
        Lease,
        Output,
        OutputBatch,
        OutputContext,
        OutputKind,
        OutputLocation,
        Rejection,
        Snapshotter,
        StateBackend,
        StateStore,
        TargetTable,
        WriteTask,
    )
else:
    from tidelog.system.lazy_names import lazy_names

    _LAZY = {
        "Document": "tidelog.ports",
        "Election": "tidelog.ports",
        "ExecutorSection": "tidelog.outputs.base.sections",
        "FormatOptions": "tidelog.ports",
        "Formatter": "tidelog.ports",
        "Lease": "tidelog.ports",
        "OffsetStore": "tidelog.app.async_engine.log_task",
        "Output": "tidelog.ports",
        "OutputBatch": "tidelog.ports",
        "OutputContext": "tidelog.ports",
        "OutputKind": "tidelog.ports",
        "OutputLocation": "tidelog.ports",
        "OutputSection": "tidelog.outputs.base.sections",
        "RecordProcessor": "tidelog.engine.ports",
        "RecordService": "tidelog.engine.ports",
        "Rejection": "tidelog.ports",
        "Serializer": "tidelog.engine.ports",
        "Snapshotter": "tidelog.ports",
        "SourceSection": "tidelog.config.source",
        "StateBackend": "tidelog.ports",
        "StateStore": "tidelog.ports",
        "StoredOffset": "tidelog.app.async_engine.log_task",
        "TargetTable": "tidelog.ports",
        "WriteTask": "tidelog.ports",
        "Writer": "tidelog.outputs.base.writer",
    }
    __getattr__ = lazy_names(__name__, _LAZY)
