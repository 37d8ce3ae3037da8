"""The Grafana dashboard, made of the metrics: `docs/how-to/tidelog-dashboard.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tidelog.app.web.metrics import LEADING, METRICS

NAMES: Final = {metric.name for metric in (LEADING, *METRICS)}
UID: Final = "tidelog-overview"
WIDTH, TILE_WIDTH, TILE_HEIGHT, GRAPH_WIDTH, GRAPH_HEIGHT = 24, 4, 4, 8, 7
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
OUTPUT = "{{pipeline}}/{{output}}"


def of(name: str, **labels: str) -> str:
    """The series of a metric, of the chosen job."""
    name = f"tidelog_{name}"
    assert name in NAMES, name
    more = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f'{name}{{job=~"$job"{more}}}'


def rate(name: str) -> str:
    return f"rate({of(name)}[$__rate_interval])"


def age(name: str) -> str:
    return f"time() - {of(name)}"


@dataclass(frozen=True)
class Panel:
    """One panel. ``unit``: as Grafana calls it; ``limits``: from where a tile is yellow, and red."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    kind: Literal["stat", "timeseries"] = "timeseries"
    limits: tuple[float | None, float] | None = None


def tile(
    title: str, unit: str, query: str, limits: tuple[float | None, float] | None, about: str = ""
) -> Panel:
    return Panel(title, unit, ((query, ""),), about, "stat", limits)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...] = field(default=())


ROWS: Final = (
    Row("Is all well?", (
        tile("Leaders", "none", f"sum({of('leading')})", None, "Must be 1."),
        tile("Capture is behind", "s", f"max({of('capture_lag_seconds')})", (60, 300)),
        tile("Slowest output is behind", "s", f"max({of('output_lag_seconds')})", (300, 900)),
        tile("Outputs that stopped", "none", f"count({of('output_up')} == 0) or vector(0)", (None, 1)),
        tile("Critical problems", "none", f"sum({of('problems', severity='critical')}) or vector(0)", (None, 1), "`tidelog status` tells them."),
        tile("Warnings", "none", f"sum({of('problems', severity='warning')}) or vector(0)", (1, 1e9)),
        tile("Source answers", "bool_yes_no", f"min({of('source_up')})", None),
        tile("Log is lost in", "s", f"min({of('source_log_lost_in_seconds')})", None, "None while it does not come nearer."),
        tile("Tables refused", "none", f"max({of('tables_refused')})", (1, 1e9)),
        tile("Tables whose dump failed", "none", f"max({of('tables_failed')})", (1, 1e9)),
        tile("Dead letters", "none", f"sum({of('output_dead_letters_total')}) or vector(0)", (1, 1e9)),
        tile("Since the last gap", "s", f"min({age('gap_timestamp_seconds')})", None, "None: there never was one."),
    )),
    Row("Capture", (
        Panel("Records a second", "cps", ((rate("captured_records_total"), "records"),)),
        Panel("Bytes a second", "Bps", ((rate("captured_bytes_total"), "payload"),)),
        Panel("Behind the source, seconds", "s", ((of("capture_lag_seconds"), "lag"), (age("captured_commit_timestamp_seconds"), "age of the newest commit"))),
        Panel("Behind the source, bytes", "bytes", ((of("capture_lag_bytes"), "not captured"),)),
        Panel("Buffer", "bytes", ((of("buffer_bytes"), "waits for the writer"),)),
        Panel("Reading waits for the buffer", "percentunit", ((rate("buffer_waited_seconds_total"), "share of time"),)),
        Panel("Segments a second", "cps", ((rate("segments_total"), "segments"),)),
        Panel("Until a segment is durable", "s", ((f"{rate('segment_append_seconds_total')} / {rate('segments_total')}", "mean"),)),
        Panel("Log waits for a blocking dump", "bool_yes_no", ((of("log_paused"), "paused"),)),
    )),
    Row("The source's log", (
        Panel("Kept for capture", "bytes", ((of("source_log_retained_bytes"), "kept"),)),
        Panel("Until it is removed, bytes", "bytes", ((of("source_log_spare_bytes"), "spare"),)),
        Panel("Until it is removed, time", "s", ((of("source_log_lost_in_seconds"), "at the last minutes' rate"),)),
    )),
    Row("Outputs", (
        Panel("Behind, seconds", "s", ((of("output_lag_seconds"), OUTPUT),)),
        Panel("Behind, records", "none", ((of("output_behind_records"), OUTPUT),)),
        Panel("Records a second", "cps", ((rate("output_records_total"), OUTPUT),)),
        Panel("Time of a batch", "s", ((f"{rate('output_batch_seconds_total')} / {rate('output_batches_total')}", f"{OUTPUT}, mean"), (of("output_last_batch_seconds"), f"{OUTPUT}, last"))),
        Panel("Since the last batch", "s", ((age("output_committed_timestamp_seconds"), OUTPUT),)),
        Panel("Since its pipeline told of it", "s", ((age("output_noted_timestamp_seconds"), OUTPUT),), "It tells of what it delivers; an idle one tells nothing."),
        Panel("Follows", "bool_yes_no", ((of("output_up"), OUTPUT),)),
        Panel("Dead letters", "none", ((f"increase({of('output_dead_letters_total')}[$__rate_interval])", OUTPUT),)),
        Panel("Since the last dead letter", "s", ((age("output_dead_letter_timestamp_seconds"), OUTPUT),)),
        Panel("Tables left out", "none", ((of("output_refused_tables"), OUTPUT),), "For their names, until a dump has completed them."),
    )),
    Row("Engines in programs", (
        Panel("Behind, seconds", "s", ((of("engine_lag_seconds"), "{{engine}}"),)),
        Panel("Behind, records", "none", ((of("engine_behind_records"), "{{engine}}"),)),
    )),
    Row("Dumps", (
        Panel("Dumps", "none", ((of("dumps_unfinished"), "unfinished"), (of("dumps_paused"), "paused"), (of("dump_tables_unfinished"), "tables to read"))),
        Panel("Still takes", "s", ((of("dump_left_seconds"), "at the rate so far"),)),
        Panel("Rows a second", "cps", ((rate("dump_rows_total"), "read"), (rate("dump_rows_superseded_total"), "superseded"))),
        Panel("Chunks a second", "cps", ((rate("dump_chunks_total"), "read"), (rate("dump_chunks_failed_total"), "failed"), (rate("dump_chunks_voided_total"), "void: {{reason}}"))),
        Panel("Readers", "none", ((of("dump_readers_busy"), "busy"),)),
        Panel("Windows", "none", ((of("windows_open"), "open"), (of("windows_unseen_transactions"), "unseen transactions"))),
        Panel("Memory of windows", "bytes", ((of("windows_retained_bytes"), "retained"),)),
        Panel("Throttle", "percentunit", ((of("throttle_readers_ratio"), "readers"), (of("throttle_pace_ratio"), "pace"))),
        Panel("Throttle: pause and why", "none", ((of("throttle_pause_seconds"), "pause, s"), (f"{of('throttle_limited')} == 1", "{{limit}}"))),
    )),
    Row("Event log, state store and election", (
        Panel("Segments", "none", ((of("event_log_segments"), "segments"),)),
        Panel("Payload", "bytes", ((of("event_log_payload_bytes"), "payload"),)),
        Panel("Requests to the state store", "reqps", ((rate("state_requests_total"), "{{operation}}"), (rate("state_requests_failed_total"), "{{operation}}, failed"))),
        Panel("Time of a request to it", "s", ((f"{rate('state_request_seconds_total')} / {rate('state_requests_total')}", "{{operation}}"),)),
        Panel("Lease lasts", "s", ((of("lease_remaining_seconds"), "if not renewed"),)),
        Panel("Renewals", "cps", ((rate("lease_renewals_total"), "renewed"), (rate("lease_renewals_failed_total"), "failed"))),
        Panel("Leadership", "none", ((of("leader_epoch"), "number"),)),
        Panel("Leads for", "s", ((age("leader_since_timestamp_seconds"), "since it took over"),)),
        Panel("Problems", "none", ((of("problems"), "{{kind}}"),)),
    )),
)  # fmt: skip


