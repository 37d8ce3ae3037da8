"""Prepares the slot for the source's failover, when a physical standby is promoted and capture
continues there.

PostgreSQL 17 and later copy a logical slot to the standbys if it has the property ``failover``
(manual, "Logical Replication Failover"). So the slot gets it wherever possible. Earlier versions
lose the slot with the server.
"""

from __future__ import annotations

import logging
from typing import Any

import psycopg
from psycopg import pq

from tidelog.errors import ConnectionLostError, TidelogError
from tidelog.ports import SourceId
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.connect import connect_replication, quote_ident
from tidelog.sources.postgres.encodings import encoded
from tidelog.sources.postgres.stream.standby import in_recovery

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]

MIN_VERSION = 17


def can_fail_over(connection: Connection) -> bool:
    """Return True if a slot created there can have the property ``failover``; a standby's own slot
    can't.
    """
    return connection.info.server_version >= MIN_VERSION * 10_000 and not in_recovery(connection)


def prepare(connection: Connection, dsn: str, slot: str) -> None:
    """Set the slot's property ``failover`` if it was created without it. The slot must have no
    reader.
    """
    if not can_fail_over(connection):
        return
    _warn_of_idle_standbys(connection)
    row = connection.execute(
        "SELECT failover FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", (slot,)
    ).fetchone()
    if row is None or row[0]:
        return
    try:
        _set_failover(dsn, slot)
    except TidelogError as error:
        logger.warning("slot %r will be lost if a standby is promoted: %s", slot, error)
    else:
        logger.info("slot %r is now copied to standbys (failover)", slot)


def _warn_of_idle_standbys(connection: Connection) -> None:
    """Warn of standby slots without a reader: the server sends logical slots only what these slots
    have received.
    """
    rows = connection.execute(
        "SELECT name FROM unnest(string_to_array("
        "replace(current_setting('synchronized_standby_slots'), ' ', ''), ',')) name "
        "WHERE name <> '' AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = trim(both '\"' from name) AND active)"
    ).fetchall()
    for (name,) in rows:
        logger.warning(
            "synchronized_standby_slots names %s, which has no reader: the server sends "
            "capture nothing until it has one. Take it out of the list "
            "(docs/how-to/source-failover.md)",
            name,
        )


def check_same_timeline(reported: SourceId | None, found: SourceId) -> None:
    """Check that the server still has the timeline reported before, under which captured changes
    are recorded.

    Raises ConnectionLostError: another server was promoted in between.
    """
    if reported is not None and reported.timeline != found.timeline:
        raise ConnectionLostError(
            f"the source went from timeline {reported.timeline} to {found.timeline} while capture "
            "started: a standby was promoted; it is tried again"
        )


def _set_failover(dsn: str, slot: str) -> None:
    """Set the property with a walsender's command: SQL can't change a slot."""
    pgconn = connect_replication(dsn, purpose="capture")
    try:
        command = f"ALTER_REPLICATION_SLOT {quote_ident(slot)} (FAILOVER true)"
        result = async_results.run_command(pgconn, encoded(pgconn, command))
        if result.status != pq.ExecStatus.COMMAND_OK:
            message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost"
            raise TidelogError(f"the server refuses: {message.decode(errors='replace')}")
    except psycopg.Error as error:
        raise ConnectionLostError(f"the replication connection was lost: {error}") from None
    finally:
        pgconn.finish()
