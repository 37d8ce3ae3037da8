"""Supports capture from a physical standby (PostgreSQL 16 and later).

Nothing can be written there: chunks are placed by snapshots only (strategy ``snapshot``), and the
publications are created on the primary. The slot is the standby's own; creating it waits until the
primary logs which transactions are running.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psycopg

from tidelog.errors import PreflightError
from tidelog.sources.postgres.chunks.watermarks import Strategy

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]

MIN_VERSION = 16
HINT_AFTER_S = 5.0
LOG_SNAPSHOT = "SELECT pg_log_standby_snapshot()"


def in_recovery(connection: Connection) -> bool:
    """Return True if the server is a standby now."""
    row = connection.execute(b"SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None
    return bool(row[0])


def check_standby(connection: Connection, strategy: Strategy) -> None:
    """Raise PreflightError if a standby of this version can't be captured with this strategy."""
    major = connection.info.server_version // 10_000
    if major < MIN_VERSION:
        raise PreflightError(
            f"the server is a standby of PostgreSQL {major}: {MIN_VERSION} or newer is needed to "
            "capture from one; let source.url lead to the primary"
        )
    if strategy != "snapshot":
        raise PreflightError(
            f"the server is a standby, where no watermarks can be written (source.watermarks is "
            f"{strategy}): set source.watermarks: snapshot, or let source.url lead to the primary"
        )


@contextmanager
def hint_while_waiting(slot: str) -> Iterator[None]:
    """Log what ends the wait if creating a slot takes long."""
    timer = threading.Timer(
        HINT_AFTER_S,
        logger.warning,
        (
            "slot %r waits until the primary logs which transactions run there; to end the wait, "
            "run on the primary: %s",
            slot,
            LOG_SNAPSHOT,
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def standby_findings(
    connection: Connection, strategy: Strategy
) -> Iterator[tuple[Literal["ok", "warn", "fail"], str, str]]:
    """For `tidelog check`: level, message and fix; nothing if the server is no standby."""
    if not in_recovery(connection):
        return
    try:
        check_standby(connection, strategy)
    except PreflightError as error:
        yield "fail", str(error), "source.watermarks: snapshot"
        return
    yield "ok", "the server is a standby: run SQL for tables and publications on its primary", ""
    row = connection.execute(
        b"SELECT current_setting('hot_standby_feedback')::bool, "
        b"current_setting('primary_slot_name') <> ''"
    ).fetchone()
    assert row is not None
    feedback, slotted = row
    if not feedback:
        yield (
            "fail",
            "hot_standby_feedback is off: the primary's vacuum would invalidate the slot",
            "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )
    elif not slotted:
        yield (
            "warn",
            "the standby uses no slot of its primary: while it is disconnected, vacuum there may "
            "invalidate the slot here",
            "SELECT pg_create_physical_replication_slot('standby'); -- on the primary; then here "
            "ALTER SYSTEM SET primary_slot_name = 'standby'; SELECT pg_reload_conf();",
        )
    else:
        yield "ok", "the primary keeps what the slot needs (hot_standby_feedback, a slot)", ""
