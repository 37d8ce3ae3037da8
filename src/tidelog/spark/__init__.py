"""From the event log to destinations, on Spark. Programs use `tidelog.pipeline`.

The only place, with `tidelog.verify` and `tidelog.outputs`, that imports pyspark.
"""
