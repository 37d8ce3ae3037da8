"""What the history oracle compares: changes with their rows as texts, and transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

UNCHANGED = "\0unchanged"
"""Stands for a value that the source did not log again."""

Value = str | None
Row = dict[str, Value]
Key = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One record. ``new`` may hold `UNCHANGED`; ``old`` is as the source sent it."""

    op: str  # I U D T of the log, r (dump row), a (absent key), c (control)
    table: str
    payload: bytes
    position: int = 0
    xid: int = 0
    commit_us: int = 0
    new: Row | None = None
    old: Row | None = None
    key: tuple[str, ...] = ()
    offset: int = -1
    schema_id: int = 0

    @property
    def new_key(self) -> Key | None:
        return None if self.new is None else tuple(self.new[name] for name in self.key)

    @property
    def old_key(self) -> Key | None:
        """The key that the record frees or keeps; of an update without old image the new one."""
        if self.old is not None:
            return tuple(self.old[name] for name in self.key)
        return self.new_key

    def brief(self) -> str:
        """For people: values cut short."""

        def cut(row: Row | None) -> str:
            if row is None:
                return "-"
            return "{" + ", ".join(f"{k}={_cut(v)}" for k, v in row.items()) + "}"

        text = f"@{self.offset} {self.op} {self.table} xid={self.xid} lsn={self.position:X}"
        if self.op == "c":
            return f"{text} {self.payload.decode()}"
        return f"{text} old={cut(self.old)} new={cut(self.new)}"


@dataclass(slots=True)
class Transaction:
    """A committed transaction, its changes in the order that they were made."""

    xid: int
    position: int
    commit_us: int
    changes: list[Change] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)


def _cut(value: Value) -> str:
    if value is None:
        return "NULL"
    if value == UNCHANGED:
        return "(unchanged)"
    return value if len(value) <= 24 else f"{value[:10]}…({len(value)})"
