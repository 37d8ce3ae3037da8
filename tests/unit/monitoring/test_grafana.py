"""The Grafana dashboard asks for what there is, and leaves nothing out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.support.prometheus import INSTALLED, WHY, promtool
from tools.grafana import ROWS, dashboard, queries

from tidelog.app.web.metrics import LEADING, METRICS

FILE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "tidelog-dashboard.json"


def test_it_shows_every_metric_and_no_other() -> None:
    named = {name for query in queries() for name in re.findall(r"tidelog_\w+", query)}
    assert named == {metric.name for metric in (LEADING, *METRICS)}


def test_counters_are_shown_as_rates_and_gauges_are_not() -> None:
    kinds = {metric.name: metric.kind for metric in METRICS}
    for query in queries():
        for change, name in re.findall(r"(?:(rate|increase)\()?(tidelog_\w+)", query):
            whole = query.startswith(f"sum({name}")  # how many there ever were
            assert (kinds.get(name) == "counter") == bool(change) or whole, query


def test_legends_name_labels_that_there_are() -> None:
    labels = {metric.name: set(metric.labels) for metric in (LEADING, *METRICS)}
    for row in ROWS:
        for panel in row.panels:
            for query, legend in panel.queries:
                names = re.findall(r"tidelog_\w+", query)
                shown = set(re.findall(r"{{(\w+)}}", legend))
                assert all(shown <= labels[name] for name in names), (panel.title, legend)


def test_the_file_is_one_that_grafana_imports() -> None:
    found = json.loads(FILE.read_text())
    assert FILE.read_text() == dashboard()
    variables = {each["name"] for each in found["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)\}?", FILE.read_text())) <= variables
    numbers = [panel["id"] for panel in found["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for panel in found["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert max(x for x, _ in cells) == 23
    assert "id" not in found  # Grafana's own: a file that is imported has none


UNITS = {"none", "s", "cps", "Bps", "bytes", "percentunit", "bool_yes_no", "reqps"}
"""As Grafana's `@grafana/data` (valueFormats/categories.ts) has them."""


def test_each_panel_has_what_its_kind_needs() -> None:
    """By Grafana's schema: https://github.com/grafana/grafana/tree/main/kinds/dashboard"""
    panels = json.loads(FILE.read_text())["panels"]
    for panel in panels:
        assert panel["type"] in ("row", "stat", "timeseries"), panel["title"]
        assert {"id", "title", "gridPos"} <= panel.keys()
        if panel["type"] == "row":
            assert (panel["panels"], panel["gridPos"]["w"]) == ([], 24)
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        if "thresholds" in defaults:
            steps = defaults["thresholds"]["steps"]
            assert steps[0]["value"] is None  # from the least on
            assert [each["value"] for each in steps[1:]] == sorted(x["value"] for x in steps[1:])
        if panel["type"] == "stat":
            assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        names = [target["refId"] for target in panel["targets"]]
        assert names, panel["title"]
        assert len(set(names)) == len(names)
        for target in panel["targets"]:
            assert {"expr", "legendFormat", "datasource"} <= target.keys()


@pytest.mark.skipif(not INSTALLED, reason=WHY)
def test_prometheus_can_read_each_query(tmp_path: Path) -> None:
    recorded = [{"record": f"q:{at}", "expr": query} for at, query in enumerate(queries())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": recorded}]}))
    told = promtool("check", "rules", file)
    assert told.returncode == 0, told.stderr
    assert f"{len(recorded)} rules found" in told.stdout
