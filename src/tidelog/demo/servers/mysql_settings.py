"""Names of settings and statements that differ between versions of MySQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.demo.servers.mysql_binaries import Installation

_RENAMED: Final = {
    "log_slave_updates": ((8, 0, 26), "log_replica_updates"),
    "innodb_log_file_size": ((8, 0, 30), "innodb_redo_log_capacity"),
}
"""Since which version a setting has another name; the old ones are gone by MySQL 9."""

_FOLLOW_OLD: Final = (
    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', "
    "MASTER_AUTO_POSITION = 1, MASTER_CONNECT_RETRY = 1, GET_MASTER_PUBLIC_KEY = 1",
    "START SLAVE",
)
_FOLLOW: Final = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = %s, "
    "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1, "
    "GET_SOURCE_PUBLIC_KEY = 1",
    "START REPLICA",
)


def version_of(found: Installation) -> tuple[int, ...]:
    """As numbers, e.g. (8, 0, 12)."""
    return tuple(int(part) for part in found.version.split("."))


def settings_of(found: Installation, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` by the names that this server knows them by, and where its files lie."""
    known = dict(settings)
    if found.flavour == "mysql":
        for name, (since, later) in _RENAMED.items():
            if name in known and version_of(found) >= since:
                known[later] = known.pop(name)
    if found.share is not None:
        known |= {"lc_messages_dir": found.share, "character_sets_dir": found.share / "charsets"}
    return known


def following(found: Installation) -> tuple[str, str]:
    """The statements by which a MySQL server follows another: the first takes the port."""
    return _FOLLOW if version_of(found) >= (8, 0, 23) else _FOLLOW_OLD


def leaving(found: Installation) -> tuple[str, str]:
    """Those by which it follows no more."""
    word = "REPLICA" if version_of(found) >= (8, 0, 22) and found.flavour == "mysql" else "SLAVE"
    return f"STOP {word}", f"RESET {word} ALL"
