"""Kind ``opensearch``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidelog.outputs.base.kinds import BuiltinKind, hosts
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.reachability import ANSWER_S
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import LogExtent, Output, OutputContext, OutputPlace, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.opensearch.client import ClusterOptions
from tidelog.outputs.opensearch.config import OpenSearchSection


def _open(section: OpenSearchSection, context: OutputContext) -> Output:
    from tidelog.outputs.opensearch.output import JoinedIndex, OpenSearchOutput

    joined = []
    for each in section.documents:
        parts = {part.table: (part.name, tuple(part.key)) for part in each.parts}
        joined.append(JoinedIndex(each.index, {each.root: ("", ()), **parts}))
    delivery = delivery_of(section, keyed=True, keyless=section.keyless)
    return OpenSearchOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        cluster=_cluster(section),
        index=section.index,
        create_indices=section.create_indices,
        settings=section.settings,
        mappings=section.mappings,
        tombstone_retention_s=section.tombstone_retention.total_seconds(),
        bulk_bytes=section.bulk_bytes,
        joined=joined,
    )


def _cluster(section: OpenSearchSection) -> ClusterOptions:
    from tidelog.outputs.opensearch.client import ClusterOptions

    password = section.password
    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.api_key is not None:
        headers["Authorization"] = f"ApiKey {section.api_key.get_secret_value()}"
    return ClusterOptions(
        tuple(section.urls),
        section.user,
        None if password is None else password.get_secret_value(),
        headers,
        section.ca_file,
    )


def _probe(section: OpenSearchSection) -> str:
    from tidelog.outputs.opensearch.client import Cluster

    with closing(Cluster(replace(_cluster(section), timeout_s=ANSWER_S))) as cluster:
        health = cluster.request("GET", "/_cluster/health", params={"level": "cluster"})
    return f"cluster {health['cluster_name']} answers, {health['status']}"


def _place(section: OpenSearchSection) -> OutputPlace:
    found = [hosts(urlsplit(url).netloc.rpartition("@")[2], 9200)[0] for url in section.urls]
    return OutputPlace([section.index], tuple(found))


def _names(section: OpenSearchSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.targets import refused_names
    from tidelog.outputs.formatters.messages import topic_of
    from tidelog.outputs.opensearch.indices import index_name
    from tidelog.outputs.opensearch.output import check_columns

    joined = {each.root for each in section.documents}
    joined |= {part.table for each in section.documents for part in each.parts}

    def address(table: TargetTable) -> str | None:
        if str(table.source) in joined:
            return None
        return f"index {index_name(topic_of(section.index, table))}"

    def check(table: TargetTable) -> None:
        check_columns(section.name, table, table.columns.names)

    return refused_names(section.name, tables, check, address)


def _idle(section: OpenSearchSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name) and bool(_probe(section))


KIND = BuiltinKind(OpenSearchSection, _open, _place, "opensearchpy", _probe, _names, _idle)
