"""Decodes records of one table schema version to typed Arrow columns, on executors.

It makes two passes of numba kernels over the whole batch, without Python code per row:
the wire format finds the cells, `tidelog.codecs.columns.values` converts column by column.

A `Projection` maps the columns of the schema version to those that an output requests. An update
that changes the key becomes two events downstream: a delete of the old key and a creation of the
new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.cell_positions import MISSING, Image
from tidelog.codecs.columns.times import (
    INVALID_DATE_IS_DISTINCT,
    INVALID_DATE_IS_ERROR,
    INVALID_DATE_IS_NULL,
)
from tidelog.codecs.columns.values import (
    CellError,
    ColumnTooLargeError,
    UnfitCellError,
    arrow_type,
    column,
)
from tidelog.codecs.wire_formats import nan_key, parse, wire_format
from tidelog.errors import DecodeError, ValueRefusedError
from tidelog.model.records import Bools, Int32s, Int64s, RecordKind, UInt8s, bitmap
from tidelog.model.schema import TableSchema

# Output columns.

_OPTIONS = {  # of `types`, by type
    "array": "arrays", "numeric": "numeric", "variant": "json", "map": "hstore", "range": "ranges",
    "multirange": "ranges", "struct": "composites", "interval": "interval", "time": "time",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the output. ``row``: the column's row in the cell matrices, -1 if the written
    schema lacks the column. ``structure``: the attributes of composites in the written schema, if
    it has them, else ``target``; ``lost``: the type has lost an attribute since ``target``.
    """

    name: str
    row: int
    logical: str
    target: str
    structure: str = ""
    lost: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.target))


@dataclass(frozen=True, slots=True)
class Projection:
    """The output columns and the wire columns that they need: ``wanted[i]`` is matrix row ``i``."""

    schema: TableSchema
    outputs: tuple[OutputColumn, ...]
    wanted: tuple[int, ...]
    keys: frozenset[str] = frozenset()
    """Columns of a key: different values must stay different."""

    @property
    def fields(self) -> list[pa.Field]:
        return [output.field for output in self.outputs]

    def arrays(
        self, data: UInt8s, start: Int32s, length: Int32s, version: Int64s
    ) -> list[pa.Array]:
        """The output columns of cells in matrices ``[wanted, n]``; ``version`` is for errors only.

        Raises:
            DecodeError: a cell is not of its column's type.
            ValueRefusedError: a cell does not fit a type that was asked for
                (`tidelog.codecs.wire_formats`).
        """
        arrays = []
        for output in self.outputs:
            if output.row < 0:
                arrays.append(pa.nulls(len(version), arrow_type(output.target)))
                continue
            try:
                if output.lost and (length[output.row] >= 0).any():
                    row = int(np.argmax(length[output.row] >= 0))
                    raise UnfitCellError(row, "has other attributes than its type had")
                array = column(
                    data,
                    start[output.row],
                    length[output.row],
                    output.structure if "struct(" in output.target else output.logical,
                    output.target,
                    invalid_dates=self._invalid_dates_rule(output.name),
                )
            except UnfitCellError as error:
                option = _OPTIONS[output.target.partition("(")[0]]
                place = f"{self.schema.table}.{output.name}"
                texts = f"types: {{{option}: text}}"
                if "dimensions" in error.reason:
                    remedy = f"Write types: {{dimensions: {{'{place}': NUMBER}}}}, or {texts}"
                else:
                    remedy = f"For texts write {texts}"
                raise ValueRefusedError(
                    f"{self.schema.table}: column {output.name}, version {version[error.row]}: the "
                    f"value {error.reason}, which {output.target} does not fit. {remedy}"
                ) from None
            except CellError as error:
                raise DecodeError(
                    f"{self.schema.table}: column {output.name}, version {version[error.row]}: "
                    f"the value is not a valid {output.target} "
                    f"(the source's type is {self._type_name(output)})"
                ) from None
            except ColumnTooLargeError:
                raise DecodeError(
                    f"{self.schema.table}: column {output.name}, versions {version[0]} to "
                    f"{version[-1]}: more than 2 GiB of text in one batch; decode fewer records"
                ) from None
            if output.name in self.keys and pa.types.is_floating(array.type):
                array = pc.add(array, pa.scalar(0, array.type))  # -0 and 0 are one key
            arrays.append(array)
        return arrays

    def _invalid_dates_rule(self, name: str) -> int:
        if not wire_format(self.schema).has_invalid_dates:
            return INVALID_DATE_IS_ERROR
        return INVALID_DATE_IS_DISTINCT if name in self.keys else INVALID_DATE_IS_NULL

    def _type_name(self, output: OutputColumn) -> str:
        return self.schema.columns[self.wanted[output.row]].type_name