def queries() -> Iterator[str]:
    """All, with what Grafana would put in."""
    for row in ROWS:
        for panel in row.panels:
            for query, _ in panel.queries:
                yield query.replace("$__rate_interval", "1m").replace("$job", ".+")


def dashboard() -> str:
    """The file."""
    document = {
        "uid": UID,
        "title": "Tidelog",
        "description": "Capture, dumps and outputs. Made by `make docs`.",
        "tags": ["tidelog", "cdc"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), _job()]},
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
        "regex": "",
        "options": [],
        "includeAll": False,
        "multi": False,
    }


def _job() -> dict[str, Any]:
    query = "label_values(tidelog_leading, job)"
    return {
        "name": "job",
        "label": "Tidelog",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "job"},
        "current": {},
        "hide": 0,
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "options": [],
        "includeAll": False,
        "multi": False,
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in ROWS:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "gridPos": place,
            "collapsed": False,
            "panels": [],
        }
        top, left = top + 1, 0
        for panel in row.panels:
            number += 1
            stat = panel.kind == "stat"
            width, height = (TILE_WIDTH, TILE_HEIGHT) if stat else (GRAPH_WIDTH, GRAPH_HEIGHT)
            yield _panel(panel, number, {"h": height, "w": width, "x": left, "y": top})
            left += width
            if left >= WIDTH:
                top, left = top + height, 0
        if left:
            top += TILE_HEIGHT if row.panels[-1].kind == "stat" else GRAPH_HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        options: dict[str, Any] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
        defaults["min"] = 0
    else:
        calculation = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"colorMode": "background", "graphMode": "none", "reduceOptions": calculation}
        defaults["noValue"] = "–"
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel.limits)}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def _steps(limits: tuple[float | None, float] | None) -> list[dict[str, Any]]:
    if limits is None:
        return [{"color": "text", "value": None}]
    yellow, red = limits
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if yellow is not None:
        steps.append({"color": "yellow", "value": yellow})
    return [*steps, {"color": "red", "value": red}]
