"""Found by Spark, which registers the ``DefaultSource`` of every top-level module ``pyspark_*``: so
``spark.read.format("tidelog")`` works in any session once tidelog is installed.
"""

from tidelog.spark.datasource.source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
