"""The history oracle: is an event log a true history of what the source committed?

Pure: the truth (a second reader of the source's log and the application's own audit), the event log
and the source's final rows come in as values; the first contradiction comes out as a
`HistoryError`. Checks invariants 1 to 3 of docs/INVARIANTS.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.support.oracle.dumps import ChunkRules, DumpError, PlacedChunk
from tests.support.oracle.values import UNCHANGED, Change, Key, Row, Transaction, Value

Rows = dict[Key, Row]
SEQUENCE = "seq"
"""The column that counts up with every write of a key."""


class HistoryError(AssertionError):
    """What is wrong, and the history of the key that it is wrong for."""


@dataclass(frozen=True, slots=True)
class TableDump:
    """A table of a dump that is done.

    Attributes:
        finalized_until: the version up to which an output must have come to hold the table.
        wanted: whether a key was asked for; None: all were.
        asked: the keys that were given.
        listed: those that the table is said to lack; None: records tell of them.
    """

    dump_id: str
    table: str
    first_offset: int
    finalized_until: int | None = None
    wanted: Callable[[Key], bool] | None = None
    asked: Sequence[Key] = ()
    listed: Sequence[Key] | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A time in which capture was told to leave tables out: from the event log's end before to
    the one after, as offsets.
    """

    tables: frozenset[str]
    begin: int
    until: int


# ---------------------------------------------------------------- the truth


class SourceState:
    """The source's tables as of a place in its log, built from changes in commit order."""

    def __init__(self) -> None:
        self.tables: dict[str, Rows] = {}

    def apply(self, change: Change) -> None:
        rows = self.tables.setdefault(change.table, {})
        if change.op == "T":
            rows.clear()
            return
        before = rows.get(change.old_key) if change.old_key is not None else None
        if change.op in ("D", "U") and change.old_key is not None:
            rows.pop(change.old_key, None)
        if change.new is not None and change.new_key is not None:
            rows[change.new_key] = filled(change.new, before or {})

    def apply_audit(self, entry: Row) -> None:
        """What the log of the source does not show: a truncated partition."""
        if entry["op"] == "truncate-leaf":
            column, value = json.loads(entry["key"] or "[]")
            rows = self.tables.setdefault(str(entry["tbl"]), {})
            for key in [k for k, row in rows.items() if row[column] == value]:
                del rows[key]


def lasts(column: str) -> bool:
    """Is the column there all the time? DDL makes and drops those whose names begin with x."""
    return not column.startswith("x")


def filled(new: Row, before: Row) -> Row:
    """``new`` with the values that it does not repeat."""
    return {n: before.get(n) if value == UNCHANGED else value for n, value in new.items()}


def _made_good(record: Change) -> set[Key]:
    """The keys that a change leaves without a row, or with one that lacks no column."""
    whole = record.new is not None and UNCHANGED not in record.new.values()
    keys = {record.old_key} if record.old_key != record.new_key else set()
    return {key for key in keys | ({record.new_key} if whole else set()) if key is not None}


def check_audit(truth: Sequence[Transaction]) -> None:
    """Do the log's second reader and the application agree on what was committed? Else the oracle
    is no oracle.
    """
    state = SourceState()
    for transaction in truth:
        effects: dict[tuple[str, Key], Value] = {}
        touched: set[tuple[str, Key]] = set()
        for change in transaction.changes:
            state.apply(change)
            for key in (change.old_key, change.new_key):
                if key is not None:
                    touched.add((change.table, key))
        for entry in transaction.audit:
            state.apply_audit(entry)
            table = str(entry["tbl"])
            if entry["op"] == "truncate":
                effects = {place: s for place, s in effects.items() if place[0] != table}
                touched = {place for place in touched if place[0] != table}
            elif entry["op"] != "truncate-leaf":
                key = tuple(json.loads(entry["key"] or "[]"))
                effects[table, key] = None if entry["op"] == "gone" else entry["seq"]
        if any(entry["op"] == "truncate" for entry in transaction.audit):
            continue  # what came before the truncate in the same transaction is not compared
        if effects.keys() != touched:
            by_log = sorted(map(str, touched - effects.keys()))
            by_audit = sorted(map(str, effects.keys() - touched))
            raise HistoryError(
                f"transaction {transaction.xid} touched, of {len(touched)} keys, "
                f"{by_log[:5]} by the log alone, {by_audit[:5]} by the audit alone"
            )
        for (table, key), sequence in effects.items():
            row = state.tables[table].get(key)
            if (None if row is None else row[SEQUENCE]) != sequence:
                raise HistoryError(f"transaction {transaction.xid}: {table} {key} is {row}")


