"""Reading given keys again: those of any Spark DataFrame."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidelog.app.dumps.keys import key_scope, missing_keys, store_keys
from tidelog.app.remote_control import dump_wait, send_command
from tidelog.config import Config, load_config
from tidelog.control.commands import ExecuteSnapshot, Key, build
from tidelog.control.mailbox import new_id
from tidelog.errors import TidelogError, UsageError
from tidelog.model.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACTED_ON_S = 10.0


def repair(
    df: DataFrame,
    config: Config | str | Path,
    table: str,
    *,
    missing: Literal["delete", "list"] = "delete",
    wait: bool = True,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Dump the rows of ``table`` whose keys are in ``df``, while the log goes on.

    Every output then has these rows as the source has them; also after the outputs lost, doubled or
    falsified them.

    Example:
        ::

            lake = spark.read.format("delta").load("/data/lake/public/orders")
            done = tidelog.repair(lake.where("total < 0"), "tidelog.yaml", "public.orders")
            assert done["status"] == "completed"

    Executors turn the keys into texts and drop duplicates; the driver takes them over in slices of
    250,000 and stores them in the state store, where the leading capture reads them 10,000 at a
    time. So neither's memory grows with their number.

    Args:
        df: any batch DataFrame with the table's key columns, by name; other columns are ignored.
            Values are compared in the source: ``1`` finds ``1.00``. Timestamps are taken in UTC.
        config: of `tidelog.config`, or the path of a ``tidelog.yaml``.
        table: one captured table, ``namespace.name``.
        missing: what becomes of keys that the table lacks: ``delete``: outputs delete them;
            ``list``: they are returned, and nothing else happens.
        wait: return when the dump has ended; it is in the event log then. Outputs follow: see
            `tidelog.app.wait_finalized`.
        timeout_s: how long to wait, None: for ever. The dump goes on after it.

    Returns:
        The dump's summary as in ``tidelog status``: ``dump_id``, ``status`` (``completed``, or
        ``aborted`` if it failed; then each table's ``reason`` says why), ``tables``; with ``keys``,
        the number of distinct keys, and for ``list`` ``missing_keys``, a list of tuples of texts.
        With ``wait=False``: ``dump_id``, ``keys``, and ``status``: ``queued``, or ``waiting`` if no
        capture has acted on it. If ``df`` is empty, no dump is made: ``dump_id`` is None.

    Raises:
        UsageError: ``table`` is not one captured table with a key; ``df`` lacks a key column; rows
            have NULL in the key; with ``delete``, a key holds what infinite dates of PostgreSQL are
            in Spark: if the table lacked that very date, the infinite row's copy would be deleted.
        TidelogError: ``timeout_s`` has passed.
    """
    from tidelog.spark.key_frames import keys_of_frame

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    config = config if isinstance(config, Config) else load_config(config)
    scope = key_scope(config, [table])
    columns = scope.columns_among(df.columns)
    keys = (
        _of_source(key, scope.schema, columns, sure=missing == "list")
        for key in keys_of_frame(df, columns)
    )
    name, count = store_keys(config, keys, distinct=True)
    if not count:
        return {"dump_id": None, "status": "completed", "keys": 0, "tables": []}
    dump_id = f"repair-{new_id().lower()}"
    data = {"tables": (str(scope.table),), "key_set": name, "key_columns": columns}
    command = build(ExecuteSnapshot, {"dump_id": dump_id, "missing": missing, **data})
    until = deadline - time.monotonic() if wait else ACTED_ON_S
    outcome = send_command(config, command, timeout_s=until)
    if outcome["error"] is not None:
        raise (UsageError if outcome["usage"] else TidelogError)(outcome["error"])
    waiting = outcome["state"] == "waiting"
    if not wait:
        status = "waiting" if waiting else "queued"
        return {"dump_id": dump_id, "status": status, "keys": count}
    if waiting:
        raise TidelogError(
            f"no capture has acted on dump {dump_id} within {timeout_s:g} s; the next one that "
            "leads will"
        )
    left = None if timeout_s is None else max(0.0, deadline - time.monotonic())
    found = {**dump_wait(config, dump_id, timeout_s=left), "keys": count}
    if missing == "list":
        found["missing_keys"] = list(missing_keys(config, dump_id))
    return found


def _of_source(key: Key, schema: TableSchema, columns: Sequence[str], *, sure: bool) -> Key:
    """The key as the source reads it; ``sure``: nothing is deleted by it."""
    from tidelog.verify.source_key_text import source_spellings

    found = source_spellings(key, schema, columns)
    if len(found) > 1 and not sure:
        raise UsageError(
            f"a key of {schema.table} holds the last or the first day, which in Spark may be "
            "infinity or -infinity as well: name such keys in a file (--keys-file), or "
            "give missing='list'"
        )
    return tuple(part for part in found[0] if part is not None)  # none is: `keys_of_frame`
