"""The ids with which a log reader registers at the server."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaId:
    """The server id and uuid of a log reader, which registers as a replica."""

    server_id: int
    uuid: uuid.UUID

    @classmethod
    def derived(cls, text: str, server_id: int | None = None) -> ReplicaId:
        """Derive ids from ``text``, which identifies a capture; ``server_id`` overrides the number.

        All runs of one capture have the same ids, so the server closes connections of an earlier
        run.
        """
        digest = hashlib.sha256(f"tidelog {text}".encode()).digest()
        derived = int.from_bytes(digest[16:20], "big") % 0x7FFF_0000 + 0x8000_0000
        number = derived if server_id is None else server_id
        return cls(number, uuid.UUID(bytes=digest[:16], version=4))
