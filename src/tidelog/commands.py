"""Commands for `tidelog.Capture.send`, and what became of one.

Each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "CancelDump",
    "LogMessage",
    "Outcome",
    "PauseDump",
    "PauseLog",
    "PausePipeline",
    "ResumeDump",
    "ResumeLog",
    "ResumePipeline",
    "SetDumpOptions",
    "StartDump",
]

if TYPE_CHECKING:
    from tidelog.control.commands import (
        CancelDump,
        LogMessage,
        PauseDump,
        PauseLog,
        PausePipeline,
        ResumeDump,
        ResumeLog,
        ResumePipeline,
        SetDumpOptions,
        StartDump,
    )
    from tidelog.control.mailbox import Outcome
else:
    from tidelog.system.lazy_names import lazy_names

    _LAZY = dict.fromkeys(__all__, "tidelog.control.commands")
    _LAZY["Outcome"] = "tidelog.control.mailbox"
    __getattr__ = lazy_names(__name__, _LAZY)
