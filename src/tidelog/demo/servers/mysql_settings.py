"""Names of settings and statements that differ between versions of MySQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.demo.servers.mysql_binaries import Installation

_RENAMED: Final = {
    "log_slave_updates": ((8, 0, 26), "log_replica_updates"),
    "innodb_log_file_size": ((8, 0, 30), "innodb_redo_log_capacity"),
}
"""The version since which a setting has another name; MySQL 9 has only the new ones."""

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


def version_of(installation: Installation) -> tuple[int, ...]:
    """Return the version as numbers, e.g. (8, 0, 12)."""
    return tuple(int(part) for part in installation.version.split("."))


def settings_of(installation: Installation, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` under this server's names, and the locations of its files."""
    renamed = dict(settings)
    if installation.flavour == "mysql":
        for name, (since, later) in _RENAMED.items():
            if name in renamed and version_of(installation) >= since:
                renamed[later] = renamed.pop(name)
    if installation.share is not None:
        renamed |= {
            "lc_messages_dir": installation.share,
            "character_sets_dir": installation.share / "charsets",
        }
    return renamed


def replica_statements(installation: Installation) -> tuple[str, str]:
    """Return the statements that make a MySQL server a replica; the first takes the port."""
    return _FOLLOW if version_of(installation) >= (8, 0, 23) else _FOLLOW_OLD


def end_replica_statements(installation: Installation) -> tuple[str, str]:
    """Return the statements that end replication."""
    word = (
        "REPLICA"
        if version_of(installation) >= (8, 0, 22) and installation.flavour == "mysql"
        else "SLAVE"
    )
    return f"STOP {word}", f"RESET {word} ALL"
