"""What the chart gives a pipeline with executors in pods, where Helm is not installed as well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parents[2] / "deploy/chart"
EXECUTOR: Final = CHART / "files/executor.yaml"
RELEASE: Final = {"Name": "shop", "Namespace": "data"}


def values() -> dict[str, Any]:
    """The chart's own values."""
    return dict(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def executor_settings() -> dict[str, str]:
    """Spark's settings that the chart always gives, by its own values."""
    text = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    known: Any = {"Release": RELEASE, "Values": values()}

    def value(match: re.Match[str]) -> str:
        found = known
        for part in match[1].split("."):
            found = found[part]
        return str(found)

    lines = re.findall(r"^(spark\.[\w.]+): ((?:\{\{ \.[\w.]+ \}\}|[\w/.${}-])+)$", text, re.M)
    return {name: re.sub(r"\{\{ \.([\w.]+) \}\}", value, template) for name, template in lines}
