"""Capture a database's row changes, dump its tables without locks, deliver both through Spark.

Run:
    Capture: captures one source's log, and dumps its tables
    Pipeline: delivers the event log to all outputs of a configuration
    AsyncEngine: passes change events to functions of yours, or to a loop over an EventStream
    CaptureGroup: several captures with their pipelines in one process

Each has ``run()``, ``start()``, ``stop()``, ``wait()``, and is a context manager.

Configure:
    load_config, Config: a checked tidelog.yaml
    database_config: the configuration of one of ``source.databases``

Ask and compare:
    status: what `tidelog status` shows
    wait_delivered: waits until outputs have a dump
    verify_outputs: compares source and copies
    repair, missing_keys: reads the rows of given keys again; the keys that the source lacks

Meet in callbacks:
    Event, Events, Message, Committer: what an engine passes, and how to say what is done
    EngineState, ConnectorEvent: an engine's states, and what its callbacks get
    Notification: what dumps report

Errors are subclasses of TidelogError, in `tidelog.errors`. Further names are in `tidelog.spark`,
`tidelog.commands`, `tidelog.ext`, `tidelog.results` and `tidelog.testing`. All other modules are
private: they change without notice. docs/reference/python.md has the pages of each name;
``help(tidelog.Capture)`` shows one.

Names are loaded on first use, so that ``import tidelog`` stays quick and needs no Spark.
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
    "ConnectorEvent",
    "EngineState",
    "Event",
    "EventStream",
    "Events",
    "Message",
    "Notification",
    "Pipeline",
    "TidelogError",
    "__version__",
    "commands",
    "database_config",
    "errors",
    "ext",
    "load_config",
    "missing_keys",
    "repair",
    "results",
    "spark",
    "status",
    "verify_outputs",
    "wait_delivered",
]

if TYPE_CHECKING:
    from tidelog import commands, ext, results, spark
    from tidelog.app.async_engine.engine import AsyncEngine, EventStream
    from tidelog.app.capture.recovery import repair
    from tidelog.app.capture.run import Capture
    from tidelog.app.multi_capture import CaptureGroup
    from tidelog.app.overview.remote_control import status, wait_delivered
    from tidelog.app.pipeline.run import Pipeline
    from tidelog.app.sources.keys import missing_keys
    from tidelog.app.verification import verify_outputs
    from tidelog.capture.notifications import Notification
    from tidelog.config import Config, load_config
    from tidelog.config.loading import database_config
    from tidelog.engine.core import EngineState
    from tidelog.engine.events import Event, Events
    from tidelog.engine.ports import Committer, ConnectorEvent, Message
    from tidelog.errors import TidelogError
else:
    from tidelog.system.lazy_names import lazy_names

    # tests/unit/project/test_public_surface.py keeps it as above
    _LAZY = {
        "AsyncEngine": "tidelog.app.async_engine.engine",
        "Capture": "tidelog.app.capture.run",
        "CaptureGroup": "tidelog.app.multi_capture",
        "Committer": "tidelog.engine.ports",
        "Config": "tidelog.config",
        "ConnectorEvent": "tidelog.engine.ports",
        "EngineState": "tidelog.engine.core",
        "Event": "tidelog.engine.events",
        "EventStream": "tidelog.app.async_engine.engine",
        "Events": "tidelog.engine.events",
        "Message": "tidelog.engine.ports",
        "Notification": "tidelog.capture.notifications",
        "Pipeline": "tidelog.app.pipeline.run",
        "TidelogError": "tidelog.errors",
        "database_config": "tidelog.config.loading",
        "load_config": "tidelog.config",
        "missing_keys": "tidelog.app.sources.keys",
        "repair": "tidelog.app.capture.recovery",
        "status": "tidelog.app.overview.remote_control",
        "verify_outputs": "tidelog.app.verification",
        "wait_delivered": "tidelog.app.overview.remote_control",
    }
    __getattr__ = lazy_names(__name__, _LAZY, ("commands", "ext", "results", "spark"))
