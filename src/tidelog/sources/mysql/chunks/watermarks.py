"""Places chunks in the binlog: the statements and positions of the two strategies.

=========  ==============================  ====================================================
strategy   the watermarks are              the rows follow the log
=========  ==============================  ====================================================
``table``  updates of a one-row table      up to the high watermark
``gtid``   none: nothing is written        up to the binlog's end, read after the snapshot
=========  ==============================  ====================================================

What a SELECT can see. Both servers write a transaction to the binlog before it becomes visible.

* MySQL with ``binlog_order_commits``: transactions become visible in the binlog's order. So once a
watermark has committed, all before it is visible, including the binlog's end as it was read before
the watermark. Without watermarks: a GTID enters ``gtid_executed`` after its transaction is visible
(`tidelog.sources.mysql.stream.gtids.SeenGtids`).
* MariaDB: ``START TRANSACTION WITH CONSISTENT SNAPSHOT`` reports the snapshot's position in the
binlog (MWL#136): the snapshot sees what was committed before, and nothing else, whatever waits for
a replica. ``gtid_binlog_pos`` also counts what is logged and still invisible.

A watermark waits as any commit does: ``sync_binlog`` and semi-sync replication apply to the whole
server, and no session can skip them. A replica that never answers delays watermarks by
``rpl_semi_sync_…_timeout``; the strategy ``gtid`` waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql.binlog.items import position_text
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import ChunkDeniedError, ChunkRefusedError, PreflightError
from tidelog.model.records import Bools, Int64s, XidRanges
from tidelog.model.schema import backticked
from tidelog.sources.mysql.connect import Connection, quote_text
from tidelog.sources.mysql.stream.positions import NO_BINLOG, LogEnd, log_end


@dataclass(frozen=True, slots=True)
class BinlogSnapshot:
    """A snapshot that sees every transaction that begins before ``position`` in the binlog.

    It is assumed to see no other: what else it saw is later in the log, and is emitted again. A
    transaction's number is the position where it begins, so numbers and positions are compared
    alike.
    """

    position: int

    def visible(self, xid: Int64s) -> Bools:
        """bool[n]: True for transactions that begin before the position."""
        seen: Bools = xid < self.position
        return seen

    def invisible_ranges(self, upto_xid: int) -> XidRanges:
        """Everything from the position to ``upto_xid``."""
        ranges = [[self.position, upto_xid + 1]] if upto_xid >= self.position else []
        return np.array(ranges, np.int64).reshape(-1, 2)

    def follows(self, earlier: BinlogSnapshot) -> bool:
        """Return True if all is visible here that was logged when ``earlier`` was taken.

        A transaction that had begun and was not yet logged does not count: it holds a metadata lock
        on the tables that it used, so no DDL comes between it and its commit.
        """
        return self.position >= earlier.position

    def to_text(self) -> str:
        return f"binlog:{position_text(self.position)}"


Strategy = Literal["table", "gtid"]

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMN = "mark"

BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_MISSING = {ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE}


VIEW = (
    "{table} is a view, through which a watermark could be written to another table with capture's "
    "rights: drop it; the table is created again"
)


def is_view(connection: Connection, watermark_schema: str) -> bool:
    """Return True if a view has the watermark table's name.

    Triggers are not checked: unlike in PostgreSQL, a trigger runs with its author's rights, and
    only an account with the TRIGGER privilege can see it.
    """
    return bool(
        connection.rows(
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s AND table_type LIKE %s",
            (watermark_schema, WATERMARK_TABLE, "%VIEW"),
        )
    )


def commit_watermark(connection: Connection, watermark_schema: str, watermark: str) -> None:
    """Commit the watermark; creates the table if it is missing. Raises PyMySQL's errors, and
    ChunkDeniedError if it is not a table.
    """
    table = backticked(watermark_schema, WATERMARK_TABLE)
    column = backticked(WATERMARK_COLUMN)
    value = quote_text(watermark)
    if is_view(connection, watermark_schema):
        raise ChunkDeniedError(VIEW.format(table=f"{watermark_schema}.{WATERMARK_TABLE}"))
    statement = (
        f"INSERT INTO {table} (id, {column}) VALUES (1, {value}) "  # noqa: S608 - quoted
        f"ON DUPLICATE KEY UPDATE {column} = {value}"
    )
    try:
        connection.rows(statement)
    except pymysql.MySQLError as error:
        if error.args[0] not in _MISSING:
            raise
        create_watermark_table(connection, watermark_schema)
        connection.rows(statement)


def create_watermark_table(connection: Connection, watermark_schema: str) -> None:
    """Create the watermark's database and table where they are missing."""
    try:
        connection.rows(f"CREATE DATABASE IF NOT EXISTS {backticked(watermark_schema)}")
    except pymysql.MySQLError as error:
        if error.args[0] not in (ER.DBACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR):
            raise  # else the database may exist without the table
    connection.rows(
        f"CREATE TABLE IF NOT EXISTS {backticked(watermark_schema, WATERMARK_TABLE)} ("
        "id TINYINT NOT NULL PRIMARY KEY, "
        f"{backticked(WATERMARK_COLUMN)} VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin "
        "NOT NULL) ENGINE = InnoDB COMMENT = 'One row: where Tidelog reads in the binlog'"
    )


def binlog_end(connection: Connection) -> int:
    """The position after the last transaction in the binlog. Raises PyMySQL's errors.

    Raises:
        ChunkRefusedError: the server writes no binlog.
    """
    try:
        return log_end(connection).position
    except PreflightError as error:
        raise ChunkRefusedError(str(error)) from None


def snapshot_position(connection: Connection) -> int:
    """MariaDB: the position of the consistent snapshot of this session's transaction."""
    found = dict(connection.rows("SHOW SESSION STATUS LIKE 'binlog_snapshot_%'"))
    values = {str(name).lower(): value for name, value in found.items()}
    name = values.get("binlog_snapshot_file")
    if not name:
        raise ChunkRefusedError(NO_BINLOG)
    offset = int(values["binlog_snapshot_position"])
    return LogEnd(str(name), offset, connection.pin.shift).position


def current_position(connection: Connection) -> int:
    """MariaDB: the position of a consistent snapshot that is taken now."""
    connection.rows(BEGIN)
    try:
        return snapshot_position(connection)
    finally:
        connection.rows("COMMIT")


def check_commit_order(connection: Connection) -> None:
    """MySQL: raise ChunkRefusedError if transactions may become visible in another order than the
    binlog's; then no watermark shows what a SELECT sees.
    """
    if connection.flavor is Flavor.MYSQL and not connection.value(
        "SELECT @@GLOBAL.binlog_order_commits"
    ):
        raise ChunkRefusedError(
            "transactions become visible in another order than the binlog's: run "
            "SET GLOBAL binlog_order_commits = ON, and set it in the server's configuration"
        )
