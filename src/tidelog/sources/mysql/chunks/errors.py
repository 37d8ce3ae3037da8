"""Maps the servers' errors to chunk errors, which say whether and how to read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
from pymysql.constants import ER

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import (
    ChunkBusyError,
    ChunkDeniedError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ConnectionLostError,
    PreflightError,
    SourceBusyError,
    TableRefusedError,
    TidelogError,
)
from tidelog.sources.mysql.errors import server_error

_TOO_SLOW = {3024, 1969}  # max_execution_time, max_statement_time
_KILLED = {1317}  # KILL QUERY; the connection survives
_GONE = {1049, 1146, 1051}
_ALTERED = {1412, 1176}  # after the snapshot was taken; the key's index
_READ_ONLY = {1290, 1836, 1792}

# Only the dump's condition or keys can cause these: all else was looked up just before.
_PERMANENT = {
    1046, 1054, 1055, 1056, 1060, 1111, 1210, 1221, 1222, 1235, 1241, 1242, 1248, 1250, 1253, 1264,
    1267, 1270, 1271, 1273, 1292, 1300, 1305, 1366, 1411, 1525, 1582, 1583, 1584, 1630,
    3143, 3146, 3685, 3692, 3854, 4025,
}  # fmt: skip
_BAD_VALUES = {1264, 1292, 1300, 1366, 1411, 1525}
_BAD_ROWS = {1365, 1690, 3140, 3141}  # other rows may work: the chunk is halved


@contextmanager
def chunk_errors(doing: str, *, too_slow: type[ChunkError] = ChunkTooSlowError) -> Iterator[None]:
    """Convert the driver's errors to the ChunkError that says what may help. A table that became
    one that can't be captured is such an error, too: the catalogue then says so.
    """
    try:
        yield
    except TableRefusedError as error:
        raise ChunkError(f"{doing}: {error.reason}") from error
    except pymysql.MySQLError as error:
        raise _chunk_error(error, doing, too_slow) from None
    except UnicodeEncodeError:
        raise ChunkRefusedError(f"{doing}: a key or the condition is not valid text") from None
    except (OSError, AttributeError, TypeError) as error:
        # Another thread closed PyMySQL's connection during a call.
        if isinstance(error, OSError) or "NoneType" in str(error):
            raise ChunkLostError(f"{doing}: the connection was lost") from None
        raise


def _chunk_error(error: pymysql.MySQLError, doing: str, too_slow: type[ChunkError]) -> TidelogError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else ""
    suffix = f"(error {number})"
    if number in _TOO_SLOW:
        return too_slow(
            f"{doing}: the read took longer than its time limit: lower dump.chunk_rows, or add an "
            f"index that serves the dump's condition {suffix}"
        )
    if number in _KILLED:
        return ChunkLostError(f"{doing}: it was ended by KILL {suffix}")
    if number in _GONE:
        return ChunkError(f"{doing}: the table or its database does not exist (any more) {suffix}")
    if number in _ALTERED:
        return ChunkError(f"{doing}: the table or its key's index was altered meanwhile {suffix}")
    if number in _READ_ONLY:
        return ChunkError(
            f"{doing}: the server is read-only, and no watermark can be written: set "
            f"source.watermarks: gtid {suffix}"
        )
    if number in _BAD_ROWS:
        return ChunkError(
            f"{doing}: the server can't compute a value of a row, in a virtual column or the "
            f"dump's condition {suffix}"
        )
    if number in _BAD_VALUES:
        return ChunkRefusedError(
            f"{doing}: a value of a key or of the dump's condition does not fit its column's type "
            f"{suffix}"
        )
    if number == ER.PARSE_ERROR:  # the server's message quotes the condition
        return ChunkRefusedError(f"{doing}: the dump's condition is not valid SQL {suffix}")
    found = server_error(number, message, doing)
    if isinstance(found, PreflightError):
        return ChunkDeniedError(str(found))
    if number in _PERMANENT:
        return ChunkRefusedError(f"{found} (check the dump's condition)")
    if isinstance(found, SourceBusyError):
        return ChunkBusyError(
            f"{doing}: another session holds a conflicting lock, e.g. DDL is running {suffix}"
        )
    if isinstance(found, ConnectionLostError):
        return ChunkLostError(str(found))
    return ChunkError(str(found))


def time_limit(flavor: Flavor, milliseconds: int) -> tuple[str, str]:
    """Name and value of the session setting that limits a SELECT's time; 0: no limit."""
    if flavor is Flavor.MARIADB:
        return "max_statement_time", f"{milliseconds / 1000:.3f}"
    return "max_execution_time", str(milliseconds)
