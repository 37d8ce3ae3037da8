"""Wires adapters to ports, alone in that; what the command line and embedding programs call."""

from tidelog.runtime.asking import dump_wait, log_lines, read_log, send_command, status
from tidelog.runtime.capturing import Capture, OnStatus, capture
from tidelog.runtime.checking import check
from tidelog.runtime.comparing import verify
from tidelog.runtime.embedding import Engine
from tidelog.runtime.finalizing import wait_finalized
from tidelog.runtime.key_scope import missing_keys, store_key_file
from tidelog.runtime.piping import pipeline, run, start_spark
from tidelog.runtime.planning import plan
from tidelog.runtime.repairing import repair
from tidelog.runtime.schemas import fix_schema, schemas
from tidelog.runtime.watching import StatusFeed

__all__ = [
    "Capture",
    "Engine",
    "OnStatus",
    "StatusFeed",
    "capture",
    "check",
    "dump_wait",
    "fix_schema",
    "log_lines",
    "missing_keys",
    "pipeline",
    "plan",
    "read_log",
    "repair",
    "run",
    "schemas",
    "send_command",
    "start_spark",
    "status",
    "store_key_file",
    "verify",
    "wait_finalized",
]