# ---------------------------------------------------------------- the event log


class SourceHistory:
    """An event log held against the truth.

    Args:
        truth: every transaction of the captured tables since they are empty, in commit order.
        records: the event log's, in offset order; from its very first.
        begin: where the log reader began: the first position that it could deliver.
        same: does a record of the event log say what a change of the truth says?
        chunks: what to hold each chunk against its place with; None: nothing.
    """

    def __init__(
        self,
        truth: Sequence[Transaction],
        records: Sequence[Change],
        begin: int,
        same: Callable[[Change, Change], bool],
        chunks: ChunkRules | None = None,
    ) -> None:
        self.truth = truth
        self.records = records
        self._same = same
        self._chunks = chunks
        self.refetch: Sequence[PlacedChunk] = ()
        """Chunks of keys whose records lacked columns."""
        self.left_out: Sequence[LeftOut] = ()
        self._gaps: list[int] = []
        self._completed: dict[tuple[str, str], tuple[int, Rows]] = {}
        self._before = [t for t in truth if t.position < begin]
        self._after = [t for t in truth if t.position >= begin]

    def fail(self, what: str, table: str = "", keys: Iterable[Key | None] = ()) -> HistoryError:
        """An error with what the log and the source hold of these keys."""
        wanted = {key for key in keys if key is not None}
        lines = [what]
        if wanted:
            lines.append("event log:")
            lines += self._lines(self.records, table, wanted)
            lines.append("source:")
            changes = [change for t in self.truth for change in t.changes]
            lines += self._lines(changes, table, wanted)
        return HistoryError("\n".join(lines))

    @staticmethod
    def _lines(records: Iterable[Change], table: str, keys: set[Key]) -> list[str]:
        found = [
            f"  {record.brief()}"
            for record in records
            if (record.op == "c" and f'"{table}"' in record.payload.decode())
            or (record.table == table and record.op == "T")
            or (record.table == table and not keys.isdisjoint((record.old_key, record.new_key)))
        ]
        return found if len(found) <= 60 else [*found[:20], "  …", *found[-40:]]

    # ------------------------------------------------------------ invariants 1 and 2

    def check_order(self) -> None:
        """Every committed change once and in order; dump rows are the state at their place."""
        state = SourceState()
        for transaction in self._before:
            for change in transaction.changes:
                state.apply(change)
            for entry in transaction.audit:
                state.apply_audit(entry)
        newest: dict[tuple[str, Key], int] = {}
        expected = [(t, i) for t in self._after for i in range(len(t.changes) + 1)]
        at = passed = 0
        last_offset = -1

        def end_transactions(position: int) -> None:
            """Pass the ends of transactions up to a position: what their audit adds holds then."""
            nonlocal at
            while at < len(expected) and expected[at][1] == len(expected[at][0].changes):
                if expected[at][0].position >= position:
                    return
                for entry in expected[at][0].audit:
                    state.apply_audit(entry)
                at += 1

        holes = list(self.left_out)

        def pass_over(record: Change) -> None:
            """Pass changes that the log does not hold as their tables were left out."""
            nonlocal at, passed
            if not holes or record.offset < holes[0].begin:
                return
            hole = holes[0]
            if record.op in "IUDT" and record.offset >= hole.until:
                holes.pop(0)  # what comes behind this record is captured
            while at < len(expected):
                transaction, index = expected[at]
                if index == len(transaction.changes):
                    end_transactions(max(record.position, passed))
                    if (transaction, index) == expected[at] if at < len(expected) else True:
                        return
                    continue
                change = transaction.changes[index]
                behind = index == 0 and transaction.position >= max(record.position, passed)
                if change.table not in hole.tables or (
                    self._same(change, record) if record.op in "IUDT" else behind
                ):
                    return
                state.apply(change)
                at += 1
                if at < len(expected) and expected[at][1] == len(transaction.changes):
                    passed = transaction.position + 1

        def pass_gap(end: int) -> None:
            """Pass what the source could not give again."""
            nonlocal at
            while at < len(expected) and expected[at][0].position < end:
                transaction, index = expected[at]
                if index < len(transaction.changes):
                    state.apply(transaction.changes[index])
                else:
                    for entry in transaction.audit:
                        state.apply_audit(entry)
                at += 1

        for record in self.records:
            if record.offset <= last_offset:
                raise self.fail(f"offset {record.offset} follows {last_offset}")
            last_offset = record.offset
            if record.op == "M":
                continue
            pass_over(record)
            if record.op == "c":
                control = json.loads(record.payload)
                if control["type"] == "gap":
                    self._gaps.append(record.offset)
                    pass_gap(control["to"])
                if control["type"] == "dump-completed":
                    rows = state.tables.get(control["table"], {})
                    place = (control["dump_id"], control["table"])
                    self._completed[place] = (record.offset, dict(rows))
                continue
            # A chunk's position may lie before its place, where no watermarks are written.
            end_transactions(max(record.position, passed))
            if record.op in ("r", "a"):
                if at < len(expected) and expected[at][1] > 0:
                    raise self.fail(f"a dump row inside transaction {expected[at][0].xid}")
                self._check_dump_row(record, state)
                self._check_sequence(record, newest)
                self._check_chunk(record, state)
                continue
            if at == len(expected):
                raise self.fail(
                    f"{record.brief()} is not among the source's changes, or a second time",
                    record.table,
                    [record.old_key, record.new_key],
                )
            transaction, index = expected[at]
            if index == len(transaction.changes):
                raise self.fail(f"{record.brief()} stands before its place")
            change = transaction.changes[index]
            at += 1
            if at < len(expected) and expected[at][1] == len(transaction.changes):
                passed = transaction.position + 1
            if not self._same(change, record):
                raise self.fail(
                    f"the log holds\n  {record.brief()}\nwhere the source committed\n"
                    f"  {change.brief()}\n(payloads equal: {change.payload == record.payload})",
                    change.table,
                    [change.old_key, change.new_key],
                )
            state.apply(change)
            self._check_sequence(record, newest)
            if self._chunks is not None:
                self._chunks.on_change(record)
        missing = [(t, i) for t, i in expected[at:] if i < len(t.changes)]
        if missing:
            transaction, index = missing[0]
            change = transaction.changes[index]
            raise self.fail(
                f"{len(missing)} changes are not in the log, the first is\n  {change.brief()}",
                change.table,
                [change.old_key, change.new_key],
            )

    def _check_dump_row(self, record: Change, state: SourceState) -> None:
        rows = state.tables.get(record.table, {})
        key = record.new_key if record.op == "r" else record.old_key
        assert key is not None
        row = rows.get(key)
        if record.op == "a":
            if row is not None:
                raise self.fail(f"{record.table} {key} is absent by a dump", record.table, [key])
            return
        assert record.new is not None
        if row is None:
            raise self.fail(f"a dump row of {record.table} {key} that is gone", record.table, [key])
        for name in filter(lasts, record.new):
            if record.new[name] != row[name]:
                raise self.fail(
                    f"a dump row of {record.table} {key} is not the state at its place: {name}",
                    record.table,
                    [key],
                )

    def _check_chunk(self, record: Change, state: SourceState) -> None:
        if self._chunks is None:
            return
        try:
            self._chunks.on_dump_row(record, state.tables.get(record.table, {}))
        except DumpError as error:
            raise self.fail(str(error), error.table, error.keys) from None

    def _check_sequence(self, record: Change, newest: dict[tuple[str, Key], int]) -> None:
        """No time travel, told by the rows alone."""
        if record.new is None or record.new_key is None:
            return
        place = (record.table, record.new_key)
        sequence = int(record.new[SEQUENCE] or 0)
        if sequence < newest.get(place, -1):
            raise self.fail(f"{place} went back to {sequence}", record.table, [record.new_key])
        newest[place] = sequence

    # ------------------------------------------------------------ invariant 3

    def check_replay(self, dump: TableDump, source: Mapping[Key, Row]) -> None:
        """Does replay from the dump's first record give the source's rows, now and then?

        ``source``: the rows after the last record. Those when the dump was completed are known
        from `check_order`; of these only the columns that no DDL touches are compared.
        """
        completed = self._completed.get((dump.dump_id, dump.table))
        if completed is None:
            raise self.fail(f"dump {dump.dump_id} of {dump.table} is done, the log does not say so")
        end, rows = completed
        if dump.finalized_until != end + 1:
            raise self.fail(
                f"dump {dump.dump_id} of {dump.table} is completed by the record at {end}, and "
                f"final until {dump.finalized_until}"
            )
        then = {
            key: {name: value for name, value in row.items() if lasts(name)}
            for key, row in rows.items()
        }
        if self._is_cut(dump, end):  # another dump makes it good
            replayed = self.replay(dump.table, dump.first_offset)
            self._compare(dump, replayed, source, "at the end", set())
            return
        self._check_listed(dump, rows, end)
        replayed = self.replay(dump.table, dump.first_offset, dump.finalized_until)
        coming = self._reread_after(dump.table, end)
        if self.truncated_leaves(
            dump.table
        ):  # their rows go when the dump that follows is complete
            replayed = {key: row for key, row in replayed.items() if key in then}
            coming |= set(then) - set(replayed)
        self._compare(dump, replayed, then, f"as the dump is completed at {end}", coming)
        replayed = self.replay(dump.table, dump.first_offset)
        self._compare(dump, replayed, source, "at the end", set())

    def _is_cut(self, dump: TableDump, end: int) -> bool:
        """Does the log lack changes of the table between the dump's first record and its last?"""
        gone = any(dump.first_offset < gap <= end for gap in self._gaps)
        return gone or any(
            dump.table in each.tables and dump.first_offset < each.until and each.begin <= end
            for each in self.left_out
        )

    def truncated_leaves(self, table: str) -> set[str]:
        """The values, in the column that parts the table, of the partitions that were truncated."""
        return {
            json.loads(entry["key"] or "[]")[1]
            for transaction in self.truth
            for entry in transaction.audit
            if entry["op"] == "truncate-leaf" and entry["tbl"] == table
        }

    def _check_listed(self, dump: TableDump, rows: Rows, end: int) -> None:
        """Are the keys listed that the table lacks? Those that change meanwhile may be, or not."""
        if dump.listed is None:
            return
        meanwhile = [
            record
            for record in self._by_table.get(dump.table, ())
            if record.op != "c" and record.offset >= dump.first_offset
        ]
        if len(set(dump.listed)) != len(dump.listed):
            raise self.fail(f"dump {dump.dump_id} lists missing keys of {dump.table} twice")
        if any(record.op == "T" for record in meanwhile):
            return  # it changes every key
        changed = {
            key
            for record in meanwhile
            for key in (record.old_key, record.new_key)
            if record.op in "IUD"
        }
        leaves = self.truncated_leaves(dump.table)  # which changes all of their keys
        wrong = [
            key
            for key in dump.asked
            if (key in dump.listed) == (key in rows)
            and key not in changed
            and leaves.isdisjoint(part for part in key if part is not None)
        ]
        if wrong:
            raise self.fail(
                f"dump {dump.dump_id} lists {len(dump.listed)} keys that {dump.table} lacks, and "
                f"is wrong for {len(wrong)}; the first is {wrong[0]}, which is "
                f"{'there' if wrong[0] in rows else 'not listed'} at {end}; its records count from "
                f"{dump.first_offset}",
                dump.table,
                wrong[:1],
            )

    def _reread_after(self, table: str, offset: int) -> set[Key]:
        """Keys about to be completed: rows came or moved to them by records that lack columns. One
        may have gone again before it is read; then it is said to be absent. Or the log makes good
        what the next reread would have, and supersedes what that has read.
        """
        rereads = [each for each in self.refetch if each.meta.table == table]
        next_end = min((each.next for each in rereads if each.next > offset), default=offset)
        moved: set[Key] = set()
        coming: set[Key] = set()
        for record in self._by_table.get(table, ()):
            if record.op == "c":
                continue
            if record.offset > offset:
                key = record.old_key if record.op == "a" else record.new_key
                if record.op in ("r", "a"):
                    if key is not None and any(e.first <= record.offset < e.next for e in rereads):
                        coming.add(key)
                elif record.offset < next_end:
                    coming |= moved if record.op == "T" else _made_good(record)
            elif record.new_key is None:
                continue
            elif UNCHANGED not in record.new.values():  # type: ignore[union-attr]
                moved.discard(record.new_key)
            elif record.op == "I" or record.old_key != record.new_key:
                moved.add(record.new_key)
        return moved & coming

    def _compare(
        self,
        dump: TableDump,
        replayed: Mapping[Key, Row],
        source: Mapping[Key, Row],
        when: str,
        coming: set[Key],
    ) -> None:
        wanted = dump.wanted or (lambda _key: True)
        ours = {key: row for key, row in replayed.items() if wanted(key)}
        theirs = {key: row for key, row in source.items() if wanted(key)}
        wrong = sorted(
            (
                key
                for key in ours.keys() | theirs.keys()
                if ((ours.get(key) is None) != (theirs.get(key) is None) and key not in coming)
                or any(
                    ours[key].get(n) != value
                    for n, value in theirs.get(key, {}).items()
                    if key in ours
                )
            ),
            key=str,
        )
        if not wrong:
            return
        key = wrong[0]
        found, true = ours.get(key), theirs.get(key)
        columns = sorted(n for n in (true or {}) if (found or {}).get(n) != (true or {})[n])
        if found is None:
            how = "lacks it"
        elif true is None:
            how = "has it although it is gone"
        else:
            how = f"differs in {', '.join(columns)}"
        raise self.fail(
            f"replay of {dump.table} from dump {dump.dump_id} (offset {dump.first_offset}) is not "
            f"the source's table {when} in {len(wrong)} keys; the first, {key}: replay {how}",
            dump.table,
            [key],
        )

    def replay(self, table: str, start: int, end: int | None = None) -> Rows:
        """The table as an output has it that began, empty, with the records in ``[start, end)``."""
        rows: Rows = {}
        versions: dict[Key, int] = {}
        for record in self._by_table.get(table, ()):
            if record.offset < start:
                continue
            if end is not None and record.offset >= end:
                break
            if record.op == "c":
                _delete_absent(json.loads(record.payload), rows, versions)
            else:
                _replay(record, rows)
                if record.new_key is not None:
                    versions[record.new_key] = record.offset
        return rows

    @cached_property
    def _by_table(self) -> dict[str, list[Change]]:
        """The records of each table, and those that complete its dumps, in offset order: each
        dumped table is replayed, and a log has 100,000 records.
        """
        found: dict[str, list[Change]] = {}
        for record in self.records:
            table = record.table
            if record.op == "c":
                control = json.loads(record.payload)
                if control["type"] != "dump-completed":
                    continue
                table = control["table"]
            found.setdefault(table, []).append(record)
        return found


def _replay(record: Change, rows: Rows) -> None:
    if record.op == "T":
        rows.clear()
    elif record.new is None:
        if record.old_key is not None:
            rows.pop(record.old_key, None)
    else:
        assert record.new_key is not None
        old_key = record.old_key if record.op == "U" else record.new_key
        moved = old_key != record.new_key
        before = None
        if old_key is not None:
            before = rows.pop(old_key, None) if moved else rows.get(old_key)
        partial = UNCHANGED in record.new.values()
        if not partial:
            rows[record.new_key] = dict(record.new)
        elif before is not None:
            rows[record.new_key] = filled(record.new, before)
        else:  # a row of which columns are not known is not inserted
            rows.pop(record.new_key, None)


def _delete_absent(control: dict[str, object], rows: Rows, versions: dict[Key, int]) -> None:
    first = control["first_offset"]
    if control.get("delete_absent") and isinstance(first, int):
        for key in [k for k in rows if versions.get(k, -1) < first]:
            del rows[key]
