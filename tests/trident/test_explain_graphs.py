"""Plans as graphs: dot that Graphviz reads, and an SVG in which nothing lies over anything."""

from __future__ import annotations

import itertools
import random
import re
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from waterspout import Config
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import MemoryLog
from waterspout.trident import Count, MapGet, Split, TridentTopology, expr
from waterspout.trident.plan.graph import Flow, graph_of
from waterspout.trident.plan.layout import Box, lay_out

EVIL = '<b>&amp; "quoted" \\N \\" ]]> </text><script>alert(1)</script>\n\x00\x1b日本 \u202e end'
SVG = "{http://www.w3.org/2000/svg}"


def double(n) -> int:
    return 2 * n


def is_odd(n):
    return n % 2 == 1


def rows_of(topology, spout_id="log"):
    return topology.new_stream(spout_id, MemoryLog("s string, n bigint", [[]]))


def opaque(name):
    return MemoryMapState(StateKind.OPAQUE, name)


def word_count():
    topology = TridentTopology("word-count")
    words = topology.new_stream("lines", FileSpout("data")).each("value", Split(), out="word")
    words.group_by("word").persistent_aggregate(opaque("words"), Count(), out="count")
    return topology


def diamond():
    topology = TridentTopology("diamond")
    rows = rows_of(topology)
    sides = [rows.filter("n", is_odd), rows.filter("n", expr("n > 1")), rows.filter("s", is_odd)]
    topology.merge(*sides).aggregate(Count(), out="c")
    return topology


def everything():
    topology = TridentTopology("everything")
    orders, users = rows_of(topology, "orders"), rows_of(topology, "users")
    known = topology.new_static_state(opaque("known"))
    clean = orders.filter("n", is_odd).each("n", double, out="m bigint").name(EVIL)
    named = users.state_query(known, "s", MapGet(), out="k bigint")
    both = topology.join(clean, "s", named, "s", out="s, n, m, other, k")
    counts = both.group_by("s").persistent_aggregate(opaque("counts"), Count(), out="count")
    clean.state_query(counts, "s", MapGet(), out="before bigint").filter("n", is_odd)
    changed = counts.new_values_stream().each("count", double, out="d bigint")
    weak = MemoryMapState(StateKind.NON_TRANSACTIONAL, EVIL)
    changed.group_by("d").persistent_aggregate(weak, Count(), out="times")
    named.shuffle().parallelism_hint(3).project("k")
    return topology


TOPOLOGIES = pytest.mark.parametrize(
    "build", [word_count, diamond, everything], ids=lambda build: build.__name__
)


def flows(topology):
    graph = graph_of(topology.plan(), Config())
    return {(edge.tail, edge.head): edge.flow for edge in graph.edges}


# --- the graph ---------------------------------------------------------------------------


def test_edges_say_what_flows():
    found = flows(everything())

    assert found["n1", "n3"] is Flow.ROWS
    assert found["n3", "n4"] is Flow.VISIT
    assert found["n4", "n6"] is found["n5", "n6"] is Flow.SHUFFLE
    assert found["state state1", "n5"] is found["state state2", "n9"] is Flow.ASK
    assert found["n8", "state state2"] is Flow.WRITE


# --- dot ---------------------------------------------------------------------------------

_STRING = r'"(?:[^"\\\n]|\\[\\"n])*"'
_VALUE = rf"(?:{_STRING}|[A-Za-z0-9_.]+)"
_ATTRIBUTES = rf"\[[a-z]+={_VALUE}(?:, [a-z]+={_VALUE})*\]"
_LINES = [
    rf"digraph {_STRING} \{{",
    rf"  (?:graph|node|edge) {_ATTRIBUTES};",
    r"  subgraph cluster_(?:processing|commit) \{",
    rf"    graph {_ATTRIBUTES};",
    rf"    {_STRING} {_ATTRIBUTES};",
    rf"  {_STRING} -> {_STRING}(?: {_ATTRIBUTES})?;",
    r"  \}",
    r"\}",
]


@TOPOLOGIES
def test_every_line_of_dot_is_a_statement_whatever_the_names_are(build):
    text = build().explain(format="dot")

    wrong = [
        line
        for line in text.split("\n")
        if not any(re.fullmatch(pattern, line) for pattern in _LINES)
    ]
    assert wrong == []


def test_dot_has_phases_as_clusters_states_as_cylinders_and_shuffles_of_their_own_kind():
    text = word_count().explain(format="dot")

    assert text.split("\n")[1].startswith(
        '  graph [label="topology word-count\\nwhile results fit the driver: 1 job for processing'
    )
    early, late = text.split("  subgraph cluster_")[1:]
    assert '"n2" [fillcolor="#cfe8d5", label="2  each(Split)\\nvalue, word\\nJVM"];' in early
    assert '"state state1" [shape=cylinder, fillcolor="#cfe0fc", label="state1' in late
    assert '"n1" -> "n2";' in late
    shuffle = next(line for line in late.split("\n") if '"n2" -> "n3"' in line)
    assert 'color="#c2410c"' in shuffle
    assert 'label="shuffle by word"' in shuffle


def test_nodes_in_python_have_another_colour_and_a_weak_state_stands_out():
    text = everything().explain(format="dot")

    assert re.search(r'"n3" \[fillcolor="#ffe3a8"', text)
    assert re.search(r'"state state3" \[shape=cylinder, fillcolor="#f6c6c6"', text)


