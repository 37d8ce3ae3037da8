"""Who takes over: whoever is in a preferred zone, and others so much later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.history_processes import CaptureProcess
from tests.faults.capture_fixture import Source
from tests.support.state_stores import STORES

from tidelog import app
from tidelog.config.models import CaptureSection

pytestmark = pytest.mark.integration
DELAY_S = 6.0


@pytest.mark.parametrize(
    ("zone", "prefer", "waits"),
    [
        ("a", [], 0.0),
        (None, [], 0.0),
        ("a", ["a", "b"], 0.0),
        ("c", ["a", "b"], 7.0),
        (None, ["a"], 7.0),
    ],
)
def test_a_process_waits_outside_the_preferred_zones(
    zone: str | None, prefer: list[str], waits: float
) -> None:
    section = CaptureSection.model_validate(
        {"zone": zone, "prefer_zones": prefer, "takeover_delay_ms": 7000}
    )
    assert section.handicap_s == waits


def test_the_preferred_zone_takes_over_and_others_only_if_nobody_is_there(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> None:
    source = Source(database, tmp_path, state=STORES["postgresql"](request, tmp_path))
    text = source.config_file.read_text()
    captures: dict[str, CaptureProcess] = {}

    def start(zone: str) -> None:
        file = tmp_path / f"{zone}.yaml"
        of_zone = f"zone: {zone}, prefer_zones: [a, b], takeover_delay_ms: {DELAY_S * 1000:.0f}"
        file.write_text(text.replace("capture: {", f"capture: {{{of_zone}, "))
        captures[zone] = CaptureProcess(file, tmp_path / f"{zone}.log")
        source.captures.append(captures[zone])

    def leads(zone: str) -> bool:
        found = app.status(source.config).document
        return found["leader"] is not None and found["zone"] == zone

    try:
        start("a")
        source.wait_for(lambda: app.status(source.config).document["leader"])
        for zone in "cb":
            start(zone)
        source.wait_for(lambda: len(app.status(source.config).document["standbys"]) == 2)
        captures["a"].kill()
        source.wait_for(lambda: leads("b"))
        killed = time.monotonic()
        captures["b"].kill()
        source.write(1, 10)
        source.wait_for(lambda: source.inserted() == list(range(1, 11)))
        assert leads("c")
        assert time.monotonic() - killed > DELAY_S, "it did not wait"
    finally:
        source.close()
