"""What each check of `tidelog check` looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.sources.findings import Finding
from tidelog.sources.mysql.connect import Connection


@dataclass(frozen=True)
class CheckContext:
    """What is examined, and with which configuration.

    Attributes:
        url: of the server, with the password.
        connection: to it.
        variables: the server's global ones, as text.
        server_id: ours.
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
    cascades: Literal["refuse", "dump", "accept"]
    snapshot_mode: Literal["incremental", "blocking"]

    @property
    def mysql(self) -> bool:
        return self.connection.flavor is Flavor.MYSQL

    def on(self, name: str) -> bool:
        """Is a variable ON? False if there is none of the name."""
        return self.variables.get(name, "OFF").upper() in ("ON", "1", "TRUE")


Check = Callable[[CheckContext], Iterator[Finding]]
