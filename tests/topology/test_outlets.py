"""An outlet's way in: whatever its grouping, a tuple goes where the grouping sends it."""

from __future__ import annotations

from typing import Any

import pytest

from waterspout.errors import EmitError
from waterspout.topology import Bolt, Spout, TopologyBuilder
from waterspout.topology._ports import Outlet
from waterspout.waves.outlets import make_outlets

WORDS = ["a", "b", "a", "c", "a", "b", "", "d"]


class Source(Spout):
    def __init__(self, fields: tuple[str, ...]) -> None:
        self.output_fields = fields

    def open(self, conf, context, collector):
        pass

    def next_tuple(self):
        pass


class Sink(Bolt):
    def execute(self, tuple):
        pass


GROUPINGS = {
    "shuffle": lambda bolt, fields: bolt.shuffle_grouping("source"),
    "fields": lambda bolt, fields: bolt.fields_grouping("source", fields[-1]),
    "all fields": lambda bolt, fields: bolt.fields_grouping("source", *fields),
    "partial key": lambda bolt, fields: bolt.partial_key_grouping("source", fields[-1]),
    "all": lambda bolt, fields: bolt.all_grouping("source"),
    "global": lambda bolt, fields: bolt.global_grouping("source"),
    "none": lambda bolt, fields: bolt.none_grouping("source"),
    "twice": lambda bolt, fields: bolt.shuffle_grouping("source").all_grouping("source"),
}


def outlet(declare: Any, fields: tuple[str, ...]) -> Outlet:
    builder = TopologyBuilder()
    builder.set_spout("source", Source(fields))
    if declare is not None:
        declare(builder.set_bolt("sink", Sink(), 3), fields)
    return make_outlets(builder.create_topology("t"), 1, 5)["default"]


@pytest.mark.parametrize("fields", [("word",), ("n", "word")], ids=repr)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_a_tuple_goes_where_its_grouping_sends_it(grouping, fields, kind):
    rows = [(n, word)[-len(fields) :] for n, word in enumerate(WORDS)]
    chosen = [outlet(GROUPINGS[grouping], fields).route] * len(rows)
    expected = [route(row) for route, row in zip(chosen, rows, strict=True)]
    out = outlet(GROUPINGS[grouping], fields)

    targets = [out.put(kind(row), n) for n, row in enumerate(rows)]

    assert targets == expected
    sent = {
        task: [(row, n) for n, row in enumerate(rows) for each in expected[n] if each == task]
        for task in {task for tasks in expected for task in tasks}
    }
    found = {task: list(zip(box.rows, box.anchors, strict=True)) for task, box in out.boxes.items()}
    assert found == sent
    assert out.take_counts() == (len(rows), sum(map(len, expected)))


@pytest.mark.parametrize("fields", [("word",), ("n", "word")], ids=repr)
@pytest.mark.parametrize("grouping", [None, *GROUPINGS])
@pytest.mark.parametrize("values", [[], ["a", "b", "c"], "ab", {"a": 1, "b": 2}, 7])
def test_what_does_not_fit_is_refused_and_goes_nowhere(grouping, fields, values):
    out = outlet(GROUPINGS.get(grouping), fields)

    with pytest.raises(EmitError):
        out.put(values, 0)

    assert out.boxes == {}
    assert out.take_counts() == (0, 0)


def test_a_list_that_is_changed_after_it_was_emitted_changes_no_tuple():
    for grouping in GROUPINGS.values():
        for fields in (("word",), ("n", "word")):
            out, values = outlet(grouping, fields), ["a", "b"][: len(fields)]
            out.put(values, 0)
            values[0] = "changed"

            assert {row for box in out.boxes.values() for row in box.rows} == {
                ("a", "b")[: len(fields)]
            }


def test_values_that_are_no_key_of_a_dict_are_grouped_too():
    one, two = (outlet(GROUPINGS["fields"], fields) for fields in (("word",), ("n", "word")))

    assert one.put([[1, 2]], 0) == one.put([[1, 2]], 1) == one.route(([1, 2],))
    assert two.put([0, [1, 2]], 0) == two.put([7, [1, 2]], 1) == two.route((5, [1, 2]))
