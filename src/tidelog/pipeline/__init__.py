"""From the event log to destinations, on Spark.

The only place, with `tidelog.outputs`, that imports pyspark.
"""

from tidelog.pipeline.session import spark_session

__all__ = ["as_of", "lag_of", "register", "spark_session"]


def __getattr__(name: str) -> object:
    # The source imports pyspark and the decoder; who only wants a session's jars need not wait.
    if name == "register":
        from tidelog.pipeline.source import register

        return register
    if name == "lag_of":
        from tidelog.pipeline.lag import lag_of

        return lag_of
    if name == "as_of":
        from tidelog.pipeline.replaying import as_of

        return as_of
    raise AttributeError(name)
