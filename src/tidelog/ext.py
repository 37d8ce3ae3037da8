"""What programs implement, or meet in what they implement: outputs, formats, state stores,
sources, and parts of an engine.

Each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Document",
    "Documents",
    "Election",
    "ExecutorSection",
    "Finding",
    "FormatOptions",
    "Formatter",
    "Lease",
    "LeaseElection",
    "OffsetStore",
    "Output",
    "OutputBatch",
    "OutputContext",
    "OutputKind",
    "OutputLocation",
    "OutputSection",
    "ReadableOutput",
    "RecordProcessor",
    "RecordService",
    "Rejection",
    "Serializer",
    "Snapshotter",
    "SourceBlocks",
    "SourceKind",
    "SourceSection",
    "StateBackend",
    "StateStore",
    "StoredOffset",
    "TargetTable",
    "WireFormat",
    "WriteTask",
    "Writer",
]

if TYPE_CHECKING:
    from tidelog.app.async_engine.log_task import OffsetStore, StoredOffset
    from tidelog.app.sources.kinds import SourceKind
    from tidelog.codecs.source_blocks import SourceBlocks
    from tidelog.codecs.wire_formats import WireFormat
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
    from tidelog.sources.findings import Finding
    from tidelog.state.documents import Documents, LeaseElection
    from tidelog.verify.model import ReadableOutput
else:
    from tidelog.system.lazy_names import lazy_names

    _LAZY = {
        "Document": "tidelog.ports",
        "Documents": "tidelog.state.documents",
        "Election": "tidelog.ports",
        "ExecutorSection": "tidelog.outputs.base.sections",
        "Finding": "tidelog.sources.findings",
        "FormatOptions": "tidelog.ports",
        "Formatter": "tidelog.ports",
        "Lease": "tidelog.ports",
        "LeaseElection": "tidelog.state.documents",
        "OffsetStore": "tidelog.app.async_engine.log_task",
        "Output": "tidelog.ports",
        "OutputBatch": "tidelog.ports",
        "OutputContext": "tidelog.ports",
        "OutputKind": "tidelog.ports",
        "OutputLocation": "tidelog.ports",
        "OutputSection": "tidelog.outputs.base.sections",
        "ReadableOutput": "tidelog.verify.model",
        "RecordProcessor": "tidelog.engine.ports",
        "RecordService": "tidelog.engine.ports",
        "Rejection": "tidelog.ports",
        "Serializer": "tidelog.engine.ports",
        "Snapshotter": "tidelog.ports",
        "SourceBlocks": "tidelog.codecs.source_blocks",
        "SourceKind": "tidelog.app.sources.kinds",
        "SourceSection": "tidelog.config.source",
        "StateBackend": "tidelog.ports",
        "StateStore": "tidelog.ports",
        "StoredOffset": "tidelog.app.async_engine.log_task",
        "TargetTable": "tidelog.ports",
        "WireFormat": "tidelog.codecs.wire_formats",
        "WriteTask": "tidelog.ports",
        "Writer": "tidelog.outputs.base.writer",
    }
    __getattr__ = lazy_names(__name__, _LAZY)
