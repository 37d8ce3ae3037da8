"""Write docs/internals/campaign.md and its picture from what campaigns noted:
``python tools/campaign_page.py [--anew] [--mended SEED TEXT] [campaign.json …]``. The notes are kept
beside the page, and those given are added to them, or with ``--anew`` take their place. Those of one
campaign count once: what it noted last. A violation stays in the notes when its cause is mended, with
``TEXT``, which says what it was; the page counts it apart.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
NOTES = DOCS / "internals" / "campaign.json"
PAGE = DOCS / "internals" / "campaign.md"
PICTURE = DOCS / "images" / "campaign.svg"
EDGES_S = (0.5, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
"""Upper ends of the picture's bars."""
PARTS = {
    "taken_s": "until the lease was taken by who came to lead",
    "fenced_s": "from there until it had the event log",
    "opened_s": "from there until it began to stream",
    "first_s": "from there until its first record",
}
WIDTH, HEIGHT, BASE, LEFT = 720, 220, 180, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaigns", nargs="*", type=Path, help="what campaigns noted")
    parser.add_argument("--anew", action="store_true", help="forget what is noted beside the page")
    parser.add_argument("--mended", nargs=2, action="append", default=[], help="seed and cause")
    arguments = parser.parse_args()
    told = [NOTES] if not arguments.anew else []
    told += [path for path in arguments.campaigns if path.resolve() != NOTES]
    campaigns = campaigns_of([json.loads(path.read_text()) for path in told])
    mend(campaigns, {int(seed): cause for seed, cause in arguments.mended})
    notes = merged(campaigns)
    NOTES.write_text(json.dumps({"campaigns": campaigns}, indent=1) + "\n")
    gaps = sorted(gap for run in notes["runs"] for gap in run["leaderless_s"])
    PICTURE.write_text(picture(gaps))
    PAGE.write_text(page(notes, gaps))


