"""Finds the transactions that a new slot waits for: those with changes, in any database.

Creating a slot waits until all transactions have ended that were open when it began (PostgreSQL's
snapbuild.c). They are found by the lock on their own id, which every role may see, unlike the
columns of pg_stat_activity. No statement's text is shown: it may hold values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tidelog.errors import TidelogError
from tidelog.sources.postgres.connect import quote_literal
from tidelog.sources.postgres.errors import translate_errors

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]

HINT_AFTER_S = 5.0
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