def project(
    schema: TableSchema,
    target: TableSchema | None = None,
    columns: Sequence[str] | None = None,
    extra: Sequence[str] = (),
) -> Projection:
    """Map columns of ``schema`` to columns of ``target`` (``schema`` itself if None).

    Columns match by name; one that ``schema`` lacks is null. ``columns`` keeps only these, in their
    order. ``extra`` names columns of ``schema`` whose cells are needed in addition.

    Raises:
        DecodeError: ``columns`` or ``extra`` names a column that does not exist.
    """
    shape = target or schema
    named = {column.name: column for column in shape.columns}
    written = {column.name: number for number, column in enumerate(schema.columns)}
    names = list(named) if columns is None else list(columns)
    for name in names:
        if name not in named:
            raise DecodeError(f"{schema.table}: there is no column {name}")
    for name in extra:
        if name not in written:
            raise DecodeError(f"{schema.table}: there is no column {name} in the written schema")
    wanted = sorted({written[name] for name in [*names, *extra] if name in written})
    row = {number: index for index, number in enumerate(wanted)}
    structures = dict(schema.structures)
    outputs = tuple(
        OutputColumn(
            name=name,
            row=row[written[name]] if name in written else -1,
            logical=schema.columns[written[name]].logical if name in written else "text",
            target=named[name].logical,
            structure=structures.get(name, named[name].logical),
            lost=schema.schema_id > shape.schema_id
            and "struct(" in named[name].logical
            and name not in structures,
        )
        for name in names
    )
    keys = frozenset((*schema.key, *schema.match_key, *shape.key, *shape.match_key))
    return Projection(schema, outputs, tuple(wanted), keys)


# Decoding.

OPS = {
    RecordKind.INSERT: "c",
    RecordKind.UPDATE: "u",
    RecordKind.DELETE: "d",
    RecordKind.TRUNCATE: "t",
    RecordKind.DUMP_ROW: "r",
    RecordKind.ABSENT: "d",
}
_OP_BYTE = np.zeros(256, dtype=np.uint8)
for _kind, _op in OPS.items():
    _OP_BYTE[_kind] = ord(_op)


@dataclass(slots=True)
class Decoded:
    """``n`` decoded records, in record order.

    Attributes:
        version: int64[n], the order for downstream.
        op: string[n]: c, u, d, r (dump row), t (truncate).
        before: struct[n] of the output columns, null where the record has no old image. In an old
            image with only the replica identity, the other columns are null. None if not requested.
        after: struct[n], null for d and t. None if not requested.
        missing: bool[n, output columns]: True where the record does not contain the column's value
            (unchanged TOAST); the value in ``after`` is null. None if there is no such cell.
        position: int64[n]; xid: int64[n]; commit_ts: int64[n], microseconds since 1970 UTC.
    """

    version: pa.Array
    op: pa.Array
    before: pa.StructArray | None
    after: pa.StructArray | None
    missing: Bools | None
    position: pa.Array
    xid: pa.Array
    commit_ts: pa.Array

    def __len__(self) -> int:
        return len(self.version)


