"""Manages the metadata tables in the destination: attempts of outputs, tables that we fill, deleted
keys.

They have a schema (MySQL: a database) of their own, so that readers see only their own tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import LeaseLostError, TableLeftOutError
from tidelog.outputs.database.dialect import (
    VERSION,
    DatabaseSession,
    Dialect,
    TableLayout,
    deleted_keys_name,
)
from tidelog.system.version import check_format

_FORMAT = "format"
# Which attempt of an output may write. A new attempt waits for transactions of earlier ones. Its
# number begins with the epoch of the pipeline's lease: of two drivers the later one continues.
_TRIES = 2**32  # attempts of one epoch
# The offset up to which an attempt was begun: nothing else has it once log, state and checkpoint
# were restored to an earlier copy.
_REACHED = "reached bigint NOT NULL DEFAULT 0"
_OUTPUTS = f"name varchar(150){{exact}} NOT NULL PRIMARY KEY, attempt bigint NOT NULL, {_REACHED}"
# By destination's table: its owner, and the version below which its rows were deleted in the
# source.
_TABLES = (
    "name varchar(150){exact} NOT NULL PRIMARY KEY, output varchar(64){exact} NOT NULL, "
    "source varchar(150){exact} NOT NULL, generation varchar(64) NOT NULL, floor bigint NOT NULL"
)


@dataclass(frozen=True)
class Owner:
    """The output that fills a table."""

    output: str
    source: str
    generation: str


def run_name(output: str, generation: str) -> str:
    """Return an output's name in these tables; several pipelines may fill one database."""
    return f"{output}/{generation}"


def create(session: DatabaseSession, dialect: Dialect, own: str) -> None:
    """Create the metadata tables that every destination has. Raises NewerFormatError if a newer
    version wrote to them.
    """
    dialect.create_namespace(session, own)
    for name, columns in (("outputs", _OUTPUTS), ("output_tables", _TABLES)):
        table = dialect.quoted(own, name)
        exact = columns.replace("{exact}", dialect.exact_text)
        session.rows(f"CREATE TABLE IF NOT EXISTS {table} ({exact})")
        found = dialect.find_table(session, own, name)
        listed = () if found is None else found.columns
        if name == "outputs" and "reached" not in {column.name for column in listed}:
            session.rows(f"ALTER TABLE {table} ADD COLUMN {_REACHED}")
        for column in listed:
            # Names that differ in case alone are distinct.
            if column.alike and column.name in ("name", "output", "source"):
                size = column.sql_type.partition(")")[0]
                kind = f"{size}){dialect.exact_text} NOT NULL"
                session.rows(f"ALTER TABLE {table} {dialect.widen(column.name, kind)}")
    _check_format(session, dialect, own)


def _check_format(session: DatabaseSession, dialect: Dialect, own: str) -> None:
    """A newer version sets ``attempt`` of the row `_FORMAT`, which is no `run_name`."""
    table = dialect.quoted(own, "outputs")
    found = session.rows(f"SELECT attempt FROM {table} WHERE name = %s", (_FORMAT,))
    check_format(int(found[0][0]) if found else None, f"the table {own}.outputs")


def create_deleted_keys(session: DatabaseSession, dialect: Dialect, layout: TableLayout) -> None:
    """Create the table of a table's deleted keys, or make its columns as wide as the table's."""
    table = dialect.quoted(layout.own, layout.deleted_keys)
    names = [dialect.quoted(name) for name in layout.key]
    types = {name: f"{layout.types[name]} NOT NULL" for name in layout.key}
    found = dialect.find_table(session, layout.own, layout.deleted_keys)
    if found is not None and dialect.ignores_case:
        found = found.with_spelling(layout.key)
    if found is not None and {c.name for c in found.columns} != {*layout.key, VERSION}:
        session.rows(f"DROP TABLE {table}")  # rows had another key
        found = None
    if found is None:
        typed = [f"{dialect.quoted(name)} {sql_type}" for name, sql_type in types.items()]
        session.rows(
            f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(typed)}, "
            f"{VERSION} bigint NOT NULL, PRIMARY KEY ({', '.join(names)}))"
        )
        return
    for column in found.columns:
        if column.name in types and column.sql_type != layout.types[column.name]:
            change = dialect.convert(dialect.quoted(column.name), column.base, types[column.name])
            session.rows(f"ALTER TABLE {table} {change}")


