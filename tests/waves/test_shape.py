"""Where tasks run in a wave: stages, shards, chains, cycles."""

from __future__ import annotations

import pytest

from tests.waves.driving import ListLog, Pass
from waterspout.errors import ConfigError
from waterspout.testing import FeederSpout
from waterspout.topology import Topology, TopologyBuilder
from waterspout.waves.shape import Slot, WaveShape, check_widths, collapsed, spread


def topology(*bolts: tuple[str, int, list[tuple[str, str]]], log: bool = False) -> Topology:
    """A spout `s`, and bolts by name, tasks and inputs (grouping and source)."""
    builder = TopologyBuilder()
    builder.set_spout("s", ListLog("shape") if log else FeederSpout("value"), 2)
    for name, tasks, inputs in bolts:
        declarer = builder.set_bolt(name, Pass("value"), tasks)
        for grouping, source in inputs:
            fields = ["value"] if grouping == "fields" else []
            getattr(declarer, f"{grouping}_grouping")(source, *fields)
    return builder.create_topology("t")


def stages(shape: WaveShape) -> list[tuple[tuple[str, ...], int]]:
    return [(stage.components, stage.shards) for stage in shape.stages]


def test_a_small_wave_is_one_stage_with_one_shard():
    shape = collapsed(
        topology(
            ("c", 2, [("fields", "b")]), ("a", 4, [("shuffle", "s")]), ("b", 3, [("all", "a")])
        )
    )

    assert stages(shape) == [(("a", "b", "c"), 1)]
    assert {slot.shard for slot in shape.slots.values()} == {0}
    assert shape.tasks_at(0, 0) == [5, 6, 7, 8, 9, 10, 11, 3, 4]


def test_bolts_behind_fields_groupings_get_stages_of_their_own():
    shape = spread(topology(("a", 4, [("shuffle", "s")]), ("b", 4, [("fields", "a")])), 2)

    assert stages(shape) == [(("a",), 2), (("b",), 2)]
    assert shape.slots[3] == Slot(0, 0, 0)
    assert [shape.slots[task].shard for task in (3, 4, 5, 6)] == [0, 1, 0, 1]
    assert shape.tasks_at(1, 1) == [8, 10]


@pytest.mark.parametrize("grouping", ["shuffle", "local_or_shuffle", "none"])
def test_bolts_that_take_any_task_are_chained(grouping):
    shape = spread(topology(("a", 4, [("shuffle", "s")]), ("b", 2, [(grouping, "a")])), 2)

    assert stages(shape) == [(("a", "b"), 2)]


@pytest.mark.parametrize("grouping", ["fields", "all", "global", "partial_key"])
def test_other_groupings_are_not_chained(grouping):
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout("value"))
    builder.set_bolt("a", Pass("value"), 4).shuffle_grouping("s")
    fields = ["value"] if grouping in ("fields", "partial_key") else []
    getattr(builder.set_bolt("b", Pass("x"), 4), f"{grouping}_grouping")("a", *fields)

    assert len(spread(builder.create_topology("t"), 2).stages) == 2


def test_a_bolt_with_fewer_tasks_than_workers_is_not_chained():
    shape = spread(topology(("a", 4, [("shuffle", "s")]), ("b", 3, [("shuffle", "a")])), 4)

    assert stages(shape) == [(("a",), 4), (("b",), 3)]


def test_one_far_input_puts_a_bolt_into_a_later_stage():
    shape = spread(
        topology(
            ("a", 2, [("shuffle", "s")]),
            ("b", 2, [("fields", "a")]),
            ("c", 2, [("shuffle", "a"), ("shuffle", "b")]),
            ("d", 2, [("shuffle", "a"), ("fields", "c")]),
        ),
        2,
    )

    assert stages(shape) == [(("a",), 2), (("b", "c"), 2), (("d",), 2)]


def test_a_cycle_is_cut_at_the_way_back():
    shape = spread(
        topology(("a", 2, [("shuffle", "s"), ("shuffle", "b")]), ("b", 2, [("fields", "a")])), 2
    )
    a, b = shape.slots[3], shape.slots[5]

    assert stages(shape) == [(("a",), 2), (("b",), 2)]
    assert (shape.is_ahead(a, b), shape.is_ahead(b, a), shape.is_ahead(a, a)) == (
        True,
        False,
        False,
    )


def test_a_log_runs_where_bolts_run_and_a_pulled_spout_does_not():
    bolts = [("a", 2, [("shuffle", "s")]), ("b", 2, [("fields", "a")])]

    assert stages(spread(topology(*bolts, log=True), 2)) == [(("s", "a"), 2), (("b",), 2)]
    assert stages(spread(topology(*bolts), 2)) == [(("a",), 2), (("b",), 2)]
    assert 1 not in spread(topology(*bolts), 2).slots


def test_only_a_shard_of_ones_own_is_ahead_within_a_stage():
    shape = spread(topology(("a", 2, [("shuffle", "s")]), ("b", 2, [("shuffle", "a")])), 2)
    here, beside, elsewhere = shape.slots[3], shape.slots[5], shape.slots[6]

    assert shape.is_ahead(here, beside)
    assert not shape.is_ahead(here, elsewhere)
    assert shape.nearby(3)("b") == [5]
    assert shape.nearby(5)("a") == []


def test_a_long_chain_is_no_trouble():
    bolts = [("b0", 1, [("shuffle", "s")])]
    bolts += [(f"b{n}", 1, [("fields", f"b{n - 1}")]) for n in range(1, 1500)]
    shape = spread(topology(*bolts), 2)

    assert len(shape.stages) == 1500


def test_producers_come_before_consumers_whatever_the_order_of_declaration():
    shape = collapsed(
        topology(
            ("z", 1, [("shuffle", "y"), ("shuffle", "x")]),
            ("y", 1, [("shuffle", "x")]),
            ("x", 1, [("shuffle", "s")]),
        )
    )

    assert shape.stages[0].components == ("x", "y", "z")


def test_a_bolt_may_run_in_fewer_shards_than_it_has_tasks():
    graph = topology(("a", 4, [("shuffle", "s")]), ("b", 4, [("fields", "a")]))

    shape = spread(graph, 4, {"b": 1})

    assert stages(shape) == [(("a",), 4), (("b",), 1)]
    assert [shape.slots[task].shard for task in graph.tasks["b"]] == [0, 0, 0, 0]


def test_a_narrow_bolt_of_a_stage_keeps_to_its_own_shards():
    graph = topology(("a", 4, [("shuffle", "s")]), ("b", 4, [("shuffle", "s")]))

    shape = spread(graph, 4, {"b": 2})

    assert [stage.shards for stage in shape.stages] == [4]
    assert [shape.slots[task].shard for task in graph.tasks["b"]] == [0, 1, 0, 1]


def test_a_narrow_bolt_is_not_chained_to_a_wide_one():
    graph = topology(("a", 4, [("shuffle", "s")]), ("b", 4, [("shuffle", "a")]))

    assert len(spread(graph, 4).stages) == 1
    assert len(spread(graph, 4, {"b": 2}).stages) == 2


@pytest.mark.parametrize(
    ("widths", "why"),
    [
        ({"c": 1}, "there is no component 'c'; t has s, a"),
        ({"s": 1}, "spout 's' runs in the driver"),
        ({"a": 3}, "bolt 'a' has 2 tasks, as long as its topology lives"),
    ],
)
def test_widths_that_cannot_be_are_refused_with_the_reason(widths, why):
    with pytest.raises(ConfigError, match=why):
        check_widths(topology(("a", 2, [("shuffle", "s")])), widths)
