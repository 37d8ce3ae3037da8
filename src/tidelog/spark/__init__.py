"""Reads the event log in Spark, and delivers it. Its names are for programs, its modules private.

Only this package, `tidelog.verify`, `tidelog.outputs` and what starts them in `tidelog.app` import
pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "DELTA_CONF",
    "as_of",
    "delta_jars",
    "iceberg_jars",
    "lag_of",
    "provide_options",
    "register",
    "s3_log_store_jar",
    "spark_session",
]

if TYPE_CHECKING:
    from tidelog.eventlog.storage import provide_options
    from tidelog.spark.datasource.source import lag_of, register
    from tidelog.spark.folding import as_of
    from tidelog.spark.session import DELTA_CONF, spark_session
    from tidelog.spark.sessions.jars import delta_jars, iceberg_jars, s3_log_store_jar
else:
    from tidelog.system.lazy_names import lazy_names

    _LAZY = {
        "DELTA_CONF": "tidelog.spark.session",
        "as_of": "tidelog.spark.folding",
        "delta_jars": "tidelog.spark.sessions.jars",
        "iceberg_jars": "tidelog.spark.sessions.jars",
        "lag_of": "tidelog.spark.datasource.source",
        "provide_options": "tidelog.eventlog.storage",
        "register": "tidelog.spark.datasource.source",
        "s3_log_store_jar": "tidelog.spark.sessions.jars",
        "spark_session": "tidelog.spark.session",
    }
    __getattr__ = lazy_names(__name__, _LAZY)
