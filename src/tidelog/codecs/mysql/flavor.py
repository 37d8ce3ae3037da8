"""The servers that write a MySQL binlog, and their versions: their formats differ."""

from __future__ import annotations

import re
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
        """The flavour of a server by its version text, e.g. ``10.11.6-MariaDB-log``."""
        return cls.MARIADB if "mariadb" in version.lower() else cls.MYSQL


def version_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version text, e.g. (10, 11, 6) of ``10.11.6-MariaDB-1:10.11.6+maria~deb12``.

    The prefix ``5.5.5-``, which MariaDB before 11 adds to its version in the handshake, is skipped.
    """
    text = text.removeprefix("5.5.5-") if "mariadb" in text.lower() else text
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
