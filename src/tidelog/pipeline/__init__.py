"""From the event log to destinations, on Spark. What is in `__all__` is for programs of users.

The only place, with `tidelog.outputs`, that imports pyspark: on first use, for who only wants a
session's jars need not wait for the source and the decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["DELTA_CONF", "as_of", "delta_jars", "lag_of", "register", "spark_session"]

if TYPE_CHECKING:
    from tidelog.pipeline.jars import delta_jars
    from tidelog.pipeline.lag import lag_of
    from tidelog.pipeline.replaying import as_of
    from tidelog.pipeline.session import DELTA_CONF, spark_session
    from tidelog.pipeline.source import register
else:
    _LAZY = {
        "DELTA_CONF": "tidelog.pipeline.session",
        "as_of": "tidelog.pipeline.replaying",
        "delta_jars": "tidelog.pipeline.jars",
        "lag_of": "tidelog.pipeline.lag",
        "register": "tidelog.pipeline.source",
        "spark_session": "tidelog.pipeline.session",
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'tidelog.pipeline' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
