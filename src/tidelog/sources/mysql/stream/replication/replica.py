"""How a reader of the log registers with the server."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaId:
    """How we present ourselves to the server: as a replica with these names of its own."""

    server_id: int
    uuid: uuid.UUID

    @classmethod
    def derived(cls, text: str, server_id: int | None = None) -> ReplicaId:
        """Ids that follow from ``text``, which tells captures apart; ``server_id`` if one is set.

        Equal for every run of one capture: the server then ends what is left of an earlier run.
        """
        digest = hashlib.sha256(f"tidelog {text}".encode()).digest()
        derived = int.from_bytes(digest[16:20], "big") % 0x7FFF_0000 + 0x8000_0000
        number = derived if server_id is None else server_id
        return cls(number, uuid.UUID(bytes=digest[:16], version=4))
