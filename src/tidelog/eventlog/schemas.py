"""Numbered, immutable schemas beside the segments: of tables, and of formats (Avro).

The id of a format's schema is derived from the schema's text only: the same schema has the same id
in another event log, or in one whose files were lost, so that no message is ever read with a wrong
schema.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.errors import EventLogError, SegmentCorruptError
from tidelog.eventlog.log_files import from_checksummed_json, new_numbers, to_checksummed_json
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.storage_port import Storage
from tidelog.model.schema import TableName, TableSchema
from tidelog.system.version import check_format

# Schemas of tables.

_FOLDER: Final = "schemas"
_FILE = re.compile(r"schemas/(\d{8})\.json")
_ATTEMPTS: Final = 1000


def _schema_name(schema_id: int) -> str:
    return f"{_FOLDER}/{schema_id:08d}.json"


class SchemaStore:
    """``schemas/%08d.json``, each created only if absent and fsynced; never changed or deleted.

    Thread-safe, and safe with several writing processes. Reading needs no write access, so Spark's
    executors may use it.
    """

    def __init__(self, storage: Storage | str | Path) -> None:
        if isinstance(storage, (str, Path)):
            storage = storage_at(storage)
        self._storage: Storage = storage
        self._lock = threading.Lock()
        self._schemas: dict[int, TableSchema] = {}
        self._durable: set[int] = set()

    def register(self, schema: TableSchema) -> TableSchema:
        """The stored version of this schema; a new one if none of the table has its fingerprint."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                known = self._find(schema)
                if known is None:
                    self._load_new()
                    known = self._find(schema)
                if known is not None:
                    if known.schema_id not in self._durable:
                        # Its writer may have died before it was durable.
                        self._make_durable(known.schema_id)
                        self._durable.add(known.schema_id)
                    return known
                numbered = schema.numbered(max(self._schemas, default=0) + 1)
                data = to_checksummed_json(numbered.to_json(), indent=1)
                if self._storage.put_if_absent(_schema_name(numbered.schema_id), data):
                    self._schemas[numbered.schema_id] = numbered
                    self._durable.add(numbered.schema_id)
                    return numbered
        raise EventLogError(
            f"{self._storage!r}: could not number a schema of {schema.table} in {_ATTEMPTS} "
            "attempts; other writers keep taking the next number."
        )

    def get(self, schema_id: int) -> TableSchema:
        """The schema of this number. Raises EventLogError if there is none."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            with self._lock:
                schema = self._schemas.get(schema_id) or self._load(schema_id)
        if schema is None:
            raise self._missing_error(schema_id)
        return schema

    def by_table(self) -> dict[TableName, list[TableSchema]]:
        """All versions of every table, tables sorted, versions oldest first."""
        with self._lock:
            self._load_new()
            schemas = [schema for _, schema in sorted(self._schemas.items())]
        versions: dict[TableName, list[TableSchema]] = {each: [] for each in self._names(schemas)}
        for schema in schemas:
            versions[schema.table].append(schema)
        return versions

    def versions(self, table: TableName) -> list[TableSchema]:
        """All versions of the table, oldest first."""
        with self._lock:
            self._load_new()
            return [s for _, s in sorted(self._schemas.items()) if s.table == table]

    def latest(self, table: TableName) -> TableSchema | None:
        """The version of the table with the greatest number."""
        versions = self.versions(table)
        return versions[-1] if versions else None

    def newest(self) -> int:
        """The greatest number of a version; 0: there is none. One listing; no file is read."""
        return max(new_numbers(self._storage, _FOLDER, _FILE, _schema_name, ()), default=0)

    def tables(self) -> list[TableName]:
        """Every table that has a schema, sorted."""
        with self._lock:
            self._load_new()
            return self._names(self._schemas.values())

    @staticmethod
    def _names(schemas: Iterable[TableSchema]) -> list[TableName]:
        return sorted({schema.table for schema in schemas})

    def _make_durable(self, schema_id: int) -> None:
        try:
            self._storage.make_durable(_schema_name(schema_id))
        except FileNotFoundError:
            raise self._missing_error(schema_id) from None

    def _missing_error(self, schema_id: int) -> EventLogError:
        return EventLogError(
            f"{self._storage!r} has no schema {schema_id} ({_schema_name(schema_id)} is missing). "
            "Restore the file from a backup."
        )

    def _find(self, schema: TableSchema) -> TableSchema | None:
        same = (
            known
            for known in self._schemas.values()
            if known.table == schema.table and known.fingerprint == schema.fingerprint
        )
        return next(same, None)

    def _load_new(self) -> None:
        for number in new_numbers(self._storage, _FOLDER, _FILE, _schema_name, self._schemas):
            self._load(number)

    def _load(self, schema_id: int) -> TableSchema | None:
        name = _schema_name(schema_id)
        try:
            raw = from_checksummed_json(self._storage.read(name), f"{self._storage!r} {name}")
            schema = TableSchema.from_json(raw)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentCorruptError(
                f"{self._storage!r} {name} is damaged. Restore the file from a backup."
            ) from error
        self._schemas[schema_id] = schema
        return schema


# Schemas of formats that refer to them by an id (Avro).

_MESSAGES_FOLDER: Final = "message-schemas"
_MESSAGES_FILE = re.compile(r"message-schemas/(\d{8})\.json")
_IDS: Final = 2**31 - 1  # largest id: readers use signed 32-bit integers


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A version of a schema. ``version``: from 1 up within ``subject``, which is a topic's name
    with -key or -value.
    """

    subject: str
    version: int
    schema_id: int
    text: str


