"""The graph as a diagram: rates on edges, capacity by colour, names that are nothing but names."""

from __future__ import annotations

import re

from tests.ui.answers import CORE
from waterspout.ui._graph import diagram


def drawn(nodes, edges=(), **stats):
    return diagram({"nodes": nodes, "edges": list(edges)}, stats)


def node(id, kind="bolt", **more):
    return {"id": id, "kind": kind, "label": id, "parallelism": 1, **more}


def test_edges_carry_their_rates_and_nodes_their_capacities():
    text, ids = diagram(CORE["topology"]["graph"], CORE["stats"])

    assert ids == ["sentences", "split", "count", "store", "audit"]
    lines = [line.strip() for line in text.splitlines()]
    assert 'n0(["sentences<br/>102/s"]):::spout' in lines
    assert 'n2["count x 4<br/>1,021/s<br/>capacity 0.61"]:::busy' in lines
    assert 'n3["store<br/>1,021/s<br/>capacity 0.93"]:::full' in lines
    assert 'n1 -- "1,021/s" --> n2' in lines
    assert 'n1 -- "odd 0.02/s" --> n4' in lines


def test_without_counts_it_is_drawn_without_rates():
    text, _ = diagram(CORE["topology"]["graph"], {})

    assert "n0 --> n1" in text
    assert 'n1 -- "odd" --> n4' in text
    assert "/s" not in text


def test_a_state_of_trident_is_found_by_its_name_and_a_spout_by_its_label():
    text, _ = drawn(
        [node("state words", "state"), node("n1", "spout", label="sentences")],
        states=[{"id": "words", "rows": 9, "batches": 1, "per_s": 3.5}],
        spouts=[{"id": "sentences", "per_s": 2.0}],
    )

    assert 'n0[("state words<br/>3.5/s")]:::state' in text
    assert 'n1(["sentences<br/>2/s"]):::spout' in text


def test_of_trident_the_edges_out_of_spouts_and_into_states_carry_what_their_ends_tell():
    nodes = [node("n1", "spout", label="lines"), node("n2", "each"), node("n3", "group"),
             node("state words", "state")]  # fmt: skip
    edges = [{"source": a, "target": b, "stream": "default"}
             for a, b in (("n1", "n2"), ("n2", "n3"), ("n3", "state words"))]  # fmt: skip

    text, _ = drawn(
        nodes, edges, states=[{"id": "words", "per_s": 3.5}], spouts=[{"id": "lines", "per_s": 2.0}]
    )

    assert [line.strip() for line in text.splitlines() if "-->" in line] == [
        'n0 -- "2/s" --> n1', "n1 --> n2", 'n2 -- "3.5/s" --> n3',
    ]  # fmt: skip


def test_what_keeps_the_number_of_rows_gives_as_many_as_it_gets():
    nodes = [
        node("n1", "spout", label="lines"), node("n2", "spout", label="more"),
        node("n3", "operation", keeps_count=True), node("n4", "operation", keeps_count=True),
        node("n5", "operation", keeps_count=False), node("n6", "operation", keeps_count=True),
    ]  # fmt: skip
    pairs = (("n1", "n3"), ("n3", "n4"), ("n2", "n4"), ("n4", "n5"), ("n5", "n6"))
    edges = [{"source": a, "target": b, "stream": "default"} for a, b in pairs]

    text, _ = drawn(
        nodes, edges, spouts=[{"id": "lines", "per_s": 2.0}, {"id": "more", "per_s": 5.0}]
    )

    assert [line.strip() for line in text.splitlines() if "-->" in line] == [
        'n0 -- "2/s" --> n2', 'n2 -- "2/s" --> n3', 'n1 -- "5/s" --> n3', 'n3 -- "7/s" --> n4',
        "n4 --> n5",
    ]  # fmt: skip


def test_a_name_cannot_leave_its_place_in_the_diagram():
    evil = 'x"] --> y\nclick n0 "javascript:alert(1)" <img src=x onerror=alert(1)> `%%{init}%%'

    text, ids = drawn([node(evil)])

    assert ids == [evil]
    line = text.splitlines()[1]
    (inner,) = re.findall(r'n0\["(.*)"\]:::plain', line)
    assert not set(inner) & set("\"'<>`[](){}|\\%")
    assert len(text.splitlines()) == 2 + 6  # the direction, the node, six classes


def test_an_edge_from_nowhere_is_left_out():
    text, _ = drawn([node("a")], [{"source": "gone", "target": "a", "stream": "default"}])

    assert "-->" not in text
