"""Curves of growth as an SVG: panels side by side, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _TOP, _BASE = 240, 220, 52, 30, 170
_COLOURS = ("#2a6f97", "#a0a0a0")


@dataclass(frozen=True)
class Curve:
    """CPU milliseconds by size."""

    what: str
    points: Sequence[tuple[int, float]]


def write_picture(file: Path, panels: Sequence[Sequence[Curve]]) -> None:
    """A panel for each group of curves, which share their sizes. Milliseconds are to one scale."""
    times = [y for panel in panels for curve in panel for _, y in curve.points]
    lowest = 10 ** math.floor(math.log10(min(times)))
    highest = 10 ** math.ceil(math.log10(max(times)))
    width = _LEFT + _WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + number * _WIDTH, lowest, highest)
    file.write_text("\n".join([*parts, "</svg>", ""]))


def _panel(curves: Sequence[Curve], left: int, lowest: float, highest: float) -> list[str]:
    sizes = [x for x, _ in curves[0].points]
    right = left + _WIDTH - 50

    def at_x(size: float) -> float:
        span = math.log(max(sizes) / min(sizes)) or 1.0
        return left + 10 + (right - left - 20) * math.log(size / min(sizes)) / span

    def at_y(ms: float) -> float:
        return _BASE - (_BASE - _TOP) * math.log(ms / lowest) / math.log(highest / lowest)

    parts, line = [], lowest
    while line <= highest:
        y = at_y(line)
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">'
            f"{line:g} ms</text>"
        )
        line *= 10
    for size in sizes:
        x, label = at_x(size), _short(size)
        parts.append(f'<text x="{x:.1f}" y="{_BASE + 15}" fill="#444444">{label}</text>')
    for number, (curve, colour) in enumerate(zip(curves, _COLOURS, strict=False)):
        places = [(at_x(x), at_y(y)) for x, y in curve.points]
        line_to = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{line_to}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        middle, low = (left + right) / 2, _BASE + 31 + 13 * number
        parts.append(f'<text x="{middle:.1f}" y="{low}" fill="{colour}">{curve.what}</text>')
    return parts


def _short(size: int) -> str:
    for unit, sign in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit:
            return f"{size / unit:g}{sign}"
    return str(size)
