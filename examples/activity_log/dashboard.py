"""Draws an activity log: inserts, updates and deletes a second, by table, and where one fell away.

    python dashboard.py DIRECTORY PAGE.html [--bucket SECONDS]

DIRECTORY is the `path` of a `files` output in Parquet. The page needs nothing else: no scripts, no
network; it is light or dark as the reader's system is. Needs pyarrow and numpy.
"""

from __future__ import annotations

import argparse
import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

Rates = npt.NDArray[np.float64]

KINDS = {"c": "inserts", "u": "updates", "d": "deletes"}
COLUMNS = pa.schema(
    [("op", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("table", pa.string())]
)

# A drop: for this many buckets below a share of what was usual in those before.
LOW_SHARE, BACK_SHARE = 0.2, 0.5
LOW_BUCKETS, USUAL_BUCKETS = 3, 5
USUAL_EVENTS = 5  # a bucket; fewer come and go by chance

STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 960, 200, 52, 92, 34, 26


@dataclass(frozen=True)
class Activity:
    """Events a second in buckets of ``bucket_s``, the first at ``start_s`` (since 1970), by table
    and op. The first and the last bucket, which are not whole, are left out.
    """

    start_s: int
    bucket_s: int
    rates: dict[str, dict[str, Rates]]

    @property
    def buckets(self) -> int:
        return len(next(iter(next(iter(self.rates.values())).values()))) if self.rates else 0

    def at(self, bucket: int) -> datetime:
        return datetime.fromtimestamp(self.start_s + bucket * self.bucket_s, UTC)


@dataclass(frozen=True)
class Drop:
    """Buckets ``[start, end)`` in which events of a kind fell away."""

    table: str
    op: str
    start: int
    end: int
    usual: float
    low: float


def read(directory: str | Path, bucket_s: int) -> Activity:
    """Counts by Arrow, a batch after the other: memory follows the number of buckets."""
    files = ds.dataset(str(directory), COLUMNS, format="parquet", partitioning="hive")
    parts = []
    for batch in files.to_batches(columns=COLUMNS.names, filter=pc.field("op").isin(list(KINDS))):
        seconds = pc.divide(batch.column("ts").cast(pa.int64()), 1_000_000 * bucket_s)
        rows = pa.table({"table": batch["table"], "op": batch["op"], "bucket": seconds})
        parts.append(rows.group_by(["table", "op", "bucket"]).aggregate([([], "count_all")]))
    counts = pa.concat_tables(parts) if parts else None
    if counts is None or not counts.num_rows:
        return Activity(0, bucket_s, {})
    buckets = counts["bucket"].to_numpy()
    first, last = int(buckets.min()) + 1, int(buckets.max())
    n = max(0, last - first)
    rates: dict[str, dict[str, Rates]] = {}
    for table in sorted(pc.unique(counts["table"]).to_pylist()):
        rates[table] = {}
        for op in KINDS:
            ours = counts.filter((pc.field("table") == table) & (pc.field("op") == op))
            at = ours["bucket"].to_numpy() - first
            whole = (at >= 0) & (at < n)
            series = np.zeros(n)
            np.add.at(series, at[whole], ours["count_all"].to_numpy()[whole])
            rates[table][op] = series / bucket_s
    return Activity(first * bucket_s, bucket_s, rates)


def drops(activity: Activity) -> Iterator[Drop]:
    """Where a table's inserts, updates or deletes fell to a fifth of what was usual, or less."""
    for table, kinds in activity.rates.items():
        for op, rates in kinds.items():
            at = USUAL_BUCKETS
            while at + LOW_BUCKETS <= len(rates):
                usual = float(np.median(rates[at - USUAL_BUCKETS : at]))
                low = rates[at : at + LOW_BUCKETS]
                if usual * activity.bucket_s < USUAL_EVENTS or low.max() > LOW_SHARE * usual:
                    at += 1
                    continue
                back = np.flatnonzero(rates[at:] > BACK_SHARE * usual)
                end = at + int(back[0]) if len(back) else len(rates)
                yield Drop(table, op, at, end, usual, float(rates[at:end].mean()))
                at = end + USUAL_BUCKETS


def page(activity: Activity, title: str) -> str:
    """The whole page."""
    found = list(drops(activity))
    if not activity.buckets:
        body = "<p>There are no changes yet.</p>"
    else:
        body = _alerts(activity, found) + _legend() + "".join(
            _panel(activity, table, [drop for drop in found if drop.table == table])
            for table in sorted(activity.rates, key=lambda t: (all(d.table != t for d in found), t))
        ) + _totals(activity)  # fmt: skip
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body><main><h1>{html.escape(title)}</h1>{_span(activity)}{body}</main></body></html>
"""


def _span(activity: Activity) -> str:
    if not activity.buckets:
        return ""
    start, end = activity.at(0), activity.at(activity.buckets)
    return (
        f"<p class=quiet>Changes a second, by table, from {start:%Y-%m-%d %H:%M:%S} to "
        f"{end:%H:%M:%S} UTC; one point for {activity.bucket_s} s.</p>"
    )


def _alerts(activity: Activity, found: Sequence[Drop]) -> str:
    if not found:
        return "<p class=calm>No sudden drop.</p>"
    items = "".join(
        f"<li><strong>{KINDS[drop.op].capitalize()} of {html.escape(drop.table)}</strong> fell "
        f"from {_number(drop.usual)} to {_number(drop.low)} a second at "
        f"{activity.at(drop.start):%H:%M:%S}{_until(activity, drop)}.</li>"
        for drop in found
    )
    return f"<ul class=alerts>{items}</ul>"


def _until(activity: Activity, drop: Drop) -> str:
    if drop.end >= activity.buckets:
        return ", and have not come back"
    return f", and came back at {activity.at(drop.end):%H:%M:%S}"


def _legend() -> str:
    keys = "".join(
        f'<span><svg width="34" height="10" aria-hidden="true"><line class="{op}" x1="1" y1="5" '
        f'x2="33" y2="5"/></svg>{name}</span>'
        for op, name in KINDS.items()
    )
    return f"<p class=legend>{keys}<span><i></i>sudden drop</span></p>"


def _panel(activity: Activity, table: str, found: Sequence[Drop]) -> str:
    kinds = {op: rates for op, rates in activity.rates[table].items() if rates.any()}
    n = activity.buckets
    top = _nice(max((float(rates.max()) for rates in kinds.values()), default=0.0))
    right, low = WIDTH - RIGHT, PANEL - BOTTOM

    def x(bucket: float) -> float:
        return LEFT + (right - LEFT) * bucket / max(1, n - 1)

    def y(rate: float) -> float:
        return low - (low - TOP) * rate / top

    parts = [f'<text class="name" x="{LEFT}" y="18">{html.escape(table)}</text>']
    for step in range(3):
        rate = top * step / 2
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(rate):.1f}" y2="{y(rate):.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">'
            f"{_number(rate)}</text>"
        )
    for bucket in _ticks(activity):
        when = activity.at(bucket).strftime("%H:%M:%S" if activity.bucket_s < 60 else "%d. %H:%M")
        parts.append(
            f'<text class="tick" x="{x(bucket):.1f}" y="{PANEL - 8}" text-anchor="middle">{when}'
            "</text>"
        )
    for together in _together(found):
        start = x(together[0].start - 0.5)
        end = x(min(max(drop.end for drop in together), n - 1))
        what = ", ".join(
            f"{KINDS[drop.op]} {_number(drop.usual)} → {_number(drop.low)}/s" for drop in together
        )
        anchor, place = ("end", start - 6) if start > WIDTH / 2 else ("start", start)
        parts.append(
            f'<rect class="drop" x="{start:.1f}" y="{TOP}" width="{max(2.0, end - start):.1f}" '
            f'height="{low - TOP}"/>'
            f'<line class="edge" x1="{start:.1f}" x2="{start:.1f}" y1="{TOP - 8}" y2="{low}"/>'
            f'<text class="what" x="{place:.1f}" y="{TOP - 12}" text-anchor="{anchor}">'
            f"{what}</text>"
        )
    for op, rates in kinds.items():
        line = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in enumerate(rates.tolist()))
        parts.append(f'<polyline class="{op}" points="{line}"/>')
    for op, place in _apart({op: y(float(rates[-1])) for op, rates in kinds.items()}):
        parts.append(
            f'<text class="end {op}" x="{right + 8}" y="{place + 4:.1f}">{KINDS[op]}</text>'
        )
    said = "; ".join(
        f"{KINDS[drop.op]} fell from {_number(drop.usual)} to {_number(drop.low)} a second at "
        f"{activity.at(drop.start):%H:%M:%S}"
        for drop in found
    )
    label = html.escape(f"{table}: changes a second over time. {said or 'No sudden drop'}.")
    return (
        f'<div class="panel"><svg viewBox="0 0 {WIDTH} {PANEL}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg></div>"
    )


def _together(found: Sequence[Drop]) -> list[list[Drop]]:
    """Drops that begin at about the same time share a mark."""
    groups: list[list[Drop]] = []
    for drop in sorted(found, key=lambda each: each.start):
        if groups and drop.start - groups[-1][0].start < LOW_BUCKETS:
            groups[-1].append(drop)
        else:
            groups.append([drop])
    return groups


def _apart(places: dict[str, float]) -> list[tuple[str, float]]:
    """Labels beside the lines' ends, none over another."""
    found: list[tuple[str, float]] = []
    for op, place in sorted(places.items(), key=lambda each: each[1]):
        found.append((op, max(place, found[-1][1] + 15) if found else place))
    if found and found[-1][1] > PANEL - BOTTOM:  # the lowest at the axis, the others above it
        limit = float(PANEL - BOTTOM)
        for at in range(len(found) - 1, -1, -1):
            found[at] = (found[at][0], min(found[at][1], limit))
            limit = found[at][1] - 15
    return found


def _totals(activity: Activity) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(table)}</th>"
        + "".join(f"<td>{int(kinds[op].sum() * activity.bucket_s):,}</td>" for op in KINDS)
        + "</tr>"
        for table, kinds in activity.rates.items()
    )
    heads = "".join(f"<th scope=col>{name}</th>" for name in KINDS.values())
    return (
        "<details><summary>In numbers</summary><div class=panel><table><thead><tr>"
        f"<th scope=col>table</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _ticks(activity: Activity) -> list[int]:
    """Buckets at round times, at most nine."""
    length = activity.buckets * activity.bucket_s
    step = next((s for s in STEPS_S if s >= activity.bucket_s and length / s <= 8), STEPS_S[-1])
    first = -(-activity.start_s // step) * step
    last = activity.start_s + length
    return [(at - activity.start_s) // activity.bucket_s for at in range(first, last, step)]


def _nice(rate: float) -> float:
    """A round number not below it."""
    if rate <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(rate)))
    return next(step * power for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= rate)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


_STYLE = """
:root{--back:#fff;--text:#1a1d21;--quiet:#555d66;--grid:#e3e6ea;
--c:#0b62c4;--u:#a85400;--d:#7a2fd0;
--alert:#b3121f;--band:rgba(200,20,40,.11)}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e8eaed;--quiet:#a3acb5;
--grid:#2c3238;--c:#6db3ff;--u:#ffb357;--d:#cba3ff;--alert:#ff8c95;--band:rgba(255,90,105,.17)}}
body{margin:0;background:var(--back);color:var(--text);
font:16px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1000px;margin:0 auto;padding:24px 20px 40px}h1{font-size:24px;margin:0}
.quiet{color:var(--quiet);margin:2px 0 14px}.calm{margin:0 0 10px}
.alerts{list-style:none;margin:0 0 14px;padding:10px 14px;border-left:4px solid var(--alert);
background:var(--band)}
.legend{display:flex;flex-wrap:wrap;gap:6px 22px;margin:0 0 6px;font-size:14px}
.legend span{display:flex;align-items:center;gap:7px}
.legend i{width:18px;height:14px;background:var(--band);border-left:2px solid var(--alert)}
.panel{overflow-x:auto;margin:0 0 10px}
.panel svg{display:block;width:100%;min-width:620px;height:auto}
svg text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:var(--quiet)}
svg text.name{font-weight:600;font-size:15px;fill:var(--text)}
svg text.what{fill:var(--alert);font-weight:600}
.grid{stroke:var(--grid)}.edge{stroke:var(--alert);stroke-width:1.5}.drop{fill:var(--band)}
polyline,.legend line{fill:none;stroke-width:2.2;stroke-linejoin:round}
.c{stroke:var(--c)}.u{stroke:var(--u);stroke-dasharray:7 3}.d{stroke:var(--d);stroke-dasharray:2 3}
svg text.end{stroke:none;font-weight:600}
text.c{fill:var(--c)!important}text.u{fill:var(--u)!important}text.d{fill:var(--d)!important}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:4px 18px 4px 0;text-align:right;border-bottom:1px solid var(--grid)}
th:first-child{text-align:left}summary{cursor:pointer;color:var(--quiet)}
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", help="path of the files output")
    parser.add_argument("page", type=Path, help="file to write")
    parser.add_argument("--bucket", type=int, default=60, help="seconds for one point")
    parser.add_argument("--title", default="Activity by table")
    asked = parser.parse_args()
    activity = read(asked.directory, asked.bucket)
    asked.page.write_text(page(activity, asked.title), encoding="utf-8")
    found = list(drops(activity))
    print(f"{asked.page}: {len(activity.rates)} tables, {len(found)} sudden drops")
    for drop in found:
        print(f"  {KINDS[drop.op]} of {drop.table} from {activity.at(drop.start):%H:%M:%S}")


if __name__ == "__main__":
    main()
