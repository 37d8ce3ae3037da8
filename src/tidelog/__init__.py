"""Capture a database's row changes, dump its tables without locks, deliver both through Spark.

What programs may use is in `__all__`, `tidelog.errors`, `tidelog.pipeline` and `tidelog.testing`,
and described in docs/reference/python.md. All other modules are private: they change without
notice. Everything is loaded on first use, so that ``import tidelog`` stays quick and needs no
Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog import errors
from tidelog.system.version import __version__

__all__ = [
    "AsyncEngine",
    "Capture",
    "CaptureGroup",
    "Committer",
    "Config",
    "Document",
    "Election",
    "Engine",
    "EngineState",
    "Event",
    "EventStream",
    "Events",
    "ExecuteSnapshot",
    "ExecutorSection",
    "FormatOptions",
    "Formatter",
    "Happened",
    "Lease",
    "LogMessage",
    "Message",
    "Notification",
    "OffsetStore",
    "Outcome",
    "Output",
    "OutputBatch",
    "OutputContext",
    "OutputKind",
    "OutputPlace",
    "OutputSection",
    "PauseLog",
    "PausePipeline",
    "PauseSnapshot",
    "RecordProcessor",
    "RecordService",
    "Rejection",
    "ResumeLog",
    "ResumePipeline",
    "ResumeSnapshot",
    "Serializer",
    "SetDumpOptions",
    "Snapshotter",
    "SourceSection",
    "StateBackend",
    "StateStore",
    "StopSnapshot",
    "StoredOffset",
    "TargetTable",
    "TidelogError",
    "WriteTask",
    "Writer",
    "__version__",
    "as_of",
    "errors",
    "lag_of",
    "load_config",
    "missing_keys",
    "of_database",
    "register",
    "repair",
    "run_pipeline",
    "spark_session",
    "status",
    "verify_outputs",
    "wait_finalized",
]

if TYPE_CHECKING:
    from tidelog.app.async_engine.engine import AsyncEngine
    from tidelog.app.async_engine.event_stream import EventStream
    from tidelog.app.async_engine.log_task import OffsetStore, StoredOffset
    from tidelog.app.capture.multi_capture import CaptureGroup
    from tidelog.app.capture.multi_capture import CaptureGroup as Engine
    from tidelog.app.capture.run import Capture
    from tidelog.app.dumps.finalize import wait_finalized
    from tidelog.app.dumps.keys import missing_keys
    from tidelog.app.dumps.repair import repair
    from tidelog.app.pipeline.run import pipeline as run_pipeline
    from tidelog.app.remote_control import status
    from tidelog.app.verify.compare import verify as verify_outputs
    from tidelog.capture.notifications import Notification
    from tidelog.config import Config, load_config
    from tidelog.config.databases import of_database
    from tidelog.config.source import SourceSection
    from tidelog.control.commands import (
        ExecuteSnapshot,
        LogMessage,
        PauseLog,
        PausePipeline,
        PauseSnapshot,
        ResumeLog,
        ResumePipeline,
        ResumeSnapshot,
        SetDumpOptions,
        StopSnapshot,
    )
    from tidelog.control.mailbox import Outcome
    from tidelog.engine.events import Event, Events
    from tidelog.engine.ports import (
        Committer,
        Happened,
        Message,
        RecordProcessor,
        RecordService,
        Serializer,
    )
    from tidelog.engine.state_machine import EngineState
    from tidelog.errors import TidelogError
    from tidelog.outputs.base.executors.writer import Writer
    from tidelog.outputs.registry import ExecutorSection, OutputSection
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
        OutputPlace,
        Rejection,
        Snapshotter,
        StateBackend,
        StateStore,
        TargetTable,
        WriteTask,
    )
    from tidelog.spark.changes.replaying import as_of
    from tidelog.spark.datasource.lag import lag_of
    from tidelog.spark.datasource.source import register
    from tidelog.spark.sessions.session import spark_session
else:
    # name: module, and the name there; tests/unit/test_public_surface.py keeps it as above
    _LAZY = {
        "AsyncEngine": ("tidelog.app.async_engine.engine", "AsyncEngine"),
        "Capture": ("tidelog.app.capture.run", "Capture"),
        "CaptureGroup": ("tidelog.app.capture.multi_capture", "CaptureGroup"),
        "Committer": ("tidelog.engine.ports", "Committer"),
        "Config": ("tidelog.config", "Config"),
        "Document": ("tidelog.ports", "Document"),
        "Election": ("tidelog.ports", "Election"),
        "Engine": ("tidelog.app.capture.multi_capture", "CaptureGroup"),  # its former name
        "EngineState": ("tidelog.engine.state_machine", "EngineState"),
        "Event": ("tidelog.engine.events", "Event"),
        "Events": ("tidelog.engine.events", "Events"),
        "ExecuteSnapshot": ("tidelog.control.commands", "ExecuteSnapshot"),
        "ExecutorSection": ("tidelog.outputs.registry", "ExecutorSection"),
        "FormatOptions": ("tidelog.ports", "FormatOptions"),
        "Formatter": ("tidelog.ports", "Formatter"),
        "Happened": ("tidelog.engine.ports", "Happened"),
        "Lease": ("tidelog.ports", "Lease"),
        "LogMessage": ("tidelog.control.commands", "LogMessage"),
        "Message": ("tidelog.engine.ports", "Message"),
        "Notification": ("tidelog.capture.notifications", "Notification"),
        "EventStream": ("tidelog.app.async_engine.event_stream", "EventStream"),
        "OffsetStore": ("tidelog.app.async_engine.log_task", "OffsetStore"),
        "Outcome": ("tidelog.control.mailbox", "Outcome"),
        "Output": ("tidelog.ports", "Output"),
        "OutputBatch": ("tidelog.ports", "OutputBatch"),
        "OutputContext": ("tidelog.ports", "OutputContext"),
        "OutputKind": ("tidelog.ports", "OutputKind"),
        "OutputPlace": ("tidelog.ports", "OutputPlace"),
        "OutputSection": ("tidelog.outputs.registry", "OutputSection"),
        "PauseLog": ("tidelog.control.commands", "PauseLog"),
        "PausePipeline": ("tidelog.control.commands", "PausePipeline"),
        "PauseSnapshot": ("tidelog.control.commands", "PauseSnapshot"),
        "RecordProcessor": ("tidelog.engine.ports", "RecordProcessor"),
        "RecordService": ("tidelog.engine.ports", "RecordService"),
        "Rejection": ("tidelog.ports", "Rejection"),
        "ResumeLog": ("tidelog.control.commands", "ResumeLog"),
        "ResumePipeline": ("tidelog.control.commands", "ResumePipeline"),
        "ResumeSnapshot": ("tidelog.control.commands", "ResumeSnapshot"),
        "Serializer": ("tidelog.engine.ports", "Serializer"),
        "SetDumpOptions": ("tidelog.control.commands", "SetDumpOptions"),
        "Snapshotter": ("tidelog.ports", "Snapshotter"),
        "SourceSection": ("tidelog.config.source", "SourceSection"),
        "StateBackend": ("tidelog.ports", "StateBackend"),
        "StateStore": ("tidelog.ports", "StateStore"),
        "StopSnapshot": ("tidelog.control.commands", "StopSnapshot"),
        "StoredOffset": ("tidelog.app.async_engine.log_task", "StoredOffset"),
        "TargetTable": ("tidelog.ports", "TargetTable"),
        "TidelogError": ("tidelog.errors", "TidelogError"),
        "WriteTask": ("tidelog.ports", "WriteTask"),
        "Writer": ("tidelog.outputs.base.executors.writer", "Writer"),
        "as_of": ("tidelog.spark.changes.replaying", "as_of"),
        "lag_of": ("tidelog.spark.datasource.lag", "lag_of"),
        "load_config": ("tidelog.config", "load_config"),
        "missing_keys": ("tidelog.app.dumps.keys", "missing_keys"),
        "of_database": ("tidelog.config.databases", "of_database"),
        "register": ("tidelog.spark.datasource.source", "register"),
        "repair": ("tidelog.app.dumps.repair", "repair"),
        "run_pipeline": ("tidelog.app.pipeline.run", "pipeline"),
        "spark_session": ("tidelog.spark.sessions.session", "spark_session"),
        "status": ("tidelog.app.remote_control", "status"),
        "verify_outputs": ("tidelog.app.verify.compare", "verify"),
        "wait_finalized": ("tidelog.app.dumps.finalize", "wait_finalized"),
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
        from importlib import import_module

        module, own = _LAZY[name]
        return getattr(import_module(module), own)

    def __dir__():
        return sorted({*globals(), *__all__})
