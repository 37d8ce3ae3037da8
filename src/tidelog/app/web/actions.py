"""What the page's forms ask for, as commands. Nothing else can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.control.commands import (
    Command,
    ExecuteSnapshot,
    PauseLog,
    PausePipeline,
    PauseSnapshot,
    ResumeLog,
    ResumePipeline,
    ResumeSnapshot,
    SetDumpOptions,
    StopSnapshot,
    build,
)
from tidelog.control.mailbox import new_id
from tidelog.errors import UsageError

THE_LOG: Final = "the source's log"


def command_of(asked: Any, by: str) -> tuple[Command, str]:
    """The command that ``asked`` describes, and its subject, for the audit list.

    Raises:
        UsageError: it describes none.
    """
    if not isinstance(asked, Mapping):
        raise UsageError("the body is a JSON object")
    action, dump_id = asked.get("action"), asked.get("dump")
    if dump_id is not None and not isinstance(dump_id, str):
        raise UsageError("dump is a text")
    about = dump_id or "all dumps"
    if action == "dump":
        tables = texts(asked, "tables")
        found = build(ExecuteSnapshot, {"dump_id": new_id().lower(), "tables": tables})
        return found, ", ".join(tables) or "all tables"
    if action == "pause":
        return build(PauseSnapshot, {"dump_id": dump_id, "by": by}), about
    if action == "resume":
        return build(ResumeSnapshot, {"dump_id": dump_id}), about
    if action == "cancel":
        return build(StopSnapshot, {"dump_id": dump_id}), about
    if action == "limits":
        options = asked.get("options")
        limits = build(SetDumpOptions, options, "limits")
        assert isinstance(limits, SetDumpOptions)
        return limits, ", ".join(f"{name}={value}" for name, value in limits.changes.items())
    if action == "pause-log":
        return build(PauseLog, {"by": by}), THE_LOG
    if action == "resume-log":
        return ResumeLog(), THE_LOG
    if action in ("pause-pipeline", "resume-pipeline"):
        name = asked.get("pipeline")
        if not isinstance(name, str):
            raise UsageError("pipeline is a text")
        if action == "pause-pipeline":
            return build(PausePipeline, {"pipeline": name, "by": by}), f"pipeline {name}"
        return build(ResumePipeline, {"pipeline": name}), f"pipeline {name}"
    raise UsageError(
        "action is one of dump, pause, resume, cancel, limits, pause-log, resume-log, "
        "pause-pipeline, resume-pipeline"
    )


def texts(asked: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts of ``asked``; absent: none."""
    found = asked.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{name} is a list of texts")
    return found
