"""Stores schemas of message formats that refer to them by an id (Avro), beside the event log.

An id is derived from the schema's text only: the same schema has the same id in another event log,
or in one whose files were lost, so that no message is ever read with a wrong schema.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.errors import EventLogError, SegmentCorruptError
from tidelog.eventlog.log_files import new_numbers
from tidelog.eventlog.storage.opening import storage_at
from tidelog.eventlog.storage.port import Storage
from tidelog.system.version import check_format

_FOLDER: Final = "message-schemas"
_FILE = re.compile(r"message-schemas/(\d{8})\.json")
_ATTEMPTS: Final = 1000
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
                        self._storage.make_durable(_name(number))
                        return known.schema_id
                first = next(iter(same.values()), None)
                schema_id = self._free_id(text) if first is None else first.schema_id
                number = max(self._known, default=0) + 1
                document = {"subject": subject, "id": schema_id, "schema": text}
                data = json.dumps(document, ensure_ascii=False).encode()
                if self._storage.put_if_absent(_name(number), data):
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
        for number in new_numbers(self._storage, _FOLDER, _FILE, _name, self._known):
            self._load(number)

    def _load(self, number: int) -> None:
        name = _name(number)
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


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:08d}.json"
