"""Asks an Iceberg catalog for `tidelog check` whether an output can use it: by Iceberg's library in
a JVM of its own, without Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tidelog.errors import AccessRefusedError, OutputError, UsageError
from tidelog.model.patterns import overlap
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.spark.sessions.installation import JAVA_MIN
from tidelog.spark.sessions.jars import iceberg_jars
from tidelog.system.java import find_java

_OPTIONS: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ANSWER_MS: Final = 10_000
# What a check must not wait for, nor create.
_PATIENCE: Final = {
    "rest.client.socket-timeout-ms": str(_ANSWER_MS),
    "rest.client.connection-timeout-ms": str(_ANSWER_MS),
    "rest.client.max-retries": "1",
    "clients": "1",
    "jdbc.init-catalog-tables": "false",
}
_HADOOP: Final = "spark.hadoop."
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
    jars = [each for each in str(conf.get("spark.jars", "")).split(",") if each]
    try:
        with _jvm(jars) as gateway:
            hadoop = gateway.jvm.org.apache.hadoop.conf.Configuration()
            hadoop.set("hive.metastore.client.socket.timeout", f"{_ANSWER_MS}ms")
            hadoop.set("hive.metastore.connect.retries", "1")
            for key, value in conf.items():
                if key.startswith(_HADOOP):
                    hadoop.set(key.removeprefix(_HADOOP), str(value))
            catalog = IcebergCatalog(gateway, hadoop, output, {**properties, **_PATIENCE}, name)
            found = catalog.check_rights(lambda each: overlap([f"{each}.*"], tables))
    except (OutputError, AccessRefusedError) as error:
        why = str(error).removeprefix(f"output {output}: ")
        advice = "" if isinstance(error, AccessRefusedError) else _ADVICE
        raise UsageError(why + advice) from None  # the JVM that has the cause's text is gone
    except UsageError as error:
        raise UsageError(str(error)) from None
    there = f"tables can be created in {', '.join(found)}" if found else "it has no namespace yet"
    return f"the catalog answers: {there}"


@contextmanager
def _jvm(jars: Sequence[str]) -> Iterator[JavaGateway]:
    """A JVM with Iceberg's library, Spark's jars, which have clients that it needs, and these."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    of_spark = Path(home) / "jars"
    java = find_java(JAVA_MIN)
    if java is None:
        raise UsageError("the catalog is asked by Java: pip install 'tidelog[java]'")
    port, token, process = launch_gateway(
        classpath=":".join([*map(str, iceberg_jars()), *jars, f"{of_spark}/*"]),
        jarpath=str(next(of_spark.glob("py4j-*.jar"))),
        javaopts=[*_OPTIONS],
        java_path=java,
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=token, auto_convert=True, enable_memory_management=False
        )
    )
    try:
        yield gateway
    finally:
        gateway.close()
        process.kill()
        process.wait()
