"""Checks the binlog for `tidelog check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pymysql

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import parse_url
from tidelog.sources.findings import ADMINISTRATOR, Finding
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.stream.positions import log_status

if TYPE_CHECKING:
    from tidelog.sources.mysql.preflight.account import CheckContext

RETENTION_LEAST_S = 86_400
AZURE = ".mysql.database.azure.com"
RDS_SETTING = "binlog retention hours"
_RDS = (
    "SELECT name, value FROM mysql.rds_configuration",
    "CALL mysql.rds_show_configuration",
)

_TO_GTIDS = (
    "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; "
    "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON;"
    "  -- and in the server's configuration"
)


def binlog_checks() -> list[Callable[[CheckContext], Iterator[Finding]]]:
    """The checks, each after those that it depends on."""
    return [
        _log_bin,
        _rows,
        _row_metadata,
        _retention,
        _retention_size,
        _server_id,
        _gtids,
        _commit_order,
        _semi_sync,
    ]


def _setting(context: CheckContext, name: str, value: str) -> tuple[str, str]:
    """Return how to set a variable, and who does it; a server without a binlog must restart, which
    would undo ``SET GLOBAL``.
    """
    if context.on("log_bin"):
        return (
            f"SET GLOBAL {name} = '{value}';  -- and in the server's configuration",
            ADMINISTRATOR,
        )
    return f"{name} = {value}  # in the server's configuration, as log_bin", ""


def _log_bin(context: CheckContext) -> Iterator[Finding]:
    if not context.on("log_bin"):
        fix = "log_bin = binlog  # in the server's configuration, section mysqld; then restart it"
        yield Finding("log_bin", "error", "the server writes no binlog", fix)
        return
    yield Finding("log_bin", "ok", "the server writes a binlog")
    try:
        status = log_status(context.connection)
    except pymysql.MySQLError:
        return  # the missing privilege has its own finding
    for option in ("Binlog_Do_DB", "Binlog_Ignore_DB"):
        if status.get(option):
            text = f"{option.lower()} is set ({status[option]}): changes may be missing in the log"
            fix = f"take {option.lower()} out of the server's configuration, then restart it"
            yield Finding("log filter", "error", text, fix)


def _rows(context: CheckContext) -> Iterator[Finding]:
    """The log must hold changes as rows, preferably whole ones."""
    variables = context.variables
    form = variables.get("binlog_format", "ROW")
    if form == "ROW":
        yield Finding("binlog_format", "ok", "binlog_format is ROW")
    else:
        fix, role = _setting(context, "binlog_format", "ROW")
        if role:
            fix += "; sessions that are open keep theirs until they reconnect"
        yield Finding("binlog_format", "error", f"binlog_format is {form}", fix, role)
    image = variables.get("binlog_row_image", "FULL").upper()
    if image in ("FULL", "FULL_NODUP"):
        yield Finding("row image", "ok", f"binlog_row_image is {image}")
    else:
        text = f"binlog_row_image is {image}: records lack columns, whose rows are read again"
        if context.connection.flavor is Flavor.MARIADB:
            text += ", with MariaDB after each update"
        fix, role = _setting(context, "binlog_row_image", "FULL")
        yield Finding("row image", "warning", text, fix, role, by_hand=True)
    if "PARTIAL_JSON" in variables.get("binlog_row_value_options", "").upper():
        text = "binlog_row_value_options is PARTIAL_JSON: updates hold a part of a JSON document"
        if image == "FULL":
            yield Finding("partial JSON", "ok", f"{text}, which is put into the old one")
        else:
            fix = "SET GLOBAL binlog_row_value_options = '';  -- or binlog_row_image = 'FULL'"
            yield Finding(
                "partial JSON",
                "warning",
                f"{text}, and the old one is missing: the rows are read again",
                fix,
                ADMINISTRATOR,
                by_hand=True,
            )


def _row_metadata(context: CheckContext) -> Iterator[Finding]:
    found = context.variables.get("binlog_row_metadata")
    if found == "FULL":
        yield Finding("row metadata", "ok", "binlog_row_metadata is FULL")
        return
    text = (
        "the server logs no names of columns: a table altered while capture is down may need "
        "`tidelog schema`"
    )
    fix, role = "upgrade to MySQL 8.0.1 or MariaDB 10.5", ""
    if found is not None:
        text = f"binlog_row_metadata is {found}: {text.removeprefix('the server logs ')}"
        fix, role = _setting(context, "binlog_row_metadata", "FULL")
    yield Finding("row metadata", "warning", text, fix, role, by_hand=True)


def _retention(context: CheckContext) -> Iterator[Finding]:
    variables = context.variables
    seconds = float(variables.get("binlog_expire_logs_seconds", 0) or 0)
    days = float(variables.get("expire_logs_days", 0) or 0)
    kept = seconds or days * 86_400
    variable = "binlog_expire_logs_seconds"
    if variable not in variables:
        variable = "expire_logs_days"
    hours = _rds_hours(context.connection)
    if hours is not None:
        if 0 < hours * 3600 < RETENTION_LEAST_S or not hours:
            text = f"RDS keeps binlogs for {hours:g} h: a capture down for longer loses data"
            if not hours:
                text = (
                    "binlog retention hours is not set: RDS purges binlogs as soon as it can, "
                    "Aurora after 24 h, so a capture that lags loses data"
                )
            fix = "CALL mysql.rds_set_configuration('binlog retention hours', 168);"
            yield Finding("retention", "warning", text, fix, ADMINISTRATOR, by_hand=True)
        else:
            yield Finding("retention", "ok", f"RDS keeps binlogs for {hours / 24:.1f} days")
    elif not kept and parse_url(context.url).host.endswith(AZURE):
        text = (
            "binlog_expire_logs_seconds is 0, with which Azure purges a binlog once it has no use "
            "for it itself: a capture that is down loses data"
        )
        fix = "the server parameter binlog_expire_logs_seconds = 604800"
        yield Finding("retention", "warning", text, fix)
    # MySQL 8.0.29 and later can keep the seconds set and purge nothing.
    elif not kept or variables.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        yield Finding("retention", "ok", "binlogs are kept until they are purged by hand")
    elif kept < RETENTION_LEAST_S:
        fix = f"SET GLOBAL {variable} = {7 if variable.endswith('days') else 604_800};"
        text = f"binlogs are purged after {kept / 3600:.1f} h: a capture down for longer loses data"
        fix += "  -- and in the server's configuration"
        yield Finding("retention", "warning", text, fix, ADMINISTRATOR, by_hand=True)
    else:
        text = f"binlogs are kept for {kept / 86_400:.1f} days"
        yield Finding("retention", "ok", text)


def _retention_size(context: CheckContext) -> Iterator[Finding]:
    """MariaDB and Percona's server can also purge by size."""
    for variable in ("max_binlog_total_size", "binlog_space_limit"):
        total = int(context.variables.get(variable, 0) or 0)
        if total:
            text = f"binlogs are purged beyond {total / 2**20:,.0f} MiB ({variable})"
            fix = "let it hold the changes of at least the longest time that capture may be down"
            yield Finding("retention size", "warning", text, fix)