# --- svg ---------------------------------------------------------------------------------


def drawn(build):
    return ElementTree.fromstring(build().explain(format="svg"))


def boxes(root):
    """Each vertex: its title, and left, top, right, bottom of its outlines together."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        spans = []
        for rect in group.iter(f"{SVG}rect"):
            x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            spans.append((x, y, x + w, y + h))
        for path in group.iter(f"{SVG}path"):
            left, top, right = re.match(
                r"M([\d.]+) ([\d.]+)A\S+ \S+ 0 0 [01] ([\d.]+) ", path.get("d")
            ).groups()
            bottom = re.search(r"V([\d.]+)", path.get("d"))
            if bottom:
                spans.append((float(left), float(top), float(right), float(bottom[1])))
        title = group.find(f"{SVG}title").text.split("\n")[0]
        found[title] = tuple(
            pick(span[i] for span in spans) for i, pick in enumerate((min, min, max, max))
        )
    return found


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@TOPOLOGIES
def test_every_node_and_state_is_drawn_once_and_none_lies_over_another(build):
    plan = build().plan()
    found = boxes(drawn(build))

    assert len(found) == len(plan.nodes) + len(plan.states)
    assert [
        pair for pair in itertools.combinations(found, 2) if overlap(*map(found.get, pair))
    ] == []


@TOPOLOGIES
def test_all_is_within_the_picture_and_every_text_within_its_box(build):
    root = drawn(build)
    width, height = float(root.get("width")), float(root.get("height"))

    for left, top, right, bottom in boxes(root).values():
        assert 0 < left < right < width
        assert 0 < top < bottom < height
    for group in root.iter(f"{SVG}g"):
        name = group.find(f"{SVG}title").text.split("\n")[0]
        left, top, right, bottom = boxes(root)[name]
        for text in group.iter(f"{SVG}text"):
            assert left < float(text.get("x"))
            assert top < float(text.get("y")) < bottom
            assert float(text.get("x")) + 6.5 * len(text.text) < right, text.text


def test_rows_flow_downward():
    found = boxes(drawn(word_count))
    tops = [found[name][1] for name in ("1  spout lines", "2  each(Split)", "3  aggregate(Count)")]

    assert tops == sorted(tops)
    assert found["4  update of state1"][1] < found["state1"][1]


def test_a_name_is_text_and_nothing_else():
    text = everything().explain(format="svg")
    root = ElementTree.fromstring(text)

    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds == {"svg", "style", "rect", "path", "text", "g", "title"}
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert any("</text><script>alert(1)</script>\\n\\x00\\x1b日本 \\u202e end" in t for t in titles)
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_what_is_too_long_for_a_box_is_in_its_tooltip():
    topology = TridentTopology("long")
    rows_of(topology).filter("n", is_odd).name("x" * 300)
    root = ElementTree.fromstring(topology.explain(format="svg"))

    longest = max((text.text for text in root.iter(f"{SVG}text")), key=len)
    assert longest == "every batch: 1 job for processing, 0 for commit; no shuffle"
    assert any("x" * 300 in title.text for title in root.iter(f"{SVG}title"))


@TOPOLOGIES
@pytest.mark.parametrize("form", ["text", "dot", "svg"])
def test_the_same_topology_is_explained_in_the_same_words(build, form):
    assert build().explain(format=form) == build().explain(format=form)


def test_the_plan_in_the_documents_is_the_one_that_is_made_today():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "explain.md").read_text()
    printed = textwrap.indent(word_count().explain(), "    ")

    assert printed in page
    assert (docs / "images" / "word-count.svg").read_text() == word_count().explain(format="svg")


# --- layout ------------------------------------------------------------------------------


def random_graph(dice):
    boxes = [
        Box(layer, dice.uniform(20, 300), dice.uniform(20, 90))
        for layer in range(dice.randint(1, 7))
        for _ in range(dice.randint(1, 5))
    ]
    pairs = [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes) if a.layer < b.layer]
    return boxes, dice.sample(pairs, min(len(pairs), dice.randint(0, 12)))


@pytest.mark.parametrize("seed", range(40))
def test_boxes_of_a_layer_are_apart_and_edges_pass_between_them(seed):
    boxes, edges = random_graph(random.Random(seed))

    laid = lay_out(boxes, edges)

    spans = {}
    for box, x in zip(boxes, laid.xs, strict=True):
        spans.setdefault(box.layer, []).append((x - box.width / 2, x + box.width / 2))
    for (above, below), passes in zip(edges, laid.passes, strict=True):
        between = range(boxes[above].layer + 1, boxes[below].layer)
        for layer, x in zip(between, passes, strict=True):
            spans[layer].append((x, x))
    for layer in spans.values():
        for (_, right), (left, _) in itertools.pairwise(sorted(layer)):
            assert right < left


def test_what_follows_one_another_stands_straight():
    boxes = [Box(layer, 100, 20) for layer in range(4)] + [Box(0, 60, 20)]

    laid = lay_out(boxes, [(0, 1), (1, 2), (2, 3), (4, 3)])

    assert laid.xs[0] == pytest.approx(laid.xs[1]) == pytest.approx(laid.xs[2])
