"""The servers that write a MySQL binlog, their versions, and the settings of Tidelog's sessions.

Every session of Tidelog, in sources and outputs, has these settings. A server may have other
defaults, and run other statements when a session starts (`init_connect`): they must change no
value, and end no session at random. Values are SQL (manual, "Server System Variables"). The
character set is set when the session is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum


class Flavor(Enum):
    """A server family; the value is the source's kind in the configuration."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @property
    def product(self) -> str:
        """The name for messages."""
        return "MariaDB" if self is Flavor.MARIADB else "MySQL"

    @classmethod
    def of_version(cls, version: str) -> Flavor:
        """The flavor of a server by its version text, e.g. ``10.11.6-MariaDB-log``."""
        return cls.MARIADB if "mariadb" in version.lower() else cls.MYSQL


def version_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version text, e.g. (10, 11, 6) of ``10.11.6-MariaDB-1:10.11.6+maria~deb12``.
    The prefix ``5.5.5-``, which MariaDB before 11 adds to its version in the handshake, is skipped.
    """
    text = text.removeprefix("5.5.5-") if "mariadb" in text.lower() else text
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


# Session settings.

PINNED_SETTINGS: Mapping[str, str] = {
    "time_zone": "'+00:00'",  # timestamps are instants: their text in UTC
    "sql_mode": "''",  # no padded CHAR, no ANSI quotes, zero dates may be compared with
    "sql_auto_is_null": "0",
    "sql_safe_updates": "0",
    "sql_big_selects": "1",
    "sql_select_limit": "18446744073709551615",
    "sql_quote_show_create": "1",
    "completion_type": "0",
    "group_concat_max_len": "1048576",
}
TIMEOUT_SETTINGS: Mapping[str, str] = {
    "wait_timeout": "604800",
    "net_read_timeout": "60",
    "net_write_timeout": "600",  # capture may be slow to read what the server sends
    "lock_wait_timeout": "10",  # for metadata locks; the default is a year
    "innodb_lock_wait_timeout": "10",
}
# For sessions that write.
WRITE_SETTINGS: Mapping[str, str] = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,"
    "ALLOW_INVALID_DATES'",
    "sql_notes": "0",
    "max_error_count": "64",  # a warning of LOAD DATA says why a row does not fit
    "autocommit": "1",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "default_storage_engine": "InnoDB",
    "net_read_timeout": "600",
    "lock_wait_timeout": "20",
    "innodb_lock_wait_timeout": "20",
}
FLAVOR_SETTINGS: Mapping[Flavor, Mapping[str, str]] = {
    Flavor.MYSQL: {"max_execution_time": "0"},
    Flavor.MARIADB: {"max_statement_time": "0"},
}
# By first version of MySQL. A key that the server generated must not be hidden: the binlog has it
# (manual, "Generated Invisible Primary Keys").
MYSQL_SETTINGS_SINCE: Mapping[str, tuple[tuple[int, ...], str]] = {
    "show_gipk_in_create_table_and_information_schema": ((8, 0, 30), "1"),
}


def set_statement(
    flavor: Flavor, version: tuple[int, ...], settings: Mapping[str, str] | None = None
) -> str:
    """The SET statement for all these settings, and for ``settings``, which override them."""
    since = MYSQL_SETTINGS_SINCE if flavor is Flavor.MYSQL else {}
    newer = {name: value for name, (first, value) in since.items() if version >= first}
    values = {
        **PINNED_SETTINGS,
        **TIMEOUT_SETTINGS,
        **FLAVOR_SETTINGS[flavor],
        **newer,
        **(settings or {}),
    }
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
