"""PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.behaviours.outputs.database_tables import server
from tests.faults.outputs.disks import disk, filled
from tests.faults.outputs.target import Strike, Target, nothing
from tests.integration.spark.frozen_destinations import Place


class DatabaseTarget(Target):
    """``disk``: where its tables are, once `give_disk` was called."""

    kind: ClassVar[str]
    disk: Path

    def make(self) -> Place:
        self.server = server(self.kind)
        made = getattr(self.places, self.kind)()
        self.database = made.output["url"].rpartition("/")[2].partition("?")[0]
        port = self._behind_switch(self.server.port)
        made.output["url"] = made.output["url"].replace(f":{self.server.port}/", f":{port}/")
        place: Place = made
        return place

    def follow(self, message: str) -> None:
        statement = re.search(r"(ALTER TABLE [^;]*?)[;.] ", message)
        assert statement, message
        self.server.execute(statement[1], self.database)

    def full(self) -> Any:
        return filled(self.disk)


class Postgres(DatabaseTarget):
    kind = "postgres"

    def make(self) -> Place:
        server(self.kind)._fixed_port = server(self.kind).port
        return super().make()

    @contextmanager
    def read_only(self) -> Iterator[Strike]:
        """It is a hot standby, as one that a failover left behind."""
        signal = self.server.data_dir / "standby.signal"
        signal.touch()
        self.server._own(signal)
        self.server.restart()
        try:
            yield nothing
        finally:
            signal.unlink()
            self.server.restart()

    def give_disk(self) -> None:
        """Tables that are created from now on are on a disk of their own."""
        name = f"small_{secrets.token_hex(4)}"
        self.disk = disk(self._opened, self.server._base / name, self.server)
        self.server.execute(f"CREATE TABLESPACE {name} LOCATION '{self.disk}'")
        self.server.execute(f"ALTER DATABASE {self.database} SET default_tablespace = {name}")


class MySql(DatabaseTarget):
    kind = "mysql"
    grows = 3000
    switched = "super_read_only"

    @contextmanager
    def read_only(self) -> Iterator[Strike]:
        self.server.execute(f"SET GLOBAL {self.switched} = ON")
        try:
            yield nothing
        finally:
            self.server.execute(f"SET GLOBAL {self.switched} = OFF")
            self.server.execute("SET GLOBAL read_only = OFF")

    def give_disk(self) -> None:
        """A database is a directory. On a tmpfs InnoDB can't write asynchronously."""
        self.server.restart({"innodb_use_native_aio": "OFF"})
        ((directory,),) = self.server.execute("SELECT @@datadir")
        place = Path(directory) / self.database
        self.server.execute(f"DROP DATABASE IF EXISTS `{self.database}`")
        self.server.execute(f"CREATE DATABASE `{self.database}`")
        kept = {file.name: file.read_bytes() for file in place.iterdir()}
        self.disk = disk(self._opened, place, self.server)
        for name, content in kept.items():
            (place / name).write_bytes(content)
            self.server._own(place / name)


class MariaDb(MySql):
    kind = "mariadb"
    switched = "read_only"

    def make(self) -> Place:
        made = super().make()
        # root may write all the same
        for each in (
            "CREATE USER IF NOT EXISTS copier@'%' IDENTIFIED BY 'copier-secret'",
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, "
            "CREATE TEMPORARY TABLES, LOCK TABLES ON *.* TO copier@'%'",
        ):
            self.server.execute(each)
        made.output["url"] = re.sub("//root@", "//copier:copier-secret@", made.output["url"])
        return made