def _rds_hours(connection: Connection) -> float | None:
    """The retention of Amazon RDS and Aurora, whose own setting overrides the server's; NULL counts
    as 0. None if the server is neither, or the account may not read it.
    """
    for statement in _RDS:
        with suppress(pymysql.MySQLError):
            rows = connection.rows(statement)
            found = {str(row[0]): row[1] for row in rows if len(row) > 1}
            if RDS_SETTING in found:
                return float(found[RDS_SETTING] or 0)
    return None


def _server_id(context: CheckContext) -> Iterator[Finding]:
    """Every reader of a binlog must have its own id."""
    ours = context.server_id
    theirs = int(context.variables.get("server_id", 0) or 0)
    if theirs == 0:
        fix = (
            "SET GLOBAL server_id = 1;  -- or another number that no other server has; and in "
            "the server's configuration"
        )
        text = "server_id is 0: the server serves no replica"
        yield Finding("server id", "error", text, fix, ADMINISTRATOR, by_hand=True)
        return
    if theirs == ours:
        fix = "another number in source.server_id"
        yield Finding("server id", "error", f"{ours} is the server's own id", fix)
        return
    connection = context.connection
    modern = context.mysql and connection.version >= (8, 0, 22)
    try:
        replicas = connection.named("SHOW REPLICAS" if modern else "SHOW SLAVE HOSTS")
    except pymysql.MySQLError:
        text = f"{ours} is not the server's own; the account may not see those of other replicas"
        yield Finding("server id", "ok", text)
        return
    ids = {
        int(value) for row in replicas for name, value in row.items() if name.lower() == "server_id"
    }
    if ours in ids:
        text = f"a replica with the id {ours} is connected; the server lets only one be"
        fix = "another number in source.server_id, unless the replica is this capture, running"
        yield Finding("server id", "warning", text, fix)
    else:
        yield Finding("server id", "ok", f"no other replica has the id {ours}")


