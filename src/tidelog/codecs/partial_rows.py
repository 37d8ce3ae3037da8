"""Which columns a record of an update may lack, by what the source's log leaves out."""

from __future__ import annotations

from tidelog.model.schema import TableSchema

# Only these are stored out of line by PostgreSQL, so only these can be unchanged TOAST.
_OUT_OF_LINE = ("text", "binary", "bytes", "decimal")


def columns_that_may_lack(schema: TableSchema) -> frozenset[str]:
    """Names of the columns that a record's new state may lack; never one of the match key."""
    if schema.wire_format == "pgoutput":
        return frozenset(
            column.name
            for column in schema.columns
            if column.logical.partition("(")[0] in _OUT_OF_LINE
        )
    # A binlog_row_image that is not FULL leaves out whatever has not changed.
    return frozenset(schema.column_names) - set(schema.match_key)
