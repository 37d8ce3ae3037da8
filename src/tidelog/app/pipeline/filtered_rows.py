"""Rows that a step `filter` may let in by a record that lacks columns: capture reads them again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.app.dumps.keys import store_keys
from tidelog.app.log_location import log_place
from tidelog.app.remote_control import send_command
from tidelog.config import Config
from tidelog.control.commands import ExecuteSnapshot, build
from tidelog.control.mailbox import new_id
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.ranges import refs_of, schema_in
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.ports import Output, OutputBatch
from tidelog.spark.changes.filtered_rows import rows_to_read_again
from tidelog.spark.key_frames import keys_of_frame
from tidelog.spark.transforms import Step, steps_of
from tidelog.verify.source_key_text import spellings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_ACTED_ON_S = 5.0


class FilteredRows:
    """Called with each batch before it is written: what is asked for is durable then, and its rows
    come behind the batch.
    """

    def __init__(self, config: Config, spark: SparkSession, log: EventLog) -> None:
        self._config = config
        self._spark = spark
        self._log = log
        self._steps: dict[str, tuple[Step, ...]] = {
            section.name: transform_steps(section)
            for section in config.outputs
            if any(step.action == "filter" for step in getattr(section, "steps", ()))
        }
        self._tables = {section.name: tuple(section.tables) for section in config.outputs}

    def __call__(self, output: Output, batch: OutputBatch) -> None:
        """Ask for the rows of the batch that must be read again."""
        if output.name not in self._steps or not getattr(output, "keyed", False):
            return
        log, path = self._log, log_place(self._config)
        for table in (each.table for each in batch.tables):
            steps = steps_of(self._steps[output.name], table)
            filtered = any(step.action == "filter" for step in steps)
            if not filtered or not matches(self._tables[output.name], table):
                continue
            schema = schema_in(log, table, batch.start, batch.end)
            if schema is None or not schema.match_key:
                continue
            refs = refs_of(log, table, batch.start, batch.end)
            with rows_to_read_again(self._spark, log, path, schema, refs, steps) as rows:
                if rows is not None:
                    self._ask(output.name, schema, rows)

    def _ask(self, output: str, schema: TableSchema, rows: DataFrame) -> None:
        keys = (
            tuple(part for part in key if part is not None)
            for texts in keys_of_frame(rows, schema.match_key)
            for key in spellings(texts, schema, schema.match_key)
        )
        name, count = store_keys(self._config, keys, distinct=True)
        if not count:
            return
        data = {
            "dump_id": f"filter-{new_id().lower()}",
            "tables": (str(schema.table),),
            "key_set": name,
            "key_columns": schema.match_key,
            "missing": "list",  # the log tells of their deletes
        }
        command = build(ExecuteSnapshot, data)
        error = send_command(self._config, command, timeout_s=_ACTED_ON_S)["error"]
        said = f"output {output}: {count} rows of {schema.table} may pass its filter by records"
        if error is None:
            logger.info("%s that lack columns: they are read again (%s)", said, data["dump_id"])
        else:
            logger.error("%s that lack columns, and can't be read again: %s", said, error)
