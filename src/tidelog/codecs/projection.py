"""Maps the columns of a schema version to the columns that an output requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.time_kernels import UNREAL_IS_NULL, UNREAL_IS_TOLD, UNREAL_IS_WRONG
from tidelog.codecs.columns.values import (
    CellError,
    ColumnTooLargeError,
    UnfitCellError,
    arrow_type,
    column,
)
from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import DecodeError, ValueRefusedError
from tidelog.model.records import Int32s, Int64s, UInt8s
from tidelog.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the output.

    ``row``: the column's row in the cell matrices, -1 if the written schema lacks the column.
    """

    name: str
    row: int
    logical: str
    target: str

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.target))


@dataclass(frozen=True, slots=True)
class Projection:
    """The output columns, and the wire columns that they need: ``wanted[i]`` is matrix
    row ``i``.
    """

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
                (`tidelog.codecs.native_types`).
        """
        arrays = []
        for output in self.outputs:
            if output.row < 0:
                arrays.append(pa.nulls(len(version), arrow_type(output.target)))
                continue
            try:
                array = column(
                    data,
                    start[output.row],
                    length[output.row],
                    output.logical,
                    output.target,
                    unreal_dates=self._unreal_dates(output.name),
                )
            except UnfitCellError as error:
                option = "arrays" if output.target.startswith("array") else "numeric"
                raise ValueRefusedError(
                    f"{self.schema.table}: column {output.name}, version {version[error.row]}: the "
                    f"value {error.reason}, which {output.target} does not fit. For texts write "
                    f"types: {{{option}: text}}"
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

    def _unreal_dates(self, name: str) -> int:
        if not wire_format(self.schema).has_invalid_dates:
            return UNREAL_IS_WRONG
        return UNREAL_IS_TOLD if name in self.keys else UNREAL_IS_NULL

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
    outputs = tuple(
        OutputColumn(
            name=name,
            row=row[written[name]] if name in written else -1,
            logical=schema.columns[written[name]].logical if name in written else "text",
            target=named[name].logical,
        )
        for name in names
    )
    keys = frozenset((*schema.key, *schema.match_key, *shape.key, *shape.match_key))
    return Projection(schema, outputs, tuple(wanted), keys)
