"""The data that each check of `tidelog check` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.sources.findings import Finding
from tidelog.sources.mysql.connect import Connection


@dataclass(frozen=True)
class CheckContext:
    """The server to check, and the configuration.

    Attributes:
        url: the server, with the password.
        connection: a connection to it.
        variables: the server's global variables, as text.
        server_id: Tidelog's own id.
        database_is_refused: whether the account may not use the URL's database.
        others: see `MySqlPreflight`.
    """

    url: str = field(repr=False)
    connection: Connection
    variables: Mapping[str, str]
    server_id: int
    kind: Flavor
    tables: tuple[str, ...]
    watermark_schema: str
    strategy: Literal["table", "gtid"]
    signal_table: str | None
    keys: Mapping[str, Sequence[str]]
    exclude_columns: Sequence[str]
    cascades: Literal["refuse", "dump", "accept"]
    snapshot_mode: Literal["incremental", "blocking"]
    database_is_refused: bool = False

    @property
    def mysql(self) -> bool:
        return self.connection.flavor is Flavor.MYSQL

    def on(self, name: str) -> bool:
        """Return True if a variable is ON; False if it does not exist."""
        return self.variables.get(name, "OFF").upper() in ("ON", "1", "TRUE")


Check = Callable[[CheckContext], Iterator[Finding]]
