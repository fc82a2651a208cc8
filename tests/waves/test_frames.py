"""Frames: tuples by column, with their ids, cut and packed."""

from __future__ import annotations

import pickle
import sys
import threading
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from waterspout.acking.xor import keyed_ids
from waterspout.topology._pickling import names_what_workers_lack
from waterspout.waves.frames import (
    ColumnLists,
    Frame,
    anchored,
    edges_of,
    halves,
    pack,
    parted,
    unpack,
    weeded,
)

IDS = st.integers(1, 2**64 - 1)


@st.composite
def frames(draw, width: int = 2) -> Frame:
    """Any frame: untracked, tracked, some tuples in several trees."""
    count = draw(st.integers(0, 8))
    values = [tuple(draw(st.tuples(*[st.integers()] * width))) for _ in range(count)]
    frame = Frame(draw(st.integers(-1, 9)), draw(st.sampled_from(["default", "x"])), 5, values)
    kinds = [draw(st.sampled_from(["none", "one", "many"])) for _ in range(count)]
    if "one" in kinds:
        ones = [kind == "one" for kind in kinds]
        frame.roots = np.array([draw(IDS) if one else 0 for one in ones], np.uint64)
        frame.edges = np.array([draw(IDS) if one else 0 for one in ones], np.uint64)
    many = {
        index: draw(st.dictionaries(IDS, IDS, min_size=1, max_size=3))
        for index, kind in enumerate(kinds)
        if kind == "many"
    }
    frame.shared = many or None
    return frame


def rows(frame: Frame) -> list[tuple]:
    """Each tuple with its ids, wherever the frame keeps them."""
    found = []
    for index, values in enumerate(frame.values):
        ids = dict((frame.shared or {}).get(index, {}))
        if frame.roots is not None and frame.roots[index]:
            ids[int(frame.roots[index])] = int(frame.edges[index])
        found.append((frame.source, frame.stream, frame.target, values, ids))
    return found


@given(frames())
def test_a_frame_is_the_same_after_packing(frame):
    again = unpack(pack(frame))

    assert rows(again) == rows(frame)
    assert (again.roots is None, again.shared) == (frame.roots is None, frame.shared)
    assert all(type(values) is tuple for values in again.values)


