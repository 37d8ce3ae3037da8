"""Reads the rows of given keys again, from any Spark DataFrame."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tidelog.app.dumps.keys import key_scope, missing_keys, store_keys
from tidelog.app.remote_control import dump_wait, send_command
from tidelog.config import AnyConfig, as_config
from tidelog.control.commands import ExecuteSnapshot, Key, build
from tidelog.control.mailbox import new_id
from tidelog.errors import TidelogError, UsageError
from tidelog.model.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMAND_TIMEOUT_S = 10.0


def repair(
    df: DataFrame,
    config: AnyConfig,
    table: str,
    *,
    missing: Literal["delete", "list"] = "delete",
    wait: bool = True,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Dump the rows of ``table`` whose keys are in ``df``, while the log is read on.

    Every output then has these rows as the source has them, also if it had lost, doubled or changed
    them.

    Example:
        ::

            lake = spark.read.format("delta").load("/data/lake/public/orders")
            done = tidelog.repair(lake.where("total < 0"), "tidelog.yaml", "public.orders")
            assert done["status"] == "completed"

    Executors turn the keys into texts and drop duplicates; the driver fetches slices of 250,000 and
    writes them to the state store, where the leading capture reads them 10,000 at a time. So the
    memory of neither grows with their number.

    Args:
        df: a batch DataFrame with the table's key columns, by name; other columns are ignored.
            Values are compared in the source: ``1`` finds ``1.00``. Timestamps are in UTC.
        config: a configuration, or the path of a ``tidelog.yaml``.
        table: one captured table, ``namespace.name``.
        missing: what to do with keys that are not in the table: ``delete``: outputs delete them;
            ``list``: only return them.
        wait: whether to wait until the dump has ended; it is in the event log then. For the
            outputs, see `tidelog.app.wait_finalized`.
        timeout_s: the longest time to wait; None: for ever. The dump continues after it.

    Returns:
        The dump's summary as in ``tidelog status``: ``dump_id``, ``status`` (``completed``, or
        ``aborted`` if it failed; then each table's ``reason`` says why), ``tables``; also ``keys``,
        the number of distinct keys, and for ``list`` ``missing_keys``, a list of tuples of texts.
        With ``wait=False``: ``dump_id``, ``keys``, and ``status``: ``queued``, or ``waiting`` if no
        capture has handled it. If ``df`` is empty, there is no dump: ``dump_id`` is None.

    Raises:
        UsageError: ``table`` is not one captured table with a key; ``df`` lacks a key column; rows
            have NULL in the key; with ``delete``, a key has the value of PostgreSQL's infinite
            dates in Spark: if the table did not have that very date, the infinite row's copy would
            be deleted.
        TidelogError: ``timeout_s`` has passed.
    """
    from tidelog.spark.key_frames import keys_of_frame

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    config = as_config(config)
    scope = key_scope(config, [table])
    columns = scope.columns_among(df.columns)
    keys = (
        _to_source_key(key, scope.schema, columns, sure=missing == "list")
        for key in keys_of_frame(df, columns)
    )
    name, count = store_keys(config, keys, distinct=True)
    if not count:
        return {"dump_id": None, "status": "completed", "keys": 0, "tables": []}
    dump_id = f"repair-{new_id().lower()}"
    data = {"tables": (str(scope.table),), "key_set": name, "key_columns": columns}
    command = build(ExecuteSnapshot, {"dump_id": dump_id, "missing": missing, **data})
    until = deadline - time.monotonic() if wait else COMMAND_TIMEOUT_S
    outcome = send_command(config, command, timeout_s=until)
    if outcome["error"] is not None:
        raise (UsageError if outcome["usage"] else TidelogError)(outcome["error"])
    waiting = outcome["state"] == "waiting"
    if not wait:
        status = "waiting" if waiting else "queued"
        return {"dump_id": dump_id, "status": status, "keys": count}
    if waiting:
        raise TidelogError(
            f"no capture has handled dump {dump_id} within {timeout_s:g} s; the next one that "
            "leads will"
        )
    left = None if timeout_s is None else max(0.0, deadline - time.monotonic())
    summary = {**dump_wait(config, dump_id, timeout_s=left), "keys": count}
    if missing == "list":
        summary["missing_keys"] = list(missing_keys(config, dump_id))
    return summary


def _to_source_key(key: Key, schema: TableSchema, columns: Sequence[str], *, sure: bool) -> Key:
    """Return the key in the source's form; ``sure``: nothing is deleted by it."""
    from tidelog.codecs.wire_formats import source_spellings

    spelled = source_spellings(key, schema, columns)
    if len(spelled) > 1 and not sure:
        raise UsageError(
            f"a key of {schema.table} holds the last or the first day, which in Spark may be "
            "infinity or -infinity as well: name such keys in a file (--keys-file), or "
            "give missing='list'"
        )
    return tuple(part for part in spelled[0] if part is not None)  # none is: `keys_of_frame`
