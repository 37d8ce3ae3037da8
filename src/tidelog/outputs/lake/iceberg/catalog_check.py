"""Asks an Iceberg catalog for `tidelog check` whether an output can use it: by Iceberg's library in
a JVM of its own, without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.errors import AccessRefusedError, OutputError, UsageError
from tidelog.model.patterns import overlap
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.outputs.lake.java_libraries import hadoop_settings, start_java
from tidelog.spark.sessions.jars import iceberg_jars

_ANSWER_MS: Final = 10_000
# What a check must not wait for, nor create.
_PATIENCE: Final = {
    "rest.client.socket-timeout-ms": str(_ANSWER_MS),
    "rest.client.connection-timeout-ms": str(_ANSWER_MS),
    "rest.client.max-retries": "1",
    "clients": "1",
    "jdbc.init-catalog-tables": "false",
}
_HIVE_PATIENCE: Final = {
    "spark.hadoop.hive.metastore.client.socket.timeout": f"{_ANSWER_MS}ms",
    "spark.hadoop.hive.metastore.connect.retries": "1",
}
_ADVICE: Final = ". Check its uri and credentials in catalog, and that it runs"


def check_catalog(
    output: str,
    properties: Mapping[str, str],
    name: str | None,
    tables: Sequence[str],
    conf: Mapping[str, Any],
) -> str:
    """Return what the catalog says. Raises UsageError that says what to do.

    Args:
        output: the name of the output.
        properties: of the catalog.
        name: the option ``catalog_name``.
        tables: patterns of the output's tables.
        conf: settings of Spark.
    """
    gateway, process = start_java(conf, iceberg_jars(), ["-Xmx128m"])
    try:
        hadoop = hadoop_settings(gateway, {**_HIVE_PATIENCE, **conf})
        catalog = IcebergCatalog(gateway, hadoop, output, {**properties, **_PATIENCE}, name)
        found = catalog.check_rights(lambda each: overlap([f"{each}.*"], tables))
    except (OutputError, AccessRefusedError) as error:
        why = str(error).removeprefix(f"output {output}: ")
        advice = "" if isinstance(error, AccessRefusedError) else _ADVICE
        raise UsageError(why + advice) from None  # the JVM that has the cause's text is gone
    except UsageError as error:
        raise UsageError(str(error)) from None
    finally:
        gateway.close()
        process.kill()
        process.wait()
    there = f"tables can be created in {', '.join(found)}" if found else "it has no namespace yet"
    return f"the catalog answers: {there}"