def keyed(count: int) -> Frame:
    """A frame whose ids were drawn from a key; every seventh tuple is in no tree."""
    roots = np.repeat(np.arange(1, count // 2 + 2, dtype=np.uint64), 2)[:count]
    roots[::7] = 0
    edges = edges_of(roots, keyed_ids((3, 2**64 - 1), count))
    values = [(number,) for number in range(count)]
    return Frame(1, "default", 2, values, roots, edges, key=(3, 2**64 - 1))


def test_ids_are_drawn_again_where_a_frame_arrives_and_not_sent():
    frame = keyed(2000)
    bare = Frame(1, "default", 2, frame.values)

    packed = pack(frame)

    assert rows(unpack(packed)) == rows(frame)
    assert [rows(frame)[index][-1] == {} for index in (0, 1, 7, 8)] == [True, False, True, False]
    assert len(packed) - len(pack(bare)) < 2000 * 9  # a root and a length; with edges it is 16


@pytest.mark.parametrize(
    "part", [lambda frame: frame.cut(5, 1500), lambda frame: frame.pick(range(3, 2000, 2))]
)
def test_parts_of_a_frame_keep_the_ids_that_were_drawn_for_the_whole(part):
    frame = part(keyed(2000))

    again = unpack(pack(frame))

    assert rows(again) == rows(frame)
    assert rows(unpack(pack(again))) == rows(frame)  # as what waits for another wave
    assert set(map(str, (row[-1] for row in rows(frame)))) <= {
        str(row[-1]) for row in rows(keyed(2000))
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=8))
def test_roots_that_come_in_runs_are_the_same_after_packing(runs):
    roots = np.array([root for root, times in runs for _ in range(times)], np.uint64)
    frame = Frame(1, "default", 2, [(number,) for number in range(len(roots))], roots, roots)

    again = unpack(pack(frame))

    assert (again.roots.tolist(), again.roots.dtype) == (roots.tolist(), np.uint64)
    assert again.edges.tolist() == roots.tolist()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tuples_without_values_survive_packing(count):
    frame = Frame(1, "default", 2, [()] * count)

    assert unpack(pack(frame)).values == [()] * count


@given(frames(), st.integers(0, 9))
def test_a_frame_that_is_cut_keeps_every_tuple_with_its_ids(frame, cut):
    assert rows(frame.cut(0, cut)) + rows(frame.cut(cut, len(frame))) == rows(frame)


@given(frames(), st.data())
def test_tuples_that_are_picked_keep_their_ids(frame, data):
    which = data.draw(st.lists(st.booleans(), min_size=len(frame), max_size=len(frame)))
    indices = [index for index, chosen in enumerate(which) if chosen]

    assert rows(frame.pick(indices)) == [rows(frame)[index] for index in indices]


@given(st.lists(frames(), max_size=4))
def test_halves_keep_every_tuple_in_order(given_frames):
    first, second = halves(given_frames)

    assert [r for f in first + second for r in rows(f)] == [
        r for f in given_frames for r in rows(f)
    ]
    sizes = [sum(map(len, half)) for half in (first, second)]
    assert sizes[0] - sizes[1] in (0, 1)
    assert all(len(frame) for frame in first + second)


def test_the_tuples_of_some_trees_are_put_apart_tree_by_tree():
    one = Frame(1, "default", 2, [("a",), ("b",), ("c",)])
    one.roots = one.edges = np.array([1, 2, 3], np.uint64)
    two = Frame(1, "default", 3, [("d",), ("a",)], roots=np.array([4, 1], np.uint64))
    two.edges = two.roots
    free = Frame(1, "default", 3, [("e",)])

    others, apart = parted([one, two, free], [1, 3, 2**63])

    assert [frame.values for frame in others] == [[("b",)], [("d",)], [("e",)]]
    assert [[frame.values for frame in each] for each in apart] == [
        [[("a",)], [("a",)]],
        [[("c",)]],
    ]
    assert [row for f in others for row in rows(f)] == [rows(one)[1], rows(two)[0], rows(free)[0]]


@given(frames())
def test_anchored_gives_every_id_once(frame):
    roots, edges = anchored(frame)

    found = sorted(p for p in zip(roots.tolist(), edges.tolist(), strict=True) if p[0])
    assert found == sorted(pair for *_, ids in rows(frame) for pair in ids.items())


def test_values_of_any_kind_travel():
    values = [("a", None, [1], {"k": b"\0"}, 1.5), ("b", float("inf"), (), object, 2**80)]
    frame = Frame(1, "default", 2, values)

    assert unpack(pack(frame)).values == values


@pytest.fixture(params=["__main__", "job", "job.shapes"])
def own_class(request, monkeypatch):
    """A class in a module of this process only, and how to take it out of that."""
    job = ModuleType("job")
    monkeypatch.setitem(sys.modules, "job", job)
    monkeypatch.setitem(sys.modules, "job.shapes", ModuleType("job.shapes"))
    cloudpickle.register_pickle_by_value(job)
    module = sys.modules[request.param]
    point = type("Point", (), {"__module__": request.param, "twice": lambda self: 2 * self.x})
    monkeypatch.setattr(module, "Point", point, raising=False)
    yield point, lambda: monkeypatch.delattr(module, "Point")
    cloudpickle.unregister_pickle_by_value(job)


def test_objects_of_classes_that_the_other_side_cannot_import_travel_with_their_class(own_class):
    point, forget = own_class
    value = point()
    value.x = 21
    packed = pack(Frame(1, "default", 2, [(value,), (1,)]))
    forget()

    first, second = unpack(packed).values

    assert (first[0].twice(), second) == (42, (1,))
    assert type(first[0]) is point


def test_what_everybody_can_import_travels_by_its_name():
    assert b"cloudpickle" not in pack([(Frame, "a text that names __main__", "job")])


def test_a_module_of_the_users_is_not_taken_for_a_part_of_ours(monkeypatch):
    waves = ModuleType("waves")
    monkeypatch.setitem(sys.modules, "waves", waves)
    cloudpickle.register_pickle_by_value(waves)
    try:
        assert Frame.__module__.startswith("waterspout.waves.")
        assert not names_what_workers_lack(pack(Frame))
        assert names_what_workers_lack(pickle.dumps("waves"))
        assert names_what_workers_lack(pickle.dumps(["xwaves.", "waves.shapes"]))
    finally:
        cloudpickle.unregister_pickle_by_value(waves)


def test_tuples_that_cannot_travel_are_taken_out_with_their_ids():
    lock = threading.Lock()
    frame = Frame(1, "default", 2, [(1, "a"), (2, lock), (3, [lock]), (4, {"b": 4})])
    frame.roots = frame.edges = np.array([1, 2, 3, 4], np.uint64)
    other = Frame(1, "default", 3, [(lock, 5)], shared={0: {6: 7, 8: 9}})

    kept, unfit = weeded([frame, other])

    assert [rows(each) for each in kept] == [[rows(frame)[0], rows(frame)[3]]]
    assert [rows(each.frame) for each in unfit] == [[rows(frame)[1]], [rows(frame)[2]], rows(other)]
    assert [each.field for each in unfit] == [1, 1, 0]
    assert {each.reason for each in unfit} == {"TypeError: cannot pickle '_thread.lock' object"}


def test_frames_that_can_travel_are_left_as_they_are():
    frames_given = [Frame(1, "default", 2, [(1, "a")]), Frame(1, "default", 3, [({"a": [1]},)])]

    kept, unfit = weeded(frames_given)

    assert (kept, unfit) == (frames_given, [])


class Name(str):
    __slots__ = ()


TEXTS = [
    ["a", "b"],
    [""],
    ["", ""],
    ["a\0b", "c"],
    ["\0"],
    ["\ud800", "ä", "\U0001f600"],
    ["a", 1],
    ["a", None],
    [Name("a"), "b"],
]


@pytest.mark.parametrize("texts", TEXTS, ids=repr)
def test_texts_travel_as_they_are(texts):
    frame = Frame(1, "default", 2, ColumnLists([texts, texts]))

    again = unpack(pack(frame))

    assert again.rows == list(zip(texts, texts, strict=True))
    assert [[type(each) for each in row] for row in again.rows] == [[type(t)] * 2 for t in texts]


@given(st.lists(st.tuples(st.text(), st.one_of(st.text(), st.none(), st.binary()))))
def test_rows_and_columns_are_the_same_tuples(values):
    rows_form = Frame(1, "default", 2, values)
    columns = Frame(1, "default", 2, ColumnLists.of_rows(values)) if values else rows_form

    assert columns.rows == list(columns.each()) == unpack(pack(rows_form)).rows == values
    assert len(columns) == len(unpack(pack(columns))) == len(values)
    assert columns.cut(1, 3).rows == values[1:3]
    assert columns.pick([0] if values else []).rows == values[:1]


def test_what_cannot_travel_is_found_in_columns():
    lock = threading.Lock()
    good, bad = ColumnLists([["a", "b"], [1, 2]]), ColumnLists([["a", "b"], [1, lock]])

    fitting, unfit = weeded([Frame(1, "x", 2, good), Frame(1, "x", 3, bad)])

    assert [(frame.target, frame.rows) for frame in fitting] == [
        (2, [("a", 1), ("b", 2)]),
        (3, [("a", 1)]),
    ]
    assert [(each.frame.rows, each.field) for each in unfit] == [([("b", lock)], 1)]
