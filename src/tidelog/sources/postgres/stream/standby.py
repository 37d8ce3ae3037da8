"""Supports capture from a physical standby (PostgreSQL 16 and later), and waits for its new slot.

Nothing can be written there: chunks are placed by snapshots only (strategy ``snapshot``), and the
publications are created on the primary. The slot is the standby's own; creating it waits until the
primary logs which transactions are running.

Creating a slot, there or on a primary, waits until all transactions have ended that were open when
it began (PostgreSQL's snapbuild.c). Those with changes, in any database, are logged. They are found
by the lock on their own id, which every role may see, unlike the columns of pg_stat_activity. No
statement's text is shown: it may hold values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tidelog.errors import PreflightError, TidelogError
from tidelog.sources.postgres.chunks.watermarks import Strategy
from tidelog.sources.postgres.connect import Connection, quote_literal
from tidelog.sources.postgres.errors import translate_errors

logger = logging.getLogger(__name__)


STANDBY_MIN_VERSION = 16
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
    if major < STANDBY_MIN_VERSION:
        raise PreflightError(
            f"the server is a standby of PostgreSQL {major}: {STANDBY_MIN_VERSION} or newer is "
            "needed to capture from one; let source.url lead to the primary"
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
) -> Iterator[tuple[Literal["ok", "warning", "error"], str, str]]:
    """For `tidelog check`: level, message and fix; nothing if the server is no standby."""
    if not in_recovery(connection):
        return
    try:
        check_standby(connection, strategy)
    except PreflightError as error:
        yield "error", str(error), "source.watermarks: snapshot"
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
            "error",
            "hot_standby_feedback is off: the primary's vacuum would invalidate the slot",
            "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )
    elif not slotted:
        yield (
            "warning",
            "the standby uses no slot of its primary: while it is disconnected, vacuum there may "
            "invalidate the slot here",
            "SELECT pg_create_physical_replication_slot('standby'); -- on the primary; then here "
            "ALTER SYSTEM SET primary_slot_name = 'standby'; SELECT pg_reload_conf();",
        )
    else:
        yield "ok", "the primary keeps what the slot needs (hot_standby_feedback, a slot)", ""


# The transactions that a new slot waits for.

SHOWN = 3

# A transaction's subtransactions have locks on ids of their own.
_HOLDERS = """
SELECT gid, pid, application, datname, seconds, count(*) OVER () FROM (
  SELECT p.gid, l.pid, max(a.application_name) AS application,
    max(coalesce(p.database, a.datname)::text) AS datname,
    max(extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start)))::int8
      AS seconds,
    max(pg_catalog.age(l.transactionid)) AS age
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
    AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
    AND (l.pid IS NOT NULL OR p.gid IS NOT NULL)
  GROUP BY p.gid, l.pid
) AS holder ORDER BY age DESC, seconds DESC NULLS LAST LIMIT %s
"""


def who_is_open(connection: Connection) -> str:
    """A sentence about the oldest open transactions with changes, and how to end them."""
    rows = connection.execute(_HOLDERS.encode(), (SHOWN,)).fetchall()
    if not rows:
        return "No transaction with changes is open now: try again"
    descriptions = [_describe(*row[:-1]) for row in rows]
    total = int(rows[0][-1])
    more = f"; and {total - len(rows)} more" if total > len(rows) else ""
    return f"Open, the oldest first: {'; '.join(descriptions)}{more}"


def _describe(
    gid: str | None, pid: int | None, application: str | None, database: str | None, age: int | None
) -> str:
    since = "" if age is None else f", open for {age:,} s"
    where = f" in database {database!r}" if database else ""
    if gid is not None:
        quoted = quote_literal(gid).strip()
        return (
            f"prepared transaction {quoted}{where}{since} (there: COMMIT PREPARED {quoted} or "
            f"ROLLBACK PREPARED {quoted})"
        )
    name = f" ({application!r})" if application else ""
    return f"process {pid}{name}{where}{since} (SELECT pg_terminate_backend({pid}))"


@contextmanager
def log_open_transactions(slot: str, connect: Callable[[], Connection]) -> Iterator[None]:
    """Log the transactions that a new slot waits for, if creating it takes long."""

    def name() -> None:
        try:
            with connect() as other, translate_errors("reading open transactions"):
                logger.warning(
                    "slot %r is created once all transactions have ended that were open. %s",
                    slot,
                    who_is_open(other),
                )
        except TidelogError as error:
            logger.info("what slot %r waits for is not known: %s", slot, error)

    timer = threading.Timer(HINT_AFTER_S, name)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