def next_attempt(
    session: DatabaseSession, dialect: Dialect, own: str, run: str, epoch: int = 0, end: int = 0
) -> int:
    """Begin an attempt that writes records below ``end``: once this returns, no transaction of an
    earlier attempt can commit any more.

    Raises LeaseLostError if one has begun under a later lease than that of ``epoch`` (0: none).
    """
    table = dialect.quoted(own, "outputs")
    session.begin()
    found = session.rows(
        f"SELECT attempt FROM {table} WHERE name = %s FOR UPDATE",
        (run,),
    )
    last = int(found[0][0]) if found else 0
    if 0 < epoch < last // _TRIES:
        session.rows("ROLLBACK")
        raise LeaseLostError(
            f"{run} is written under the lease of epoch {last // _TRIES}: one of epoch {epoch} "
            "writes no more"
        )
    number = max(last, epoch * _TRIES) + 1
    if found:
        session.rows(
            f"UPDATE {table} SET attempt = %s, reached = GREATEST(reached, %s) WHERE name = %s",
            (number, end, run),
        )
    else:
        columns = "(name, attempt, reached)"
        session.rows(f"INSERT INTO {table} {columns} VALUES (%s, %s, %s)", (run, number, end))
    session.commit()
    return number


def reached_offset(session: DatabaseSession, dialect: Dialect, own: str, run: str) -> int:
    """Return the greatest offset below which an attempt may have written."""
    table = dialect.quoted(own, "outputs")
    found = session.rows(f"SELECT reached FROM {table} WHERE name = %s", (run,))
    return int(found[0][0]) if found else 0


def current_attempt(session: DatabaseSession, dialect: Dialect, own: str, run: str) -> int:
    """Return the attempt that may write now; it can't change until the transaction ends."""
    found = session.rows(
        f"SELECT attempt FROM {dialect.quoted(own, 'outputs')} "
        f"WHERE name = %s {dialect.share_lock}",
        (run,),
    )
    return int(found[0][0]) if found else 0


def claim(
    session: DatabaseSession, dialect: Dialect, own: str, name: str, owner: Owner, *, empty: bool
) -> int:
    """Store the owner of the table ``name`` and return its floor. Raises TableLeftOutError if it
    is another's, or of another log, and not ``empty``.
    """
    table = dialect.quoted(own, "output_tables")
    is_it = "LOWER(name) = LOWER(%s)" if dialect.folds_tables(session) else "name = %s"
    found = session.rows(
        f"SELECT output, source, generation, floor FROM {table} WHERE {is_it}",
        (name,),
    )
    if found and Owner(*found[0][:3]) == owner:
        return int(found[0][3])
    if found and not empty:
        raise TableLeftOutError(
            f"output {owner.output}: the table {name} is filled by output {found[0][0]} from "
            f"{found[0][1]} (generation {found[0][2]} of its event log), this is {owner.source}, "
            f"generation {owner.generation}: versions of two logs can't be compared. Empty the "
            "table, or route one of the two elsewhere."
        )
    tombstones = dialect.find_table(session, own, deleted_keys_name(name))
    session.begin()
    if tombstones is not None:  # another log's deletes can't be compared with this one's versions
        session.rows(f"DELETE FROM {dialect.quoted(own, deleted_keys_name(name))}")
    session.rows(f"DELETE FROM {table} WHERE {is_it}", (name,))
    values = (name, owner.output, owner.source, owner.generation)
    session.rows(f"INSERT INTO {table} VALUES (%s, %s, %s, %s, 0)", values)
    session.commit()
    return 0


def raise_floor(
    session: DatabaseSession, dialect: Dialect, layout: TableLayout, version: int
) -> None:
    """Store that rows of lower versions are deleted: no replay may insert them again. Call it in a
    transaction.
    """
    session.rows(
        f"UPDATE {dialect.quoted(layout.own, 'output_tables')} SET floor = %s "
        "WHERE name = %s AND floor < %s",
        (version, layout.full_name, version),
    )
    delete_tombstones(session, dialect, layout, version)


def delete_tombstones(
    session: DatabaseSession, dialect: Dialect, layout: TableLayout, version: int
) -> None:
    """Remove keys that were deleted below ``version``, as nothing older can be written any more."""
    session.rows(
        f"DELETE FROM {dialect.quoted(layout.own, layout.deleted_keys)} WHERE {VERSION} < %s",
        (version,),
    )
