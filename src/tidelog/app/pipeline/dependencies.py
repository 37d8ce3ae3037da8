"""Is all installed that the outputs of a configuration need?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from tidelog.config import Config
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.outputs.base.kinds import BuiltinKind
from tidelog.outputs.registry import OutputSection

Lake = Literal["delta", "iceberg"]


def check_session(extra: str = "spark") -> None:
    """Can a session of Spark be started here, or is one running? Raises as `check_spark_runs`
    does, and names ``extra`` where a package is missing.
    """
    from tidelog.spark.sessions.installation import check_spark_runs

    check_spark_runs(extra)


def installed_versions() -> str:
    """Of Spark, Java and Python, where `check_session` raises nothing."""
    from tidelog.spark.sessions.installation import versions

    return versions()


def untested_versions() -> list[str]:
    """What of them Tidelog is not tested with, or PySpark is not made for, a sentence each."""
    from tidelog.spark.sessions.installation import untested_versions

    return list(untested_versions())


def check_spark(config: Config) -> Lake | None:
    """Whose jars the session needs; None: no lake's, so that any version of Spark will do. Delta
    tables are written and read without Delta's; a class of the user's may write some with them.
    Raises UsageError if this Spark can't write what the outputs say, MissingExtraError if there is
    none.
    """
    kinds = {output.kind for output in config.outputs}
    if "iceberg" not in kinds:
        check_session()
        return "delta" if _may_write_delta(kinds) else None
    check_session("iceberg")
    from tidelog.outputs.lake.iceberg import output as iceberg

    iceberg.check_spark()
    return "iceberg"


def _may_write_delta(kinds: Collection[str]) -> bool:
    from tidelog.spark.sessions.jars import DELTA_SPARK_JARS
    from tidelog.spark.sessions.versions import SPARK_VERSION

    foreign = any(not isinstance(OUTPUT_KINDS.get(kind), BuiltinKind) for kind in kinds)
    return SPARK_VERSION in DELTA_SPARK_JARS and (foreign or "python" in kinds)


def check_installed(sections: Iterable[OutputSection]) -> None:
    """Before anything is begun. Raises MissingExtraError if an output lacks what it is written
    with.
    """
    for section in sections:
        kind = OUTPUT_KINDS.get(section.kind)
        if isinstance(kind, BuiltinKind):  # another distribution brings what it needs
            kind.check_installed()
