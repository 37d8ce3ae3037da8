"""Each alert rule fires at its number and after its time, and neither before, by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.prometheus import INSTALLED, RULES, WHY, promtool, rules

pytestmark = pytest.mark.skipif(not INSTALLED, reason=WHY)

OUTPUT = '{job="tidelog", pipeline="shop", output="delta"}'
JOB = '{job="tidelog"}'
MINUTES = 90
# By rule: series that are at its limit, and then beyond it from minute 10 on; the minute after
# which it fires.
FAULTS: dict[str, tuple[dict[str, tuple[str, str]], int]] = {
    "TidelogNobodyLeads": ({f"tidelog_leading{JOB}": ("1", "0")}, 11),
    "TidelogSourceAway": ({f"tidelog_source_up{JOB}": ("1", "0")}, 11),
    "TidelogLogNearlyLost": ({f"tidelog_source_log_lost_in_seconds{JOB}": ("3600", "3599")}, 12),
    "TidelogCaptureLate": ({f"tidelog_capture_lag_seconds{JOB}": ("300", "301")}, 15),
    "TidelogOutputStopped": ({f"tidelog_output_up{OUTPUT}": ("1", "0")}, 10),
    "TidelogOutputLate": ({f"tidelog_output_lag_seconds{OUTPUT}": ("900", "901")}, 15),
    "TidelogPipelineSilent": (
        {
            f"tidelog_output_lag_seconds{OUTPUT}": ("600", "601"),
            f"tidelog_output_noted_timestamp_seconds{OUTPUT}": ("-9999", "-9999"),
        },
        11,
    ),
    "TidelogDeadLetters": (
        {f"tidelog_output_dead_letter_timestamp_seconds{OUTPUT}": ("-9999", "500")},
        10,
    ),
    "TidelogGap": ({f"tidelog_gap_timestamp_seconds{JOB}": ("-9999", "500")}, 10),
    "TidelogDumpFailed": ({f"tidelog_tables_failed{JOB}": ("0", "1")}, 10),
    "TidelogTableRefused": (
        {'tidelog_problems{job="tidelog", kind="table-refused", severity="warning"}': ("0", "1")},
        15,
    ),
}


def test_each_rule_is_tried() -> None:
    assert {rule["alert"] for rule in rules()} == FAULTS.keys()


def test_promtool_takes_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("alert", FAULTS)
def test_it_fires_at_its_number_and_after_its_time(alert: str, tmp_path: Path) -> None:
    series, fires_at = FAULTS[alert]
    given = [
        {"series": name, "values": f"{before}x9 {beyond}x{MINUTES - 10}"}
        for name, (before, beyond) in series.items()
    ]
    if alert != "TidelogNobodyLeads":
        given.append({"series": f"tidelog_leading{JOB}", "values": f"1x{MINUTES}"})
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": given,
                "alert_rule_test": [
                    {"eval_time": f"{fires_at - 1}m", "alertname": alert, "exp_alerts": []},
                    {
                        "eval_time": f"{fires_at}m",
                        "alertname": alert,
                        "exp_alerts": [_expected(alert, series)],
                    },
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    told = promtool("test", "rules", file)
    assert told.returncode == 0, told.stdout + told.stderr


def _expected(alert: str, series: dict[str, tuple[str, str]]) -> dict[str, Any]:
    [rule] = [each for each in rules() if each["alert"] == alert]
    [name, *_] = series
    labels = dict(each.split("=") for each in name.partition("{")[2].rstrip("}").split(", "))
    told = {label: value.strip('"') for label, value in labels.items()}
    summary = rule["annotations"]["summary"]
    for label, value in told.items():
        summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
    for shown, value in SHOWN.get(alert, {}).items():
        summary = summary.replace(shown, value)
    return {"exp_labels": {**told, **rule["labels"]}, "exp_annotations": {"summary": summary}}


HUMAN = "{{ $value | humanizeDuration }}"
SHOWN = {
    "TidelogCaptureLate": {HUMAN: "5m 1s"},
    "TidelogOutputLate": {HUMAN: "15m 1s"},
    "TidelogPipelineSilent": {HUMAN: "2h 57m 39s"},
    "TidelogDumpFailed": {"{{ $value }}": "1"},
    "TidelogTableRefused": {"{{ $value }}": "1"},
}
