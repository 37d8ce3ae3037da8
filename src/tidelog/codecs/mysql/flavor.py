"""Which of the servers that write a MySQL binlog: their events and their GTIDs differ."""

from __future__ import annotations

from enum import Enum


class Flavor(Enum):
    """A server family; the value is the source's kind in the configuration."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @classmethod
    def of_version(cls, version: str) -> Flavor:
        """The flavour of a server by its version text, e.g. ``10.11.6-MariaDB-log``."""
        return cls.MARIADB if "mariadb" in version.lower() else cls.MYSQL
