"""Plans as graphs: for Mermaid and for Graphviz, whatever the names in them are."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from waterspout import Config
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import MemoryLog
from waterspout.trident import Count, MapGet, Split, TridentTopology, expr
from waterspout.trident.plan.graph import Flow, graph_of

EVIL = '<b>&amp; "quoted" \\N \\" ]]> </text><script>alert(1)</script>\n\x00\x1b日本 \u202e end'


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


def test_edges_say_what_flows():
    found = flows(everything())

    assert found["n1", "n3"] is Flow.ROWS
    assert found["n3", "n4"] is Flow.VISIT
    assert found["n4", "n6"] is found["n5", "n6"] is Flow.SHUFFLE
    assert found["state state1", "n5"] is found["state state2", "n9"] is Flow.ASK
    assert found["n8", "state state2"] is Flow.WRITE


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
        '  graph [label="topology word-count\\na tiny batch (no more than 10,000 rows, or 1 MB in'
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


_LABEL = r'"(?:[^\W_]|[ _\-.,()/=]|#[0-9]+;|<br/>)*"'
_COLOUR = r"#[0-9a-f]{6}"
_MERMAID = [
    "---",
    r'title: "(?:[^"\\\n]|\\[\\"])*"',
    "flowchart TB",
    rf" +(?:n\d+|costs)\[{_LABEL}\]:::[a-z]+",
    rf"    s\d+\[\({_LABEL}\)\]:::(?:state|weak)",
    r'  subgraph (processing|commit)\["\1 phase"\]',
    "  end",
    rf"  [ns]\d+ (?:-->|==>|-\.->)(?:\|{_LABEL}\|)? [ns]\d+",
    rf"  linkStyle \d+(?:,\d+)* stroke:{_COLOUR},stroke-width:3px",
    rf"  classDef [a-z]+ fill:{_COLOUR},stroke:{_COLOUR},color:{_COLOUR}",
]


@TOPOLOGIES
def test_every_line_of_mermaid_is_a_statement_whatever_the_names_are(build):
    lines = build().explain(format="mermaid").rstrip("\n").split("\n")

    wrong = [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in _MERMAID)]
    assert wrong == []


@TOPOLOGIES
def test_every_node_and_state_is_drawn_once_and_within_its_phase(build):
    plan = build().plan()

    text = build().explain(format="mermaid")

    drawn = re.findall(r"^    ([ns]\d+)\[", text, re.MULTILINE)
    assert sorted(drawn) == sorted(
        [f"n{node.number}" for node in plan.nodes]
        + [f"s{number}" for number in range(1, 1 + len(plan.states))]
    )


def test_mermaid_says_what_dot_says():
    lines = everything().explain(format="mermaid").split("\n")

    assert re.fullmatch(r'    n3\["3  .*"\]:::python', next(x for x in lines if "n3[" in x))
    assert re.fullmatch(r"    s3\[\(.*\)\]:::weak", next(x for x in lines if "s3[" in x))
    assert '  n4 ==>|"shuffle of 4 by s#59; of 5 by s"| n6' in lines
    assert "  s1 -.-> n5" in lines
    assert "  n8 ==> s2" in lines


def test_a_name_is_text_and_nothing_else():
    text = everything().explain(format="mermaid")

    assert "#60;b#62;#38;amp#59; #34;quoted#34; #92;N #92;#34; #93;#93;#62; #60;/text#62;" in text
    assert "#92;n#92;x00#92;x1b日本 #92;u202e end" in text
    assert "<script" not in text


@TOPOLOGIES
@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_the_same_topology_is_explained_in_the_same_words(build, form):
    assert build().explain(format=form) == build().explain(format=form)


def test_the_plan_in_the_documents_is_the_one_that_is_made_today():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "explain.md").read_text()
    printed = textwrap.indent(word_count().explain(), "    ")

    assert printed in page
    assert f"```mermaid\n{word_count().explain(format='mermaid')}```\n" in page
