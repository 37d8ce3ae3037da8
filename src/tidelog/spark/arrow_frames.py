"""Applies functions to the Arrow batches of a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from tidelog.errors import OutputError
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def map_in_arrow(source: DataFrame, function: object, schema: StructType) -> DataFrame:
    """Call `DataFrame.mapInArrow` without pandas, which it requires but does not use."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction

    if not isinstance(source, ClassicDataFrame):
        raise OutputError("outputs that write from executors need a classic Spark session")
    call = UserDefinedFunction(
        function.__call__,  # type: ignore[operator]
        returnType=schema,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    column = call(*(source[quoted(name)] for name in source.columns))
    mapped = source._jdf.mapInArrow(column._jc, False, None)
    return ClassicDataFrame(mapped, source.sparkSession)
