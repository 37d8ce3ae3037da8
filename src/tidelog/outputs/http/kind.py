"""Kind ``http``."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from tidelog.outputs.base.kinds import BuiltinKind
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.reachability import check_port
from tidelog.outputs.delivery_settings import delivery_of, handling_of, skipped_of
from tidelog.outputs.http.config import HttpSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputPlace


def _probe(section: HttpSection) -> str:
    # A connection without a request, which would be a record.
    url = urlsplit(section.url.reveal())
    return check_port(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))


def _open(section: HttpSection, context: OutputContext) -> Output:
    from tidelog.outputs.formatters import formatter
    from tidelog.outputs.http.client import Endpoint
    from tidelog.outputs.http.output import HttpOutput
    from tidelog.outputs.http.requests import Body

    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.token is not None:
        headers["Authorization"] = f"Bearer {section.token.get_secret_value()}"
    endpoint = Endpoint(
        section.url.reveal(),
        section.method,
        headers,
        gzip=section.gzip,
        timeout_s=section.timeout_ms / 1000,
        retry_for_s=section.retry_for_ms / 1000,
        ca_file=section.ca_file,
    )
    delivery = delivery_of(section, keyed=False, order=section.order)
    return HttpOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        replace(
            delivery,
            formatter=formatter(section.format, tombstones=False, handling=handling_of(section)),
            skipped=skipped_of(section),
        ),
        endpoint=endpoint,
        body=Body(section.body, section.batch_rows, section.batch_bytes),
        lanes=section.connections,
    )


def _place(section: HttpSection) -> OutputPlace:
    url = urlsplit(section.url.reveal())
    # A query may contain a key, which changes now and then.
    return OutputPlace([url.hostname, url.port, url.path], now=url.query)


def _idle(section: HttpSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name)  # without records nothing is requested of the API


KIND = BuiltinKind(HttpSection, _open, _place, "httpx", _probe, idle=_idle)
