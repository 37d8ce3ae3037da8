"""HOT PATH. Caches, on the disk of the host that reads them, what is made of a table's data files.

Data files never change, so what is cached is never stale, and what is lost is made again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.model.records import Int64s
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.system.private_files import create_directory, create_file

_FORMAT = 3
CACHE_BYTES: Final = 8 << 30
"""By default, most bytes of indexes of keys on a host, and of rows."""
RECENT_S: Final = 600.0
"""Files that were used within this time are not deleted to make room. A table that is larger than
the cache is searched as a whole by each batch: each file would be deleted before its next use.
"""
_FULL_S: Final = 5.0
"""Seconds for which a cache without room is not listed again."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DiskCache:
    """A cache of record batches. Shared by the processes of a host; picklable.

    Its files are mapped, never read as a whole, and not synced: those of an earlier boot of the
    host are not used. They contain values, and only their owner can read them.

    Args:
        directory: where they are; it is created.
        most_bytes: about the limit of all files, and never more than they leave free on the disk;
            those that were not used for longest are deleted first, recently used ones never.
    """

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._bytes_until_sweep = 0
        self._full_until = 0.0

    def find(self, *key: object) -> list[pa.RecordBatch] | None:
        """Return what was stored under the key; None: nothing."""
        place = self._place(key)
        try:
            with place.open("rb") as file:
                os.utime(file.fileno())
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            found = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            for batch in found:
                batch.validate()  # lengths of its buffers: a wrong one would end the process
        except FileNotFoundError:
            return None
        except (OSError, ValueError, pa.ArrowException):  # empty, incomplete or damaged
            with suppress(OSError):
                place.unlink()
            return None
        return found

    def keep(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *key: object) -> None:
        """Store batches, at least one, under the key, if there is room. What goes wrong while they
        are made is raised.
        """
        fresh = self._directory / f".{secrets.token_hex(8)}"
        try:
            create_directory(self._directory)
            descriptor = create_file(fresh, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(descriptor, "wb") as file:
                fits = self._write(file, schema, batches)
            if fits:
                fresh.replace(self._place(key))
        except OSError:  # such as a full disk
            pass
        finally:
            with suppress(OSError):
                fresh.unlink()

    def _write(self, file: object, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bool:
        """Return False if there is no room."""
        size = 0
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                size += batch.nbytes
                if size > self._most_bytes or not self._make_room(batch.nbytes):
                    return False
                writer.write_batch(batch)
        return True

    def _place(self, key: Sequence[object]) -> Path:
        named = repr((_FORMAT, _boot_id(), *key))
        return self._directory / hashlib.sha256(named.encode()).hexdigest()

    def _make_room(self, size: int) -> bool:
        """Delete old files now and then: not each time, since it lists the directory. Returns False
        if there is no room even so.
        """
        self._bytes_until_sweep -= size
        if self._bytes_until_sweep > 0:
            return True
        if time.monotonic() < self._full_until:
            return False
        recent_ns = time.time_ns() - int(RECENT_S * 1e9)
        found = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(each[1] for each in found)
        most = min(self._most_bytes, (used + shutil.disk_usage(self._directory).free) // 2)
        total = size + used
        for used_ns, freed, place in sorted(found):
            if total <= most or used_ns > recent_ns:
                break
            with suppress(OSError):
                Path(place).unlink()
                total -= freed
        self._bytes_until_sweep = min(most - total, most // 8)
        if total > most:
            self._full_until = time.monotonic() + _FULL_S
        return total <= most


@cache
def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text()
    return ""


class RowCache:
    """The rows of files of a table of history whose states have not ended, as Arrow has them: to
    decode pages of Parquet for some rows of each costs more than all else of a batch.

    Args:
        directory, most_bytes: see `DiskCache`.
    """

    def __init__(self, directory: Path, most_bytes: int = CACHE_BYTES) -> None:
        self._cache = DiskCache(directory, most_bytes)

    def find(self, table: str, path: str, layout: FileLayout) -> CachedRows | None:
        """Return the rows of a file; None: not cached.

        Args:
            table: the table's location.
            path: the file's path, as the log has it.
            layout: the table's layout.
        """
        found = self._cache.find(table, path, *columns_of(layout.columns))
        return None if found is None else CachedRows(found)

    def keep(self, table: str, path: str, layout: FileLayout, rows: Iterable[pa.Table]) -> None:
        """Store a file's rows, if there is room. Arguments as in `find`; ``rows``: all of them, in
        the file's order, with the layout's columns.
        """
        batches = (batch for part in rows for batch in part.to_batches())
        self._cache.keep(layout.schema, batches, table, path, *columns_of(layout.columns))


def columns_of(columns: Sequence[FileColumn]) -> list[tuple[object, ...]]:
    """Return what decides which values of a file are theirs."""
    return [(each.name, each.physical, each.field_id, str(each.type)) for each in columns]


@dataclass(frozen=True)
class CachedRows:
    """Rows of a file. ``batches``: in the file's order."""

    batches: Sequence[pa.RecordBatch]

    def take(self, columns: Sequence[str], rows: Int64s | None) -> pa.Table:
        """Return columns of the rows of these numbers, in their order; None: of all rows."""
        parts = list(self.batches)
        if list(columns) != parts[0].schema.names:
            parts = [batch.select(columns) for batch in parts]
        if rows is None:
            return pa.Table.from_batches(parts)
        if len(parts) == 1:
            return pa.Table.from_batches([parts[0].take(pa.array(rows))])
        ends = np.cumsum([len(part) for part in parts])
        of_part = np.searchsorted(ends, rows, side="right")
        order = np.argsort(of_part, kind="stable")
        bounds = np.searchsorted(of_part[order], np.arange(len(parts) + 1))
        found = []
        for part, end, first, last in zip(parts, ends, bounds[:-1], bounds[1:], strict=True):
            if last > first:
                numbers = rows[order[first:last]] - (end - len(part))
                found.append(part.take(pa.array(numbers)))
        taken = pa.Table.from_batches(found, parts[0].schema)
        if (order[:-1] < order[1:]).all():
            return taken
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return taken.take(pa.array(back))
