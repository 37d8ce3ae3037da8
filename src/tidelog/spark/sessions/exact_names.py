"""Sessions in which columns whose names differ by case alone are two columns, as in the sources.

Spark ignores case by default, and so do Delta and Iceberg. Rows are read and steps applied in a
session that does not; where they go into a lake, its own session takes the result.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXACT_NAMES = {"spark.sql.caseSensitive": "true"}
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    **EXACT_NAMES,
}

_lock = threading.Lock()
_sessions: dict[str, SparkSession] = {}


def exact_session(spark: SparkSession) -> SparkSession:
    """``spark`` if its names are exact, or one beside it, the same for all sessions of a driver."""
    if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true":
        return spark
    application = spark.sparkContext.applicationId
    with _lock:
        if application not in _sessions:
            _sessions.clear()  # of a driver's context that has ended
            session = spark.newSession()
            for name, value in _CONF.items():
                session.conf.set(name, value)
            _sessions[application] = session
        return _sessions[application]


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows as a DataFrame of another session of the same driver."""
    if frame.sparkSession is session:
        return frame
    java = session._jvm
    assert java is not None
    datasets = getattr(getattr(java.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    plan = frame._jdf.queryExecution().analyzed()
    return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)
