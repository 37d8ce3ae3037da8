"""Tables and columns whose names the configured outputs can't hold, as far as `check` can know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.model.patterns import matches
from tidelog.model.schema import TableSchema
from tidelog.outputs.registry import OutputSection
from tidelog.ports import Catalogue, NamingOutputKind, SourceId, TargetTable


def check_names(config: Config, catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """A warning for each table that an output would leave out."""
    if not config.outputs:
        return
    schemas = list(_schemas(config, catalogue))
    for output in config.outputs:
        kind = OUTPUT_KINDS.get(output.kind)
        if not isinstance(kind, NamingOutputKind):
            continue
        try:
            for text in kind.refused_names(output, list(_delivered(output, schemas))):
                message, _, fix = text.rpartition(". ")
                found = {"check": f"output {output.name}", "level": "warning", "fix": fix}
                yield found | {"message": f"a table would be left out: {message}"}
        except (TidelogError, ModuleNotFoundError):
            continue  # told by the looks at Spark and at the destination


def _schemas(config: Config, catalogue: Catalogue) -> Iterator[TableSchema]:
    for table in catalogue.tables(config.source.tables):
        try:
            shape = catalogue.shape(table)
        except TidelogError:
            continue  # told by the look at the source
        if shape is not None:
            yield shape.schema


def _delivered(output: OutputSection, schemas: Sequence[TableSchema]) -> Iterator[TargetTable]:
    from tidelog.outputs.base.sections import SteppedSection
    from tidelog.outputs.delivery_settings import transform_steps
    from tidelog.spark.transforms import named_table

    steps = transform_steps(output) if isinstance(output, SteppedSection) else ()
    for schema in schemas:
        if matches(output.tables, schema.table):
            found = named_table(schema, steps, SourceId("", "", ""))
            if found is not None:
                yield found
