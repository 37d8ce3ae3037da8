"""Checks that the packages for a configuration's outputs are installed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from tidelog.config import Config
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.outputs.base.kinds import BuiltinKind
from tidelog.outputs.base.sections import OutputSection

Lake = Literal["delta", "iceberg"]


def check_session(extra: str = "spark") -> None:
    """Check that Spark can be started here, or runs.

    Raises the errors of `check_spark_runs`, with ``extra`` for a missing package.
    """
    from tidelog.spark.sessions.installation import check_spark_runs

    check_spark_runs(extra)


def installed_versions() -> str:
    """Return the versions of Spark, Java and Python; call `check_session` first."""
    from tidelog.spark.sessions.installation import versions

    return versions()


def untested_versions() -> list[str]:
    """Return a sentence for each version that Tidelog or PySpark is not tested with."""
    from tidelog.spark.sessions import installation

    return list(installation.untested_versions())


def check_spark(config: Config) -> Lake | None:
    """Return the lake whose jars the session needs; None: any version of Spark will do.

    Delta tables are written and read without Delta's jars, but a class of the user may use them.
    Raises UsageError if this Spark can't write to the outputs, MissingExtraError if there is none.
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
    """Raise MissingExtraError if a package of an output is missing; call it first."""
    for section in sections:
        kind = OUTPUT_KINDS.get(section.kind)
        if isinstance(kind, BuiltinKind):  # another distribution has its own dependencies
            kind.check_installed()
