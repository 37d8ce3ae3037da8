"""Checks the account's privileges for `tidelog check`; every missing one comes with its GRANT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pymysql

from tidelog.sources.findings import ADMINISTRATOR, Finding
from tidelog.sources.mysql.catalogue.grants import Grants
from tidelog.sources.mysql.chunks.watermarks import VIEW, WATERMARK_TABLE, is_view
from tidelog.sources.mysql.connect import quote_name
from tidelog.sources.mysql.errors import number_of, server_message
from tidelog.sources.mysql.stream.positions import log_status

if TYPE_CHECKING:
    from tidelog.sources.mysql.preflight.context import CheckContext

_DENIED = (1044, 1142, 1227)
WATERMARK_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "CREATE")


def privilege_checks() -> list[Callable[[CheckContext], Iterator[Finding]]]:
    """The checks, each after those that it depends on."""
    return [_replication, _watermark_table, _blocking_dumps]


def _replication(context: CheckContext) -> Iterator[Finding]:
    """Try the statements that change nothing.

    Registering as a replica without reading the log is not tried: MySQL keeps the registration when
    the connection ends, and shows it from freed memory.
    """
    grants = Grants.of(context.connection)
    missing = []
    reasons = []
    events = "SHOW BINLOG EVENTS LIMIT 1"  # needs REPLICATION SLAVE on MySQL, not on MariaDB
    reason = _refused(lambda: context.connection.rows(events)) if context.mysql else ""
    if not context.mysql and grants.missing(["REPLICATION SLAVE"]):
        reason = f"{grants.account} lacks REPLICATION SLAVE"
    if reason:
        missing.append("REPLICATION SLAVE")
        reasons.append(reason)
    reason = _refused(lambda: log_status(context.connection))
    if reason:
        modern = not context.mysql and context.connection.version >= (10, 5, 2)
        missing.append("BINLOG MONITOR" if modern else "REPLICATION CLIENT")
        reasons.append(reason)
    if missing:
        fix = grants.statement(missing)
        yield Finding("replication", "fail", "; ".join(reasons), fix, ADMINISTRATOR)
    else:
        yield Finding("replication", "ok", f"{grants.account} may read the binlog")


def _refused(run: Callable[[], object]) -> str:
    """Why the account may not run the statement; "" if it may."""
    try:
        run()
    except pymysql.MySQLError as error:
        if number_of(error) in _DENIED:
            return server_message(number_of(error), str(error.args[-1]))
    return ""


def _watermark_table(context: CheckContext) -> Iterator[Finding]:
    if context.strategy != "table":
        return
    grants = Grants.of(context.connection)
    schema = context.watermark_schema
    exists = bool(
        context.connection.rows(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (schema, "watermark"),
        )
    )
    if is_view(context.connection, schema):
        fix = f"DROP VIEW {quote_name(schema, WATERMARK_TABLE)};"
        text = VIEW.format(table=f"{schema}.{WATERMARK_TABLE}")
        yield Finding("watermark table", "fail", text, fix, ADMINISTRATOR, by_hand=True)
        return
    needed = [p for p in WATERMARK_PRIVILEGES if not (exists and p == "CREATE")]
    table = "watermark" if exists else None
    missing = grants.missing(needed, schema, table)
    if missing:
        text = f"{schema}.watermark can't be {'written' if exists else 'created and written'}"
        fix = grants.statement(needed, schema, table)
        yield Finding("watermark table", "fail", text, fix, ADMINISTRATOR)
    else:
        text = f"{schema}.watermark {'exists' if exists else 'will be created'}"
        yield Finding("watermark table", "ok", text)


def _blocking_dumps(context: CheckContext) -> Iterator[Finding]:
    """FLUSH TABLES WITH READ LOCK needs RELOAD; MariaDB's snapshots report their position without
    it.
    """
    if not context.mysql:
        return
    grants = Grants.of(context.connection)
    missing = grants.missing(["RELOAD"])
    if not missing:
        yield Finding("blocking dumps", "ok", f"{grants.account} may make them")
        return
    asked = context.snapshot_mode == "blocking"
    text = f"{grants.account} lacks RELOAD, which blocking dumps need if writes never pause"
    fix = grants.statement(missing) if asked else ""
    yield Finding("blocking dumps", "warn" if asked else "ok", text, fix, ADMINISTRATOR)
