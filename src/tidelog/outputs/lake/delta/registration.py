"""Registers Delta tables in a catalog, by which people query them as ``shop.orders``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.errors import message_without_values
from tidelog.model.schema import TableName
from tidelog.outputs.base.builtin_kind import normal_directory
from tidelog.outputs.base.left_out import route_step
from tidelog.outputs.lake.table import parts_of

if TYPE_CHECKING:
    from tidelog.outputs.lake.delta_log.actions import TableMetadata

logger = logging.getLogger(__name__)

_RETRY_S: Final = 30.0
_CLOSE_S: Final = 2.0


@dataclass(frozen=True)
class Entry:
    """A table to register.

    Attributes:
        table: the source's table.
        database, name: the names in the catalog.
        location: directory, or URL.
        metadata: as Delta's log has it now.
    """

    table: TableName
    database: str
    name: str
    location: str
    metadata: TableMetadata | None = None

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def entry_of(table: TableName, name: str, location: str, metadata: TableMetadata) -> Entry:
    """Return the entry of a table whose destination's name is ``name``."""
    *database, own = parts_of(table, name)
    return Entry(table, "".join(database) or "default", own, location, metadata)


class Catalog(Protocol):
    """Where tables are registered. Entries that exist are neither changed nor removed."""

    def refused_name(self, entry: Entry) -> str | None:
        """Return why the catalog can't have a table of that name; None: it can."""

    def register(self, entries: Sequence[Entry]) -> dict[TableName, str]:
        """Create the entries that are missing. Returns why some were not, and what to do. Raises
        OutputError if the catalog does not answer.
        """


def another_table(
    entry: Entry, name: str, title: str, location: str, found: str | None
) -> str | None:
    """Return why the table that a catalog has by that ``name`` is not the entry's; None: it is.

    Args:
        entry: the entry.
        name: its name in the catalog.
        title: the catalog's.
        location: where the entry's table is.
        found: where the catalog's Delta table is; None: it is no Delta table.
    """
    if found is None:
        what = f"{name} of {title} is no Delta table"
    elif _normal(found) != _normal(location):
        what = f"{name} of {title} is the Delta table at {found}"
    else:
        return None
    return (
        f"{what}, so the one at {location} is not registered. Remove that entry (DROP TABLE "
        f"{name}) and it will be. {route_step(entry.table)}"
    )


def _normal(url: str) -> str:
    """Return a URL as other writers of the same location may have it."""
    scheme, _, path = url.partition(":")
    if scheme == "file":
        return f"file:/{path.strip('/')}"
    return normal_directory(url) if "://" in url else url


class Registration:
    """Registers an output's tables, in a thread beside the batches; what fails is tried again.

    Args:
        catalog: where.
        name: the thread's name.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._known: set[TableName] = set()
        self._waiting: dict[TableName, Entry] = {}
        self._why: dict[TableName, str] = {}
        self._failed = ""  # why the catalog did not answer, as it was logged last
        self._thread: threading.Thread | None = None

    def knows(self, table: TableName) -> bool:
        """Was the table added?"""
        return table in self._known

    def add(self, entry: Entry) -> None:
        """Register the table soon; returns at once."""
        with self._lock:
            self._known.add(entry.table)
            why = self._catalog.refused_name(entry)
            if why is not None:
                logger.warning("%s: %s", entry.table, why)
                self._why[entry.table] = why
                return
            self._waiting[entry.table] = entry
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def messages(self) -> dict[str, str]:
        """Return why tables are not registered, and what to do."""
        with self._lock:
            return {str(table): why for table, why in sorted(self._why.items())}

    def finish(self, stop: threading.Event) -> None:
        """Return once each table was tried, or at ``stop``."""
        while self._changed.is_set() and not stop.wait(0.05):
            pass

    def close(self) -> None:
        """End the thread, which may wait for the catalog for a while."""
        self._stopped.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                entries = list(self._waiting.values())
            self._try(entries)
            with self._lock:
                if len(self._waiting.keys() - {each.table for each in entries}) == 0:
                    self._changed.clear()
            if not self._stopped.is_set():
                self._changed.wait(_RETRY_S if self._waiting else None)

    def _try(self, entries: Sequence[Entry]) -> None:
        try:
            why = self._catalog.register(entries)
        except Exception as error:  # noqa: BLE001 - nobody reads the thread's result
            text = message_without_values(error)
            why = {each.table: f"{each} waits: {text}" for each in entries}
            if self._failed != text:
                logger.warning("%d tables are not registered yet: %s", len(entries), text)
            self._failed = text
        else:
            self._failed = ""
            for table, found in why.items():
                if self._why.get(table) != found:
                    logger.warning("%s: %s", table, found)
        if self._stopped.is_set():
            return
        with self._lock:
            for each in entries:
                if each.table in why:
                    self._why[each.table] = why[each.table]
                else:
                    self._waiting.pop(each.table)
                    self._why.pop(each.table, None)