def campaigns_of(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each campaign once: what it noted last. Each of ``told`` is one, or has some."""
    each: dict[str, dict[str, Any]] = {}
    for notes in told:
        for one in notes.get("campaigns", [notes]):
            each[one.get("campaign", "")] = one
    return list(each.values())


def mend(campaigns: list[dict[str, Any]], causes: dict[int, str]) -> None:
    """Note the cause of violations, by seed, that is mended. Their logs are left out: they are long."""
    for found in [found for one in campaigns for found in one["violations"]]:
        found.pop("error", None)
        if cause := causes.get(found["seed"]):
            found["mended"] = cause


def merged(campaigns: list[dict[str, Any]]) -> dict[str, Any]:
    """Their notes as those of one.

    Raises ValueError: they can't be compared, for what they ask differs.
    """
    asked = ("lease_s", "lag_s", "lively_s")
    for name in asked:
        if len({one[name] for one in campaigns}) != 1:
            raise ValueError(f"{name} differs between the campaigns: begin with --anew")
    return {
        "campaigns": len(campaigns),
        "hours": round(sum(one["hours"] for one in campaigns), 3),
        "runs": [run for one in campaigns for run in one["runs"]],
        "violations": [found for one in campaigns for found in one["violations"]],
        "empty": sum(one.get("empty", 0) for one in campaigns),
        "kinds": {kind: what for one in campaigns for kind, what in one["kinds"].items()},
        **{name: campaigns[-1][name] for name in asked},
    }


def page(notes: dict[str, Any], gaps: list[float]) -> str:
    """The page, of campaigns' notes (`merged`)."""
    runs, violations, described = notes["runs"], notes["violations"], notes["kinds"]
    lease_s, lag_s, lively_s = notes["lease_s"], notes["lag_s"], notes["lively_s"]
    faults = Counter[str]()
    for run in runs:
        faults.update(run["faults"])
    lively = sorted(run["lively_s"] for run in runs)
    sources = ", ".join(sorted({run["source"] for run in runs}))
    stores = ", ".join(f"`{store}`" for store in sorted({run["state"] for run in runs}))
    open_ones = [each for each in violations if "mended" not in each]
    told = "".join(f"\n- seed {each['seed']}: {each['what']}" for each in open_ones)
    told += "\n" if told else ""
    records = sum(run["records"] for run in runs)
    transactions = sum(run["transactions"] for run in runs)
    return f"""# The campaign

Two captures on two hosts share nothing but a source, an event log and a state store. A nemesis takes parts away and gives them back, at most two at a time. Then the
history oracle compares the event log with what the source committed: [invariants](../INVARIANTS.md) 1, 2, 3, 7 and 8, and each rule that keeps two leaders apart. Once the
last fault is over, what is written must be captured within {lag_s:.0f} s, {lively_s:.0f} s later at the latest, without help.

`make campaign` runs it; `make campaign-short` (three minutes) is a part of CI. `tools/campaign_page.py` writes this page from [the notes](campaign.json).

- These limits are measured by a clock that runs as slowly as the busy machine (`tests/campaign/machine_time.py`).
- Some runs have two processes of one pipeline, with copies in PostgreSQL and files: copies must be equal to the source, and each event in the files once.
- In others operators restore log, state or both, leave tables out, forget to mount the log, create tables. No offset may be issued twice, a reader that is ahead must be
  refused, and what is missing must be dumped.

| | |
|---|---|
| campaigns | {notes["campaigns"]} |
| hours, with the judging | {notes["hours"]:.2f} |
| runs | {len(runs) + len(violations)} |
| runs besides in which no dump was completed, which show less | {notes.get("empty", 0)} |
| transactions captured in the runs that hold | {transactions:,} |
| records and dumped rows held against the source | {records:,} |
| faults in the runs that hold | {sum(faults.values())} |
| violations | {len(open_ones)} |
{mended_of(violations)}{piped_of(runs)}| until captured again, after the last fault | half of the runs {at(lively, 0.5)} s, at most {at(lively, 1)} s |
{told}
Sources: {sources}. State: {stores}.

## Faults

Of {len(described)} kinds: [what each is](campaign.json), `kinds`, and each run's, `runs`.

A path leads from one host to the database, the state store, the bucket, or a copy. Each host has a network namespace; a TCP proxy in each path refuses, silences and slows
down; rules of the namespace drop packets.

## Without a leader

From the last record of a leader to the first one of the next, {len(gaps)} times; the lease lasts {lease_s:.0f} s. Half are below {at(gaps, 0.5)} s, nine of ten below
{at(gaps, 0.9)} s, the longest is {at(gaps, 1)} s. Other faults and a busy machine are in it: it is no measure of a standby's speed.
{parts_of(runs)}
![How long nothing was captured between two leaders](../images/campaign.svg)

## That it notices, and its limits

`TIDELOG_CAMPAIGN_MUTATIONS=1 make soak ARGS=tests/campaign` breaks one rule after the other (`tests/campaign/mutations.py`), and a run must report just that.

Single packets are not lost or reordered. Faults of a disk and of the clock are shown to capture's process alone, not to the machine or the pipelines. Where pipelines
are, no operator acts: an output ahead of a restored log [has to be moved by hand](../how-to/restore.md).
"""


def parts_of(runs: list[dict[str, Any]]) -> str:
    """With what the time between two leaders was spent."""
    gaps = [gap for run in runs for gap in run.get("gaps", ())]
    if not gaps:
        return ""
    rows = "\n".join(
        f"| {what} | {at(sorted(gap[name] for gap in gaps), 0.5)} s "
        f"| {at(sorted(gap[name] for gap in gaps), 1)} s |"
        for name, what in PARTS.items()
    )
    vain = [gap["seconds"] for gap in gaps if gap["leaders"]]
    told = ""
    if vain:
        told = (
            f"\nIn {len(vain)} of them another leader was lost before it captured a record: "
            f"{at(sorted(vain), 0.5)} s in the middle, {at(sorted(vain), 1)} s at most.\n"
        )
    return f"\n| of it | half are below | at most |\n|---|---|---|\n{rows}\n{told}"


def mended_of(violations: list[dict[str, Any]]) -> str:
    """Those whose cause is mended, as a row of the table."""
    mended = sum("mended" in each for each in violations)
    return f"| violations whose cause is mended since | {mended} |\n" if mended else ""


def piped_of(runs: list[dict[str, Any]]) -> str:
    """What the pipelines did, as rows of the table."""
    piped = [run["piped"] for run in runs if run.get("piped")]
    if not piped:
        return ""
    rows, events = (sum(int(one[name]) for one in piped) for name in ("rows", "events"))
    seconds = sorted(one["seconds"] for one in piped)
    ended = sum(int(one.get("ended", 0)) for one in piped)
    return (
        f"| runs with pipelines; rows and events compared | {len(piped)}; {rows:,} and {events:,} |\n"
        f"| pipelines that ended by themselves, and were started again | {ended} |\n"
        f"| until the outputs were whole, after capture was at rest | at most {at(seconds, 1)} s |\n"
    )


def at(values: list[float], share: float) -> str:
    """The quantile, as text."""
    if not values:
        return "–"
    return f"{values[max(0, math.ceil(share * len(values)) - 1)]:.1f}"


def picture(gaps: list[float]) -> str:
    """A histogram as SVG."""
    lower = (0.0, *EDGES_S)
    edges = (*EDGES_S, math.inf)
    counts = [sum(a <= gap < b for gap in gaps) for a, b in zip(lower, edges, strict=True)]
    most = max(*counts, 1)
    step = (WIDTH - 2 * LEFT) / len(counts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for i, count in enumerate(counts):
        x, height = LEFT + i * step, count / most * (BASE - 30)
        parts.append(
            f'<rect x="{x + 3:.0f}" y="{BASE - height:.1f}" width="{step - 6:.0f}" '
            f'height="{height:.1f}" fill="#2a6f97"/>'
        )
        middle = x + step / 2
        if count:
            parts.append(f'<text x="{middle:.0f}" y="{BASE - height - 5:.1f}">{count}</text>')
        name = f"&lt; {edges[i]:g}" if edges[i] < math.inf else f"{lower[i]:g} +"
        parts.append(f'<text x="{middle:.0f}" y="{BASE + 15}" fill="#444444">{name}</text>')
    parts.append(
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}" fill="#444444">seconds without a leader</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
