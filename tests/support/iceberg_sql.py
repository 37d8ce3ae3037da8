"""Iceberg's library for Spark's SQL, by which tests read and alter tables as other users do. It is
built for one Spark; the output needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidelog.spark.sessions.jars import ICEBERG_VERSION
from tidelog.system.maven import Jar, fetch

SPARK_OF_ICEBERG = "4.1"
_JAR = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    ICEBERG_VERSION,
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    size=48_309_426,
)


def iceberg_sql_jars() -> list[Path]:
    """Return the paths of the jars. They have what `tidelog.spark.sessions.jars.iceberg_jars`
    have: a session gets the ones or the others.
    """
    return fetch((_JAR,), "Iceberg's jar for Spark")


def spark_catalog_conf(name: str, catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which Spark's SQL knows an output's catalog as ``name``, where
    Iceberg has a library for this Spark.
    """
    key = f"spark.sql.catalog.{name}"
    conf = {key: "org.apache.iceberg.spark.SparkCatalog"}
    conf |= {f"{key}.{option}": value for option, value in catalog.items()}
    # What is committed has to be read from the catalog, not from memory.
    return conf | {f"{key}.cache-enabled": "false"}