def decode(
    records: pa.RecordBatch,
    schema: TableSchema,
    *,
    target: TableSchema | None = None,
    columns: Sequence[str] | None = None,
    before: bool = True,
    after: bool = True,
) -> Decoded:
    """Decode row changes that are all of ``schema``.

    Args:
        records: a batch in the event log's record layout.
        schema: the version that the records were written under.
        target: the version of the result: columns match by name, an added one is null, a widened
            one is cast (docs/reference/types.md).
        columns: names of the columns to return; the others are not converted.
        before: return the old images.
        after: return the new images.

    Raises:
        DecodeError: a payload or a cell does not fit ``schema``; names table, column and version,
            never the value.
    """
    projection = project(schema, target, columns)
    cells = parse(records, schema, projection.wanted, old=before)
    old = new = None
    if before:
        old = _structs(projection, cells.data, cells.old, cells.version)
    if after:
        new = _structs(projection, cells.data, cells.new, cells.version)
    return Decoded(
        version=records.column("offset"),
        op=ops(cells.kind),
        before=old,
        after=new,
        missing=_missing(projection, cells.new) if cells.any_missing else None,
        position=records.column("position"),
        xid=records.column("xid"),
        commit_ts=records.column("commit_ts"),
    )


def ops(kind: UInt8s) -> pa.Array:
    """string[n], the op of each record's kind."""
    bounds = np.arange(len(kind) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(_OP_BYTE[kind])]
    return pa.Array.from_buffers(pa.string(), len(kind), buffers)


def _structs(
    projection: Projection, data: UInt8s, image: Image | None, version: np.ndarray
) -> pa.StructArray:
    kind = pa.struct(projection.fields)
    if image is None or not image.present.any():
        return pa.nulls(len(version), kind)
    arrays = projection.arrays(data, image.start, image.length, version)
    present = None
    if not image.present.all():
        present = bitmap(image.present)
    return pa.Array.from_buffers(kind, len(version), [present], children=arrays)


def _missing(projection: Projection, image: Image) -> Bools:
    out = np.zeros((len(image.present), len(projection.outputs)), dtype=np.bool_)
    for number, output in enumerate(projection.outputs):
        if output.row >= 0:
            out[:, number] = image.length[output.row] == MISSING
    return out


# Key changes.


def find_key_changes(decoded: Decoded, target: TableSchema) -> Bools:
    """bool[n]: True for updates whose key differs from the old row's."""
    before, after = decoded.before, decoded.after
    assert before is not None
    assert after is not None
    moved = np.zeros(len(decoded), np.bool_)
    both = pc.and_(before.is_valid(), after.is_valid())
    if not both.true_count:
        return moved
    nan_columns = nan_key(target)
    for name in target.match_key:
        at = before.type.get_field_index(name)
        old, new = before.field(at), after.field(at)
        # A null old key is not in the record: it is unchanged.
        differs = pc.fill_null(pc.not_equal(old, new), False)
        if name in nan_columns and (target.identity_kind == "f" or name in target.identity):
            differs = pc.or_(differs, pc.not_equal(old.is_null(), new.is_null()))  # NaN
        moved |= pc.and_(both, differs).to_numpy(zero_copy_only=False)
    return moved


def expand_key_changes(moved: Bools) -> tuple[Int64s, Bools]:
    """Expand each key change of ``n`` records to two events. Returns int64[m], the record of each
    event; and bool[m], True for the first of two, the old key's delete.
    """
    at = np.repeat(np.arange(len(moved), dtype=np.int64), 1 + moved)
    first = np.zeros(len(at), np.bool_)
    first[np.flatnonzero(moved[at])[::2]] = True
    return at, first


def expanded_ops(op: pa.Array, moved: Bools, at: Int64s, first: Bools) -> pa.Array:
    """The op of each event of `expand_key_changes`."""
    op = op.take(pa.array(at))
    return pc.if_else(pa.array(first), "d", pc.if_else(pa.array(moved[at]), "c", op))
