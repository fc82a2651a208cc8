"""A plan as a picture: one SVG without scripts or outside parts, for light and dark screens."""

from __future__ import annotations

from dataclasses import dataclass
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from waterspout.config import Config
from waterspout.trident.plan.facts import Place
from waterspout.trident.plan.graph import Edge, Flow, Graph, Vertex, graph_of
from waterspout.trident.plan.layout import Box, Laid, lay_out
from waterspout.trident.plan.plan import Phase, Plan

__all__ = ["to_svg"]

_CHAR = 7.25
_LINE = 16.0
_PAD = 10.0
_TAB = 19.0
_LID = 7.0
_GAP = 40.0
_MARGIN = 16.0
_GUTTER = 30.0
_MOST = 46
"""Characters of a line; the rest is in the tooltip."""

_STYLE = """
text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2430}
.page{fill:#fff}.band{fill:#8892a6;fill-opacity:.09;stroke:#8892a6;stroke-opacity:.5}
.name{font-weight:bold}.head{font-size:15px;font-weight:bold}.dim{fill:#5b6474}
.jvm{fill:#dff2e5;stroke:#2f855a}.python{fill:#fff0cc;stroke:#b7791f}
.driver{fill:#e6e4fb;stroke:#5a4fcf}.either{fill:#f3e3f4;stroke:#97439b}
.plain{fill:#eef0f3;stroke:#7b8494}.state{fill:#dfeafc;stroke:#2b6cb0}
.weak{fill:#fde2e2;stroke:#c53030}.tab{fill:#c2410c}.tab-text{fill:#fff;font-size:11px}
.edge{fill:none;stroke:#6b7486;stroke-width:1.4}.shuffle{stroke:#c2410c;stroke-width:2.6}
.visit{stroke:#b7791f;stroke-width:2.6}.ask{stroke-dasharray:3 4}.write{stroke-width:2.2}
.tip{fill:#6b7486}.shuffle-tip{fill:#c2410c}.visit-tip{fill:#b7791f}
@media (prefers-color-scheme:dark){text{fill:#e6e9ef}.page{fill:#14171d}.dim{fill:#a3abba}
.jvm{fill:#163526;stroke:#4fb37f}.python{fill:#3d2f0e;stroke:#d9a441}
.driver{fill:#26234d;stroke:#8e86f0}.either{fill:#3a2140;stroke:#c57fca}
.plain{fill:#262b34;stroke:#8a93a3}.state{fill:#172b4a;stroke:#6aa3ee}
.weak{fill:#4a1a1a;stroke:#f07f7f}.tab-text{fill:#fff}.edge{stroke:#96a0b3}
.shuffle{stroke:#f08a4b}.visit{stroke:#d9a441}.tip{fill:#96a0b3}.shuffle-tip{fill:#f08a4b}
.visit-tip{fill:#d9a441}}
"""
_CLASSES = {
    Place.JVM: "jvm",
    Place.PYTHON: "python",
    Place.DRIVER: "driver",
    Place.EITHER: "either",
    None: "plain",
}
_FLOWS = {
    Flow.ROWS: "edge",
    Flow.SHUFFLE: "edge shuffle",
    Flow.VISIT: "edge visit",
    Flow.ASK: "edge ask",
    Flow.WRITE: "edge write",
}
_LEGEND = (
    ("jvm", "JVM"),
    ("python", "Python worker"),
    ("driver", "driver"),
    ("either", "driver or tasks"),
    ("state", "state, exactly-once"),
    ("weak", "state, not exactly-once"),
)


def to_svg(plan: Plan, conf: Config) -> str:
    """Return the plan as an SVG document; the same plan gives the same text."""
    return _Picture(graph_of(plan, conf)).text()


@dataclass(frozen=True, slots=True)
class _Place:
    x: float
    top: float
    bottom: float
    width: float


