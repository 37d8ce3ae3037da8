"""Delta's and Iceberg's jars: pinned, verified, downloaded once into a directory of ours.

They are passed to Spark by ``spark.jars`` and not by ``spark.jars.packages``: Ivy consults the
local Maven repository first and fails on one that has a pom without its jar, and it would resolve
again at every start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelog.errors import UsageError
from tidelog.system.maven import Jar, fetch

# delta-spark calls Spark's internals: it is built for each minor version, and fails at the first
# write on another.
DELTA_VERSION = "4.4.0"
DELTA_SPARK_JARS: Final = {
    "4.0": Jar(
        "io.delta",
        "delta-spark_4.0_2.13",
        DELTA_VERSION,
        "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
        size=9_469_662,
    ),
    "4.1": Jar(
        "io.delta",
        "delta-spark_4.1_2.13",
        DELTA_VERSION,
        "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
        size=9_471_929,
    ),
    "4.2": Jar(
        "io.delta",
        "delta-spark_4.2_2.13",
        DELTA_VERSION,
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        size=9_515_916,
    ),
}
"""By the minor version of Spark."""
# Together with delta-storage this runs everything that we use; delta-spark's SQL catalogue links to
# the kernel jars on its other paths. Unity Catalog's and cloud clients are not needed.
DELTA_JARS = (
    Jar(
        "io.delta",
        "delta-storage",
        DELTA_VERSION,
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        size=113_863,
    ),
    Jar(
        "io.delta",
        "delta-kernel-api",
        DELTA_VERSION,
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        size=2_838_619,
    ),
    Jar(
        "io.delta",
        "delta-kernel-defaults",
        DELTA_VERSION,
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        size=227_185,
    ),
    Jar(
        "io.delta",
        "delta-kernel-unitycatalog",
        DELTA_VERSION,
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
        size=43_048,
    ),
)

S3_LOG_STORE = "tidelog.delta.S3LogStore"
"""Our class, by which Delta's Spark library commits on S3 without replacing another's commit."""
S3_LOG_STORE_JAR = Path(__file__).with_name("tidelog-s3-log-store.jar")
"""The jar with that class; ``tools/s3_log_store.py`` builds it."""

# All in one: it contains everything that Iceberg needs beside Spark, under its own names. Clients
# of cloud stores are separate jars (iceberg-aws-bundle, …), to be given to Spark where they are
# needed.
ICEBERG_VERSION = "1.12.0"
SPARK_OF_ICEBERG = "4.1"
ICEBERG_JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        ICEBERG_VERSION,
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
        size=48_309_426,
    ),
)


def delta_jars(directory: Path | None = None) -> list[Path]:
    """Returns paths of Delta's jars for the installed pyspark, downloaded if they are missing
    (`tidelog.system.maven.fetch`), and of ours with the class that `DELTA_CONF` names.

    Raises UsageError if Delta has none for this Spark, and one that says how to continue without
    network.
    """
    from tidelog.spark.sessions.versions import SPARK_VERSION  # imports pyspark, which is slow

    own = DELTA_SPARK_JARS.get(SPARK_VERSION)
    if own is None:
        raise UsageError(
            f"there are no jars of Delta {DELTA_VERSION} for Spark {SPARK_VERSION}, by which Spark "
            "itself reads and writes Delta tables; there are for "
            f"{', '.join(DELTA_SPARK_JARS)}: pip install 'pyspark=={max(DELTA_SPARK_JARS)}.*', or "
            "start the session without, by spark_session(delta=False). Tidelog's Delta output, and "
            "`tidelog verify`, need none"
        )
    return [*fetch((own, *DELTA_JARS), "Delta's jars", directory), S3_LOG_STORE_JAR]


def s3_log_store_jar() -> Path:
    """Returns the path of the jar for sessions that write Delta tables on S3
    (docs/outputs/delta.md).
    """
    return S3_LOG_STORE_JAR


def iceberg_jars(directory: Path | None = None) -> list[Path]:
    """Returns paths of Iceberg's jars, like `delta_jars`."""
    return fetch(ICEBERG_JARS, "Iceberg's jars", directory)