def _gtids(context: CheckContext) -> Iterator[Finding]:
    if not context.mysql:
        text = f"MariaDB's are always on; gtid_domain_id is {context.variables['gtid_domain_id']}"
        yield Finding("GTID", "ok", text)
        return
    mode = context.variables.get("gtid_mode", "OFF").upper()
    if mode == "ON":
        yield Finding("GTID", "ok", "gtid_mode is ON")
    elif context.strategy == "gtid":
        text = f"gtid_mode is {mode}, and source.watermarks: gtid needs it"
        yield Finding("GTID", "error", text, _TO_GTIDS, ADMINISTRATOR, by_hand=True)
    else:
        text = (
            f"gtid_mode is {mode}: capture can't continue on a promoted replica, and a restored "
            "copy of the server can't be distinguished from the captured one"
        )
        yield Finding("GTID", "warning", text, _TO_GTIDS, ADMINISTRATOR, by_hand=True)


def _commit_order(context: CheckContext) -> Iterator[Finding]:
    """What is before a watermark in the binlog must be visible once the watermark is committed."""
    if context.mysql:
        if context.on("binlog_order_commits"):
            text = "transactions become visible in the binlog's order"
            yield Finding("commit order", "ok", text)
        else:
            text = "binlog_order_commits is OFF: a dump may miss transactions that were logged"
            fix = "SET GLOBAL binlog_order_commits = ON;  -- and in the server's configuration"
            yield Finding("commit order", "error", text, fix, ADMINISTRATOR)
        return
    yield Finding("commit order", "ok", "MariaDB commits in the binlog's order")


def _semi_sync(context: CheckContext) -> Iterator[Finding]:
    variables = context.variables
    # MySQL 8.0.26 and later have the newer name, of another plugin; its default differs from
    # MariaDB's.
    for side in ("source", "master"):
        if context.on(f"rpl_semi_sync_{side}_enabled"):
            break
    else:
        return
    waits = variables.get(f"rpl_semi_sync_{side}_wait_point", "AFTER_COMMIT").upper()
    if context.strategy == "gtid" or waits != "AFTER_SYNC":
        yield Finding("semi-sync", "ok", f"semi-sync waits {waits}")
        return
    limit_s = int(variables.get(f"rpl_semi_sync_{side}_timeout", 0)) / 1000
    text = (
        "semi-sync waits AFTER_SYNC: a replica that does not answer delays the watermarks of "
        f"dumps, for up to {limit_s:g} s each"
    )
    yield Finding("semi-sync", "warning", text, "source.watermarks: gtid  # waits for no replica")
