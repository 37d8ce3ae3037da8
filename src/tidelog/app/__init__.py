"""Connects adapters to ports; the command line and embedding programs call it."""

from tidelog.app.base.last_results import store_check_result
from tidelog.app.base.state_copy import copy_state
from tidelog.app.capture.recovery import repair, reset, reset_plan
from tidelog.app.capture.run import Capture, run_capture
from tidelog.app.multi_capture import CaptureGroup, capture_databases
from tidelog.app.overview.remote_control import (
    OnStatus,
    StatusFeed,
    dump_wait,
    forget_engine,
    hand_over,
    log_lines,
    read_log,
    send_command,
    status,
    wait_delivered,
)
from tidelog.app.pipeline.run import (
    cancel_spark_jobs,
    run_capture_and_pipeline,
    run_pipeline,
)
from tidelog.app.sources.keys import missing_keys, store_key_file
from tidelog.app.sources.plan import plan
from tidelog.app.sources.preflight import check, check_script, check_with_script
from tidelog.app.sources.schema_versions import fix_schema, schemas
from tidelog.app.verification import verify_outputs as verify
from tidelog.app.web.http_server import serve_page

__all__ = [
    "Capture",
    "CaptureGroup",
    "OnStatus",
    "StatusFeed",
    "cancel_spark_jobs",
    "capture_databases",
    "check",
    "check_script",
    "check_with_script",
    "copy_state",
    "dump_wait",
    "fix_schema",
    "forget_engine",
    "hand_over",
    "log_lines",
    "missing_keys",
    "plan",
    "read_log",
    "repair",
    "reset",
    "reset_plan",
    "run_capture",
    "run_capture_and_pipeline",
    "run_pipeline",
    "schemas",
    "send_command",
    "serve_page",
    "status",
    "store_check_result",
    "store_key_file",
    "verify",
    "wait_delivered",
]
