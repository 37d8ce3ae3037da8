"""Capture a database's row changes, dump its tables without locks, deliver both through Spark.

What programs may use is in `__all__`, in `tidelog.errors` and in `tidelog.pipeline`, and described
in docs/reference/python.md. All other modules are private: they change without notice. Everything
is loaded on first use, so that ``import tidelog`` stays quick and needs no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog import errors as errors
from tidelog._version import __version__

__all__ = [
    "Capture",
    "Config",
    "Document",
    "Election",
    "Engine",
    "ExecuteSnapshot",
    "ExecutorSection",
    "FormatOptions",
    "Formatter",
    "Lease",
    "LogMessage",
    "Notification",
    "Outcome",
    "Output",
    "OutputBatch",
    "OutputContext",
    "OutputKind",
    "OutputSection",
    "PauseSnapshot",
    "Rejection",
    "ResumeSnapshot",
    "SetDumpOptions",
    "SourceSection",
    "StateBackend",
    "StateStore",
    "StopSnapshot",
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
    "register",
    "repair",
    "run_pipeline",
    "spark_session",
    "status",
    "verify_outputs",
    "wait_finalized",
]

if TYPE_CHECKING:
    from tidelog.capture.notifications import Notification
    from tidelog.config import Config, load_config
    from tidelog.configoutputs import ExecutorSection, OutputSection
    from tidelog.configsource import SourceSection
    from tidelog.control.commands import (
        ExecuteSnapshot,
        LogMessage,
        PauseSnapshot,
        ResumeSnapshot,
        SetDumpOptions,
        StopSnapshot,
    )
    from tidelog.control.mailbox import Outcome
    from tidelog.errors import TidelogError
    from tidelog.outputs.writer import Writer
    from tidelog.pipeline.lag import lag_of
    from tidelog.pipeline.replaying import as_of
    from tidelog.pipeline.session import spark_session
    from tidelog.pipeline.source import register
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
        Rejection,
        StateBackend,
        StateStore,
        TargetTable,
        WriteTask,
    )
    from tidelog.runtime.asking import status
    from tidelog.runtime.capturing import Capture
    from tidelog.runtime.comparing import verify as verify_outputs
    from tidelog.runtime.embedding import Engine
    from tidelog.runtime.finalizing import wait_finalized
    from tidelog.runtime.key_scope import missing_keys
    from tidelog.runtime.piping import pipeline as run_pipeline
    from tidelog.runtime.repairing import repair
else:
    # name: module, and the name there; tests/unit/test_public_surface.py keeps it as above
    _LAZY = {
        "Capture": ("tidelog.runtime.capturing", "Capture"),
        "Config": ("tidelog.config", "Config"),
        "Document": ("tidelog.ports", "Document"),
        "Election": ("tidelog.ports", "Election"),
        "Engine": ("tidelog.runtime.embedding", "Engine"),
        "ExecuteSnapshot": ("tidelog.control.commands", "ExecuteSnapshot"),
        "ExecutorSection": ("tidelog.configoutputs", "ExecutorSection"),
        "FormatOptions": ("tidelog.ports", "FormatOptions"),
        "Formatter": ("tidelog.ports", "Formatter"),
        "Lease": ("tidelog.ports", "Lease"),
        "LogMessage": ("tidelog.control.commands", "LogMessage"),
        "Notification": ("tidelog.capture.notifications", "Notification"),
        "Outcome": ("tidelog.control.mailbox", "Outcome"),
        "Output": ("tidelog.ports", "Output"),
        "OutputBatch": ("tidelog.ports", "OutputBatch"),
        "OutputContext": ("tidelog.ports", "OutputContext"),
        "OutputKind": ("tidelog.ports", "OutputKind"),
        "OutputSection": ("tidelog.configoutputs", "OutputSection"),
        "PauseSnapshot": ("tidelog.control.commands", "PauseSnapshot"),
        "Rejection": ("tidelog.ports", "Rejection"),
        "ResumeSnapshot": ("tidelog.control.commands", "ResumeSnapshot"),
        "SetDumpOptions": ("tidelog.control.commands", "SetDumpOptions"),
        "SourceSection": ("tidelog.configsource", "SourceSection"),
        "StateBackend": ("tidelog.ports", "StateBackend"),
        "StateStore": ("tidelog.ports", "StateStore"),
        "StopSnapshot": ("tidelog.control.commands", "StopSnapshot"),
        "TargetTable": ("tidelog.ports", "TargetTable"),
        "TidelogError": ("tidelog.errors", "TidelogError"),
        "WriteTask": ("tidelog.ports", "WriteTask"),
        "Writer": ("tidelog.outputs.writer", "Writer"),
        "as_of": ("tidelog.pipeline.replaying", "as_of"),
        "lag_of": ("tidelog.pipeline.lag", "lag_of"),
        "load_config": ("tidelog.config", "load_config"),
        "missing_keys": ("tidelog.runtime.key_scope", "missing_keys"),
        "register": ("tidelog.pipeline.source", "register"),
        "repair": ("tidelog.runtime.repairing", "repair"),
        "run_pipeline": ("tidelog.runtime.piping", "pipeline"),
        "spark_session": ("tidelog.pipeline.session", "spark_session"),
        "status": ("tidelog.runtime.asking", "status"),
        "verify_outputs": ("tidelog.runtime.comparing", "verify"),
        "wait_finalized": ("tidelog.runtime.finalizing", "wait_finalized"),
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
        from importlib import import_module

        module, own = _LAZY[name]
        return getattr(import_module(module), own)

    def __dir__():
        return sorted({*globals(), *__all__})