class _Picture:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._index = {vertex.key: i for i, vertex in enumerate(graph.vertices)}
        self._layers = _layers(graph)
        self._boxes = [Box(self._layers[v.key], _width(v), _height(v)) for v in graph.vertices]
        self._lines = [self._downward(edge) for edge in graph.edges]
        self._laid: Laid = lay_out(self._boxes, self._lines)
        self._heads = [f"topology {graph.name}", *graph.notes]
        self._tops = self._layer_tops()
        texts = max(_CHAR * len(line) for line in self._heads[1:])
        texts = max(texts, 9.1 * len(self._heads[0]))
        legend = sum(self._legend_widths())
        inner = max(self._laid.right - self._laid.left + 2 * _PAD + _GUTTER, texts, legend)
        self._width = inner + 2 * _MARGIN
        spare = inner - _GUTTER - (self._laid.right - self._laid.left)
        self._shift = _MARGIN + _GUTTER + spare / 2 - self._laid.left
        self._places = [self._place(i) for i in range(len(self._boxes))]

    def text(self) -> str:
        """Return the whole document."""
        height = self._bottom(len(self._tops) - 1) + 2 * _MARGIN + 34
        name = f"the plan of topology {self._graph.name}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label={quoteattr(name)} '
            f'width="{_n(self._width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(self._width)} {_n(height)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_n(self._width)}" height="{_n(height)}"/>',
            *self._title(),
            *self._bands(),
            *(self._edge(i) for i in range(len(self._lines))),
            *(self._vertex(i) for i in range(len(self._boxes))),
            *self._legend(height - _MARGIN - 14),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    # --- where things are --------------------------------------------------------------------

    def _downward(self, edge: Edge) -> tuple[int, int]:
        ends = (self._index[edge.tail], self._index[edge.head])
        above, below = sorted(ends, key=lambda i: self._boxes[i].layer)
        return above, below

    def _layer_tops(self) -> list[float]:
        """Return where each layer begins; between two phases there is more room."""
        phases = [
            next(v.phase for v in self._graph.vertices if self._layers[v.key] == layer)
            for layer in range(1 + max(self._layers.values()))
        ]
        self._phases = phases
        tops = [_MARGIN + 24 + _LINE * len(self._graph.notes) + 26]
        for layer in range(1, len(phases)):
            more = 24 if phases[layer] is not phases[layer - 1] else 0
            tops.append(tops[-1] + self._tallest(layer - 1) + _GAP + more)
        return tops

    def _tallest(self, layer: int) -> float:
        return max(box.height for box in self._boxes if box.layer == layer)

    def _bottom(self, layer: int) -> float:
        return self._tops[layer] + self._tallest(layer)

    def _place(self, index: int) -> _Place:
        box = self._boxes[index]
        top = self._tops[box.layer] + (self._tallest(box.layer) - box.height) / 2
        return _Place(self._laid.xs[index] + self._shift, top, top + box.height, box.width)

    def _port(self, index: int, edge: int, *, below: bool) -> float:
        """Return where on a box an edge begins or ends: side by side, in order."""
        side, other = (0, 1) if below else (1, 0)
        mine = [i for i, line in enumerate(self._lines) if line[side] == index]

        def far(i: int) -> float:
            passed = self._laid.passes[i]
            if passed:
                return passed[0] if below else passed[-1]
            return self._laid.xs[self._lines[i][other]]

        mine.sort(key=lambda i: (far(i), i))
        step = min(26.0, self._places[index].width * 0.6 / len(mine))
        return self._places[index].x + step * (mine.index(edge) - (len(mine) - 1) / 2)

    # --- what is drawn -----------------------------------------------------------------------

    def _title(self) -> list[str]:
        head, *notes = self._heads
        lines = [
            f'<text class="head" x="{_n(_MARGIN)}" y="{_n(_MARGIN + 14)}">{escape(head)}</text>'
        ]
        for number, note in enumerate(notes):
            y = _MARGIN + 34 + _LINE * number
            lines.append(f'<text class="dim" x="{_n(_MARGIN)}" y="{_n(y)}">{escape(note)}</text>')
        return lines

    def _bands(self) -> list[str]:
        parts = []
        for phase in Phase:
            rows = [i for i, one in enumerate(self._phases) if one is phase]
            if not rows:
                continue
            top, bottom = self._tops[rows[0]] - 14, self._bottom(rows[-1]) + 14
            x, y = _MARGIN + 19, (top + bottom) / 2
            parts.append(
                f'<rect class="band" x="{_n(_MARGIN)}" y="{_n(top)}" rx="6" '
                f'width="{_n(self._width - 2 * _MARGIN)}" height="{_n(bottom - top)}"/>'
            )
            parts.append(
                f'<text class="dim" text-anchor="middle" x="{_n(x)}" y="{_n(y)}" '
                f'transform="rotate(-90 {_n(x)} {_n(y)})">{phase.value}</text>'
            )
        return parts

    def _edge(self, number: int) -> str:
        above, below = self._lines[number]
        edge = self._graph.edges[number]
        start = self._port(above, number, below=True)
        path = [f"M{_n(start)} {_n(self._places[above].bottom)}"]
        x, layer = start, self._boxes[above].layer
        stops = [p + self._shift for p in self._laid.passes[number]]
        end = self._port(below, number, below=False)
        for stop in [*stops, end]:
            y, down = self._bottom(layer), self._tops[layer + 1]
            middle = (y + down) / 2
            path.append(f"V{_n(y)}")
            if abs(stop - x) > 0.05:
                curve = f"C{_n(x)} {_n(middle)} {_n(stop)} {_n(middle)} {_n(stop)} {_n(down)}"
                path.append(curve)
            x, layer = stop, layer + 1
        tip_down = self._index[edge.head] == below
        bottom = self._places[below].top - (5 if tip_down else 0)
        path.append(f"V{_n(bottom)}")
        if not tip_down:  # it leads up, to who asks
            path[0] = f"M{_n(start)} {_n(self._places[above].bottom + 5)}"
        tip = _tip(end, bottom + 5, 1) if tip_down else _tip(start, self._places[above].bottom, -1)
        kind = _FLOWS[edge.flow]
        colour = {Flow.SHUFFLE: "shuffle-tip", Flow.VISIT: "visit-tip"}.get(edge.flow, "tip")
        return f'<path class="{kind}" d="{"".join(path)}"/><path class="{colour}" d="{tip}"/>'

    def _vertex(self, index: int) -> str:
        vertex, place = self._graph.vertices[index], self._places[index]
        tooltip = "\n".join([vertex.title, *vertex.lines, *_told(vertex)])
        parts = [f"<g><title>{escape(tooltip)}</title>"]
        top, left = place.top, place.x - place.width / 2
        if vertex.is_state:
            parts.append(_cylinder(place, "weak" if vertex.is_exact is False else "state"))
            top += 2 * _LID
        else:
            if vertex.shuffle is not None:
                parts.append(_tab(place, vertex.shuffle))
                top += _TAB
            parts.append(
                f'<rect class="{_CLASSES[vertex.place]}" x="{_n(left)}" y="{_n(top)}" rx="5" '
                f'width="{_n(place.width)}" height="{_n(place.bottom - top)}"/>'
            )
        for number, line in enumerate((vertex.title, *vertex.lines)):
            kind = "name" if number == 0 else "dim"
            y = top + _PAD + 10 + _LINE * number
            parts.append(_text(kind, left + _PAD, y, _cut(line)))
        return "".join([*parts, "</g>"])

    def _shown_legend(self) -> list[tuple[str, str]]:
        used = {_CLASSES[v.place] for v in self._graph.vertices if not v.is_state}
        used |= {
            "weak" if v.is_exact is False else "state" for v in self._graph.vertices if v.is_state
        }
        names = [(kind, text) for kind, text in _LEGEND if kind in used]
        flows = {edge.flow for edge in self._graph.edges}
        if Flow.SHUFFLE in flows:
            names.append(("shuffle", "shuffle"))
        if Flow.VISIT in flows:
            names.append(("visit", "same visit"))
        return names

    def _legend_widths(self) -> list[float]:
        return [_measure(text) + 42 for _, text in self._shown_legend()]

    def _legend(self, y: float) -> list[str]:
        parts, x = [], _MARGIN
        shown = zip(self._shown_legend(), self._legend_widths(), strict=True)
        for (kind, text), width in shown:
            if kind in ("shuffle", "visit"):
                parts.append(f'<path class="edge {kind}" d="M{_n(x)} {_n(y + 6)}h16"/>')
            else:
                parts.append(
                    f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="16" height="12" rx="3"/>'
                )
            parts.append(_text("dim", x + 22, y + 10, text))
            x += width
        return parts


