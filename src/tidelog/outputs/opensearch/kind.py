"""Kind ``opensearch``."""

from __future__ import annotations

from urllib.parse import urlsplit

from tidelog.outputs.base.kinds import OwnKind, hosts
from tidelog.outputs.deliveries import delivery_of
from tidelog.outputs.opensearch.config import OpenSearchSection
from tidelog.ports import Output, OutputContext, OutputPlace


def _open(section: OpenSearchSection, context: OutputContext) -> Output:
    from tidelog.outputs.opensearch.client import ClusterOptions
    from tidelog.outputs.opensearch.output import Joined, OpenSearchOutput

    joined = []
    for each in section.documents:
        parts = {part.table: (part.name, tuple(part.key)) for part in each.parts}
        joined.append(Joined(each.index, {each.root: ("", ()), **parts}))
    delivery = delivery_of(section, keyed=True)
    password = section.password
    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.api_key is not None:
        headers["Authorization"] = f"ApiKey {section.api_key.get_secret_value()}"
    return OpenSearchOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        cluster=ClusterOptions(
            tuple(section.urls),
            section.user,
            None if password is None else password.get_secret_value(),
            headers,
            section.ca_file,
        ),
        index=section.index,
        create_indices=section.create_indices,
        settings=section.settings,
        mappings=section.mappings,
        tombstone_retention_s=section.tombstone_retention.total_seconds(),
        bulk_bytes=section.bulk_bytes,
        joined=joined,
    )


def _place(section: OpenSearchSection) -> OutputPlace:
    found = [hosts(urlsplit(url).netloc.rpartition("@")[2], 9200)[0] for url in section.urls]
    return OutputPlace([section.index], tuple(found))


KIND = OwnKind(OpenSearchSection, _open, _place, "opensearchpy")
