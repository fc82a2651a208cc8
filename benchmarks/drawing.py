"""Lines over time as SVG: as much of a plotting library as the benchmarks need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Panel", "draw"]

_WIDTH, _LEFT, _RIGHT, _HEIGHT, _GAP, _TOP = 900, 70, 20, 120, 34, 46
_COLOURS = ("#1e88e5", "#fb8c00", "#2e9d4f", "#8e24aa")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One axis of values over the common axis of time."""

    title: str
    lines: Mapping[str, Points]
    steps: frozenset[str] = field(default_factory=frozenset)
    """Lines that stay where they are until the next point."""


def draw(title: str, panels: Sequence[Panel], until: float, spans: Mapping[str, tuple]) -> str:
    """Return the picture; `spans` are named stretches of time that are coloured."""
    height = _TOP + len(panels) * (_HEIGHT + _GAP) + 10
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="15">{escape(title)}</text>',
    ]
    for name, (begin, end, colour) in spans.items():
        x, width = _x(begin, until), _x(end, until) - _x(begin, until)
        made.append(
            f'<rect x="{x:.1f}" y="{_TOP - 14}" width="{width:.1f}" height="{height - _TOP}" '
            f'fill="{colour}" opacity="0.13"/>'
            f'<text x="{x + 4:.1f}" y="{_TOP - 3}" fill="#555">{escape(name)}</text>'
        )
    for number, panel in enumerate(panels):
        made += _panel(panel, _TOP + number * (_HEIGHT + _GAP) + 18, until)
    return "\n".join([*made, "</svg>", ""])


def _x(at: float, until: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / until


def _panel(panel: Panel, top: float, until: float) -> list[str]:
    values = [value for line in panel.lines.values() for _, value in line]
    most = max([*values, 1e-9]) * 1.05
    bottom = top + _HEIGHT

    def y(value: float) -> float:
        return bottom - _HEIGHT * value / most

    made = [
        f'<text x="{_LEFT}" y="{top - 4}" font-weight="bold">{escape(panel.title)}</text>',
        f'<path d="M{_LEFT} {top}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="#888"/>',
    ]
    for share in (0.0, 0.5, 1.0):
        value = most * share
        made.append(
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">'
            f"{_short(value)}</text>"
        )
    made += [
        f'<text x="{_x(second, until):.1f}" y="{bottom + 13}" text-anchor="middle" '
        f'fill="#777" font-size="10">{second} s</text>'
        for second in range(0, int(until) + 1, 20)
    ]
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path, last = [], None
        for at, value in line:
            if last is not None and name in panel.steps:
                path.append(f"L{_x(at, until):.1f} {y(last):.1f}")
            path.append(f"{'L' if path else 'M'}{_x(at, until):.1f} {y(value):.1f}")
            last = value
        made.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x = _WIDTH - _RIGHT - 130 * (len(panel.lines) - number)
        made.append(f'<text x="{x}" y="{top - 4}" fill="{colour}">{escape(name)}</text>')
    return made


def _short(value: float) -> str:
    """Return a number for an axis.

    >>> _short(1_234_567), _short(45_600), _short(2.345), _short(0)
    ('1.2M', '46k', '2.3', '0')
    """
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    return f"{value:.1f}" if value else "0"
