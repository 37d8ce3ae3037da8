"""Caches key indexes of data files on the disk of the host that reads them."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyarrow as pa

from tidelog.outputs.lake.data_files.key_index import FileKeyIndex
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.system.private_files import create_directory, create_file

_FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class KeyIndexCache:
    """A cache of indexes of files that never change: a cached index is valid; a lost one is created
    again. Shared by the processes of a host; picklable.

    Index files are mapped, never read as a whole, and not synced: those of an earlier boot of the
    host are not used. They contain keys, and only their owner can read them.

    Args:
        directory: None: below the system's temporary directory.
        most_bytes: about the limit of all indexes; those that were not used for longest are deleted
            first.
    """

    def __init__(self, directory: str | None = None, most_bytes: int = 8 << 30) -> None:
        if directory is None:
            from tidelog.spark.sessions.session import scratch_directory

            directory = str(scratch_directory() / "key-indexes")
        self._directory = Path(directory)
        self._most_bytes = most_bytes
        self._bytes_until_sweep = 0

    def find(self, table: str, path: str, layout: FileLayout) -> FileKeyIndex | None:
        """Returns the index of a file; None: not cached.

        Args:
            table: the table's location.
            path: the file's path, as the log has it.
            layout: the table's layout.
        """
        place = self._place(table, path, layout)
        try:
            with place.open("rb") as file:
                os.utime(file.fileno())
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            batch = pa.ipc.open_file(pa.py_buffer(mapped)).get_batch(0)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # empty, or incomplete
            with suppress(OSError):
                place.unlink()
            return None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        places, rows = columns.pop("place"), columns.pop("row", None)
        return FileKeyIndex(
            places.to_numpy(), None if rows is None else rows.to_numpy(), tuple(columns.values())
        )

    def keep(self, table: str, path: str, layout: FileLayout, index: FileKeyIndex) -> None:
        """Store a file's index, if there is room. Arguments as in `find`."""
        place = self._place(table, path, layout)
        columns = {"place": pa.array(index.places)}
        if index.rows is not None:
            columns["row"] = pa.array(index.rows)
        columns |= {f"key {number}": each for number, each in enumerate(index.keys)}
        batch = pa.record_batch(columns)
        if batch.nbytes > self._most_bytes:
            return
        fresh = place.with_name(f".{secrets.token_hex(8)}")
        try:
            create_directory(self._directory)
            self._make_room(batch.nbytes)
            with (
                os.fdopen(create_file(fresh, os.O_WRONLY | os.O_EXCL), "wb") as file,
                pa.ipc.new_file(file, batch.schema) as writer,
            ):
                writer.write_batch(batch)
            fresh.replace(place)
        except OSError:  # such as a full disk
            with suppress(OSError):
                fresh.unlink()

    def _place(self, table: str, path: str, layout: FileLayout) -> Path:
        kinds = [(each.name, str(each.type)) for each in layout.file_key]
        named = repr((_FORMAT, _boot_id(), table, path, kinds, layout.null_key))
        return self._directory / hashlib.sha256(named.encode()).hexdigest()

    def _make_room(self, size: int) -> None:
        """Delete old indexes now and then: not each time, since it lists the directory."""
        self._bytes_until_sweep -= size
        if self._bytes_until_sweep > 0:
            return
        found = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = size + sum(each[1] for each in found)
        for _, freed, place in sorted(found):
            if total <= self._most_bytes:
                break
            with suppress(OSError):
                Path(place).unlink()
                total -= freed
        self._bytes_until_sweep = min(self._most_bytes - total, self._most_bytes // 8)


@cache
def shared_cache() -> KeyIndexCache:
    """Returns the process's only cache. A new cache lists its directory, which may have one file
    for each batch, before it stores anything.
    """
    return KeyIndexCache()


@cache
def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text()
    return ""
