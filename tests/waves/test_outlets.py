"""Sealing: what was emitted becomes frames with ids, and what was created is told."""

from __future__ import annotations

import numpy as np
import pytest

from waterspout.acking.xor import combine, generator
from waterspout.topology._ports import Outlet
from waterspout.waves.frames import anchored, pack, unpack
from waterspout.waves.outlets import Anchors, seal


def ids(*numbers: int):
    return np.array(numbers, np.uint64)


def outlet(stream: str = "default") -> Outlet:
    return Outlet(stream, ("n",), lambda values: ())


def sealed(anchors: Anchors, *sent: tuple[tuple[int, ...], int, int]):
    out = outlet()
    for targets, value, anchor in sent:
        for task in targets:
            out.send(task, (value,), anchor)
    result = seal(3, [out], anchors, generator([1]))
    assert out.boxes == {}
    return result


def test_frames_go_from_one_task_to_one_task_in_order():
    result = sealed(Anchors(None), ((7, 8), 1, -1), ((8,), 2, -1), ((7,), 3, -1))

    assert [(f.source, f.stream, f.target, f.values) for f in result.frames] == [
        (3, "default", 7, [(1,), (3,)]),
        (3, "default", 8, [(1,), (2,)]),
    ]
    assert [(f.roots, f.edges, f.shared) for f in result.frames] == [(None, None, None)] * 2
    assert (result.roots, result.edges) == ([], [])


def test_each_copy_of_a_tuple_has_an_id_of_its_own():
    result = sealed(Anchors(ids(10, 20)), ((7, 8, 8), 1, 1))

    assert [f.roots.tolist() for f in result.frames] == [[20], [20, 20]]
    edges = [edge for f in result.frames for edge in f.edges.tolist()]
    assert len(set(edges)) == 3
    assert 0 not in edges


@pytest.mark.parametrize("count", [255, 256])
def test_what_travels_by_a_key_is_what_was_told(count):
    sent = [((7,), number, number % 3 - 1) for number in range(count)]
    result = sealed(Anchors(ids(10, 20)), *sent)

    (frame,) = result.frames
    again = unpack(pack(frame))

    assert (frame.key is None) == (count < 256)
    told = combine(result.roots, result.edges)
    arrived = combine([again.roots], [again.edges])
    assert [each.tolist() for each in arrived] == [each.tolist() for each in told]
    assert told[0].tolist() == [10, 20]
    assert len(set(again.edges[again.roots != 0].tolist())) == np.count_nonzero(again.roots)


def test_two_frames_have_keys_of_their_own():
    sent = [((7, 8), number, 0) for number in range(1000)]
    first, second = sealed(Anchors(ids(10)), *sent).frames

    assert first.key != second.key
    assert not set(first.edges.tolist()) & set(second.edges.tolist())


def test_all_that_was_created_is_told():
    anchors = Anchors(ids(10, 20, 0), {2: {10: 5, 20: 6}}, [(20, 30)])
    result = sealed(anchors, ((7, 8), 1, 0), ((7,), 2, 2), ((8,), 3, -2), ((7,), 4, -1))

    told = combine(result.roots, result.edges)
    pieces = [anchored(frame) for frame in result.frames]
    inside = combine([roots for roots, _ in pieces], [edges for _, edges in pieces])
    assert [a.tolist() for a in told] == [a.tolist() for a in inside]
    assert told[0].tolist() == [10, 20, 30]


def test_a_tuple_anchored_to_one_of_several_trees_is_in_all_of_them():
    result = sealed(Anchors(ids(0, 10), {0: {10: 5, 20: 6}}), ((7,), 1, 0), ((7,), 2, 1))

    (frame,) = result.frames
    assert list(frame.shared) == [0]
    assert sorted(frame.shared[0]) == [10, 20]
    assert len(set(frame.shared[0].values()) | {5, 6}) == 4
    assert frame.roots.tolist() == [0, 10]
    assert frame.edges[0] == 0


@pytest.mark.parametrize("anchor", [-2, -3])
def test_special_anchors_are_counted_downwards(anchor):
    result = sealed(Anchors(None, {}, [(10,), (20, 30)]), ((7,), 1, anchor))

    (frame,) = result.frames
    assert frame.roots is None
    assert sorted(frame.shared[0]) == ([10] if anchor == -2 else [20, 30])


def test_unanchored_tuples_among_others_have_no_ids():
    result = sealed(Anchors(ids(10)), ((7,), 1, -1), ((7,), 2, 0))

    (frame,) = result.frames
    assert frame.roots.tolist() == [0, 10]
    assert (frame.edges[0] == 0, frame.edges[1] != 0) == (True, True)


def test_an_anchor_that_is_in_no_tree_gives_no_ids():
    (frame,) = sealed(Anchors(ids(0, 10)), ((7,), 1, 0)).frames

    assert (frame.roots, frame.shared) == (None, None)


def test_the_same_seed_seals_with_the_same_ids():
    first = sealed(Anchors(ids(10)), ((7, 8), 1, 0))
    again = sealed(Anchors(ids(10)), ((7, 8), 1, 0))

    assert [f.edges.tolist() for f in first.frames] == [f.edges.tolist() for f in again.frames]
