"""PostgreSQL's JDBC driver, for catalogs of Iceberg in a database."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from tidelog.system.maven import Jar, fetch

_JAR = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.8",
    "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    size=1_116_727,
)


def postgres_jdbc_jar() -> Path:
    """Returns the path of the driver's jar."""
    return fetch((_JAR,), "PostgreSQL's JDBC driver")[0]


def jdbc_uri(dsn: str) -> tuple[str, dict[str, str]]:
    """Returns the URL of a database as JDBC has it, and the login's properties of a catalog."""
    parts = urlsplit(dsn)
    return (
        f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        {"jdbc.user": parts.username or "", "jdbc.password": parts.password or ""},
    )
