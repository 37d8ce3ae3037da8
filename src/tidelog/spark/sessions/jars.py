"""Jars for Spark: Delta's, Iceberg's and Hadoop's client of S3, pinned, verified, downloaded once
into a directory of ours.

They are passed to Spark by ``spark.jars`` and not by ``spark.jars.packages``: Ivy consults the
local Maven repository first and fails on one that has a pom without its jar, and it would resolve
again at every start.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.errors import UsageError
from tidelog.system.maven import Jar, fetch, parse_jar_list

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

# Iceberg's own library, which needs no certain Spark, and what it needs beside Spark's jars: a
# cache, and the clients of REST catalogs and of the Hive Metastore. Clients of cloud stores and of
# other catalogs are separate jars (iceberg-aws and iceberg-aws-bundle, …), to be given to Spark
# where they are needed.
ICEBERG_VERSION = "1.12.0"
ICEBERG_JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-api",
        ICEBERG_VERSION,
        "d476a6989edfe3882a47ce0eaa3e53df4d589ef5e7bd0a16ff113ae570bca8b6",
        size=723_109,
    ),
    Jar(
        "org.apache.iceberg",
        "iceberg-core",
        ICEBERG_VERSION,
        "d3bbb331b7a907e134958d21ecccd91a736049e00768e07579ff60855bf28352",
        size=2_667_816,
    ),
    Jar(
        "org.apache.iceberg",
        "iceberg-common",
        ICEBERG_VERSION,
        "18a43330e3c5eb712a9bf88e8f70441971851400efb4646f0b6512ac40c5f357",
        size=31_953,
    ),
    Jar(
        "org.apache.iceberg",
        "iceberg-bundled-guava",
        ICEBERG_VERSION,
        "8d27e319e3bc28f7f86e7fbd59f6758bfaa1f78d72d9f76aa93ad1f7cbd3ba34",
        size=1_768_582,
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "3.2.4",
        "9d9d2cfd681fd9272ded3d27c9930db12f89f732345975aa113ebc223bbf1224",
        size=1_029_147,
    ),
    Jar(
        "org.apache.httpcomponents.client5",
        "httpclient5",
        "5.6.4",
        "bdef5f8841145cd76c4c605ff301bc840eea0d5292332b7b892a93316c0d8ee1",
        size=1_057_058,
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5",
        "5.4.3",
        "18bfbbabb478dfb67f31aeaf428c387f3c3df654582e1309f708ee1f3086830a",
        size=955_121,
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5-h2",
        "5.4.3",
        "c7db7026b8e2dea39132b04a6069f6671e2858309b20a146ec5c7dd6ed73a0b6",
        size=263_675,
    ),
    # Tested with the core of 1.12.0. It needs Hive's client, which Spark's jars have.
    Jar(
        "org.apache.iceberg",
        "iceberg-hive-metastore",
        "1.11.0",
        "8d9f8e25083b75006557660c71a619352d910e1ace2c46cef8df1c93141679ba",
        size=99_237,
    ),
)


# hadoop-aws has the version of Spark's own Hadoop. Of the AWS SDK it asks for one jar of 600 MB;
# these lists name its parts that are used.
HADOOP_AWS_JARS: Final = {
    "4.0": Jar(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.4.1",
        "01334a07e179cae2b7e251f24857f11e3759108c9d6a79dcbe362a4295227da2",
        size=865_554,
    ),
    "4.1": Jar(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.4.2",
        "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
        size=936_997,
    ),
    "4.2": (
        _HADOOP_AWS_3_5 := Jar(
            "org.apache.hadoop",
            "hadoop-aws",
            "3.5.0",
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
            size=938_071,
        )
    ),
    "4.3": _HADOOP_AWS_3_5,
}
"""By the minor version of Spark."""
_AWS_SDK: Final = {"3.4.1": "2.29.52", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""By the version of hadoop-aws."""

PARTS: Final = {
    "delta": "Delta's jars",
    "iceberg": "Iceberg's jars",
    "s3": "the jars of Hadoop's client of S3",
}
"""What Spark itself may need jars for, and what these are called."""


def pinned_jars(part: str, spark: str) -> tuple[Jar, ...]:
    """Return the jars for a part (`PARTS`) on a minor version of Spark, e.g. ``4.2``. Raises
    UsageError if there is no such part, or there are none for this Spark.
    """
    if part == "delta":
        own = DELTA_SPARK_JARS.get(spark)
        if own is None:
            raise UsageError(
                f"there are no jars of Delta {DELTA_VERSION} for Spark {spark}, by which Spark "
                "itself reads and writes Delta tables; there are for "
                f"{', '.join(DELTA_SPARK_JARS)}: pip install 'pyspark=={max(DELTA_SPARK_JARS)}.*', "
                "or start the session without, by spark_session(delta=False). Tidelog's Delta "
                "output, and `tidelog verify`, need none"
            )
        return (own, *DELTA_JARS)
    if part == "iceberg":
        return ICEBERG_JARS
    if part != "s3":
        raise UsageError(f"there are jars for {', '.join(PARTS)}, and none for {part!r}")
    own = HADOOP_AWS_JARS.get(spark)
    if own is None:
        raise UsageError(
            f"no jars for S3 are known for Spark {spark}; they are for {', '.join(HADOOP_AWS_JARS)}"
        )
    parts = Path(__file__).with_name(f"aws_sdk_{_AWS_SDK[own.version]}.jars")
    return (own, *parse_jar_list(parts.read_text(encoding="utf-8")))


def fetch_jars(parts: Sequence[str], spark: str, directory: Path | None = None) -> list[Path]:
    """Return paths of the jars for some parts on a minor version of Spark, downloaded if they are
    missing; for ``delta`` also of ours, with the class that `DELTA_CONF` names.

    Args:
        parts: of `PARTS`.
        spark: e.g. ``4.2``.
        directory: where all of them are kept; default: `tidelog.system.maven.cache_directory`, and
            ours with the package.

    Raises UsageError as `pinned_jars` and `tidelog.system.maven.fetch`.
    """
    wanted = {part: pinned_jars(part, spark) for part in parts}  # before any download
    found = [path for part, jars in wanted.items() for path in fetch(jars, PARTS[part], directory)]
    if "delta" in wanted:
        found.append(S3_LOG_STORE_JAR)
        if directory is not None:
            found[-1] = Path(shutil.copyfile(S3_LOG_STORE_JAR, directory / S3_LOG_STORE_JAR.name))
    return found


def installed_spark() -> str:
    """Return the minor version of the installed pyspark."""
    from tidelog.spark.sessions.versions import SPARK_VERSION  # imports pyspark, which is slow

    return SPARK_VERSION


def delta_jars(directory: Path | None = None) -> list[Path]:
    """Return paths of Delta's jars for the installed pyspark, as `fetch_jars`."""
    return fetch_jars(["delta"], installed_spark(), directory)


def s3_log_store_jar() -> Path:
    """Return the path of the jar for sessions that write Delta tables on S3
    (docs/outputs/delta.md).
    """
    return S3_LOG_STORE_JAR


def iceberg_jars(directory: Path | None = None) -> list[Path]:
    """Return paths of Iceberg's jars, like `delta_jars`."""
    return fetch_jars(["iceberg"], installed_spark(), directory)