def _layers(graph: Graph) -> dict[str, int]:
    """Return the layer of each vertex: below all that it follows from, phase below phase."""
    states = {vertex.key for vertex in graph.vertices if vertex.is_state}
    above: dict[str, list[str]] = {vertex.key: [] for vertex in graph.vertices}
    for edge in graph.edges:
        if edge.flow not in (Flow.ASK, Flow.WRITE):
            above[edge.head].append(edge.tail)
    layers: dict[str, int] = {}
    first = 0
    for phase in Phase:
        inside = [v.key for v in graph.vertices if v.phase is phase and v.key not in states]
        todo = list(inside)
        while todo:
            ready = [key for key in todo if all(one in layers for one in above[key])]
            for key in ready:
                layers[key] = max([first, *(layers[one] + 1 for one in above[key])])
            todo = [key for key in todo if key not in layers]
        written = [v.key for v in graph.vertices if v.is_state and v.phase is phase]
        low = max((layers[key] for key in inside), default=first - 1)
        for key in written:
            asked = [layers[e.head] for e in graph.edges if e.tail == key and e.flow is Flow.ASK]
            is_written = any(e.head == key for e in graph.edges)
            layers[key] = low + 1 if is_written or not asked else min(asked) - 1
        first = 1 + max([low, *(layers[key] for key in written)])
    return layers