class MessageSchemaStore:
    """``message-schemas/%08d.json``, each created only if absent; never changed or deleted.
    Thread-safe, and safe with several writing processes.
    """

    def __init__(self, storage: Storage | str | Path) -> None:
        if isinstance(storage, (str, Path)):
            storage = storage_at(storage)
        self._storage: Storage = storage
        self._lock = threading.Lock()
        self._known: dict[int, MessageSchema] = {}  # by file number

    def register(self, subject: str, text: str) -> int:
        """The id of the schema ``text``, which becomes a version of ``subject``; durable."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                self._load_new()
                same = {n: known for n, known in self._known.items() if known.text == text}
                for number, known in same.items():
                    if known.subject == subject:
                        # Its writer may have died before it was durable.
                        self._storage.make_durable(_message_schema_name(number))
                        return known.schema_id
                first = next(iter(same.values()), None)
                schema_id = self._free_id(text) if first is None else first.schema_id
                number = max(self._known, default=0) + 1
                document = {"subject": subject, "id": schema_id, "schema": text}
                data = json.dumps(document, ensure_ascii=False).encode()
                if self._storage.put_if_absent(_message_schema_name(number), data):
                    return schema_id
        raise EventLogError(
            f"{self._storage!r}: could not keep a schema of {subject} in {_ATTEMPTS} attempts; "
            "other writers keep taking the next number."
        )

    def by_id(self, schema_id: int) -> list[MessageSchema]:
        """The schema in each subject that has it; empty if there is none."""
        return [known for known in self._all() if known.schema_id == schema_id]

    def by_subject(self, subject: str) -> list[MessageSchema]:
        """The subject's versions, oldest first; empty if there is none."""
        return [known for known in self._all() if known.subject == subject]

    def subjects(self) -> list[str]:
        """All subjects, sorted."""
        return sorted({known.subject for known in self._all()})

    def _all(self) -> list[MessageSchema]:
        with self._lock:
            self._load_new()
            return [known for _, known in sorted(self._known.items())]

    def _free_id(self, text: str) -> int:
        taken = {known.schema_id for known in self._known.values()}
        schema_id = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % _IDS + 1
        while schema_id in taken:
            schema_id = schema_id % _IDS + 1
        return schema_id

    def _load_new(self) -> None:
        for number in new_numbers(
            self._storage, _MESSAGES_FOLDER, _MESSAGES_FILE, _message_schema_name, self._known
        ):
            self._load(number)

    def _load(self, number: int) -> None:
        name = _message_schema_name(number)
        try:
            document = json.loads(self._storage.read(name))
            check_format(document.get("format"), f"{self._storage!r} {name}")
            subject, schema_id, text = (
                str(document["subject"]),
                int(document["id"]),
                str(document["schema"]),
            )
        except FileNotFoundError:
            return  # moved away
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SegmentCorruptError(
                f"{self._storage!r} {name} is damaged. Restore the file from a backup, or move it "
                "away: it is written again when the output next meets the schema."
            ) from error
        earlier = sum(known.subject == subject for known in self._known.values())
        self._known[number] = MessageSchema(subject, earlier + 1, schema_id, text)


def _message_schema_name(number: int) -> str:
    return f"{_MESSAGES_FOLDER}/{number:08d}.json"