def _width(vertex: Vertex) -> float:
    longest = max(_measure(line) for line in (vertex.title, *vertex.lines))
    tab = 0.0 if vertex.shuffle is None else _measure(f"shuffle {vertex.shuffle}") * 11 / 12
    return max(110.0, longest + 2 * _PAD, tab + 2 * _PAD)


def _height(vertex: Vertex) -> float:
    lines = _LINE * (1 + len(vertex.lines)) + 2 * _PAD - 4
    if vertex.is_state:
        return lines + 3 * _LID
    return lines + (0 if vertex.shuffle is None else _TAB)


def _cylinder(place: _Place, kind: str) -> str:
    left, right = _n(place.x - place.width / 2), _n(place.x + place.width / 2)
    across, lid = _n(place.width / 2), _n(_LID)
    top, bottom = _n(place.top + _LID), _n(place.bottom - _LID)
    side = f"M{left} {top}A{across} {lid} 0 0 1 {right} {top}V{bottom}"
    side += f"A{across} {lid} 0 0 1 {left} {bottom}Z"
    front = f"M{left} {top}A{across} {lid} 0 0 0 {right} {top}"
    return f'<path class="{kind}" d="{side}"/><path class="{kind}" d="{front}" fill-opacity="0"/>'


def _tab(place: _Place, why: str) -> str:
    """Return the sign on top of a box that says how rows come in."""
    left = place.x - place.width / 2
    return (
        f'<rect class="tab" x="{_n(left)}" y="{_n(place.top)}" rx="5" '
        f'width="{_n(place.width)}" height="{_n(_TAB + 8)}"/>'
    ) + _text("tab-text", left + _PAD, place.top + 13, _cut(f"shuffle {why}"))


def _told(vertex: Vertex) -> list[str]:
    return [] if vertex.shuffle is None else [f"shuffle {vertex.shuffle}"]


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _tip(x: float, y: float, way: int) -> str:
    """Return an arrow's head whose point is at (x, y), downward or upward."""
    return f"M{_n(x)} {_n(y)}l-4.5 {_n(-9.0 * way)}h9z"


def _measure(text: str) -> float:
    return _CHAR * sum(_cells(char) for char in _cut(text))


def _cells(char: str) -> int:
    return 2 if east_asian_width(char) in "WF" else 1


def _cut(text: str) -> str:
    """Return as much of a text as a box takes."""
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def _n(number: float) -> str:
    """Return a number without digits that nobody sees: the same on every machine."""
    return f"{number:.1f}".removesuffix(".0")
