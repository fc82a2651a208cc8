"""What merge, join and multi_reduce refuse when a topology is built."""

from __future__ import annotations

import pytest

from waterspout.errors import TopologyError
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Count,
    GroupedMultiReducer,
    MultiReducer,
    TridentTopology,
    grouped_multi_reducer,
    multi_reducer,
)


@pytest.fixture
def topology():
    return TridentTopology("built")


@pytest.fixture
def orders(topology):
    return topology.new_stream("orders", FixedBatchSpout("id bigint, item string", 1, []))


@pytest.fixture
def people(topology):
    return topology.new_stream("people", FixedBatchSpout("name string, person bigint", 1, []))


def test_merge_needs_streams_of_the_same_types(topology, orders, people):
    with pytest.raises(
        TopologyError,
        match=r"merge: stream 2 has \(name string, person bigint\), which does not fit "
        r"\(id bigint, item string\); project and convert",
    ):
        topology.merge(orders, people)


def test_merge_needs_as_many_fields(topology, orders):
    with pytest.raises(TopologyError, match="merge: stream 2 has"):
        topology.merge(orders, orders.project("id"))


def test_a_merged_stream_has_the_fields_of_the_first_or_new_ones(topology, orders, people):
    other = people.project(["person", "name"])

    assert topology.merge(orders, other).fields == ("id", "item")
    assert str(topology.merge(orders, other, out="a, b").schema) == "a bigint, b string"


def test_merge_refuses_another_number_of_names_and_other_types(topology, orders):
    with pytest.raises(TopologyError, match="merge: out has 1 fields, the streams 2"):
        topology.merge(orders, orders, out="a")
    with pytest.raises(TopologyError, match=r"does not fit \(a string, b string\)"):
        topology.merge(orders, orders, out="a string, b string")


@pytest.mark.parametrize("operation", ["merge", "join", "multi_reduce"])
def test_two_streams_at_least_of_this_topology(topology, orders, operation):
    other = TridentTopology("other").new_stream("s", FixedBatchSpout("id bigint", 1, []))
    build = {
        "merge": lambda *streams: topology.merge(*streams),
        "join": lambda *streams: topology.join(list(streams), ["id"] * len(streams), out="id"),
        "multi_reduce": lambda *s: topology.multi_reduce(s, lambda *_: 1, "n bigint"),
    }[operation]
    mine = orders.project("id")

    with pytest.raises(TopologyError, match="needs at least two streams"):
        build(mine)
    with pytest.raises(TopologyError, match="has a stream of another topology"):
        build(mine, other)
    with pytest.raises(TopologyError, match="needs streams, not 'orders'"):
        build(mine, "orders")


def test_a_grouped_stream_is_no_stream(topology, orders):
    with pytest.raises(TopologyError, match="merge needs streams"):
        topology.merge(orders, orders.group_by("id"))


def test_the_fields_of_a_join(topology, orders, people):
    compact = topology.join(orders, "id", people, "person", out="k, a, b")
    preserved = topology.join(orders, "id", people, "person", out="k, a, b, c", mode="preserve")

    assert str(compact.schema) == "k bigint, a string, b string"
    assert str(preserved.schema) == "k bigint, a string, b string, c bigint"


def test_fields_of_a_join_can_be_declared_but_not_changed(topology, orders, people):
    made = topology.join(orders, "id", people, "person", out="k bigint, a string, b")

    assert made.schema.types == ("bigint", "string", "string")
    with pytest.raises(TopologyError, match="join: field 'a' is declared as int, but is string"):
        topology.join(orders, "id", people, "person", out="k, a int, b")


def test_another_number_of_output_fields_says_how_many_there_are(topology, orders, people):
    with pytest.raises(TopologyError, match=r"join gives 3 fields \(compact\), but out has 2"):
        topology.join(orders, "id", people, "person", out="a, b")
    with pytest.raises(TopologyError, match=r"join gives 4 fields \(preserve\), but out has 3"):
        topology.join(orders, "id", people, "person", out="a, b, c", mode="preserve")


def test_join_fields_are_of_the_same_types(topology, orders, people):
    with pytest.raises(
        TopologyError,
        match=r"join: the join fields of stream 2 are \(name string\), those of the first "
        r"\(id bigint\); they must be as many, of the same types",
    ):
        topology.join(orders, "id", people, "name", out="a, b, c")
    with pytest.raises(TopologyError, match="they must be as many"):
        topology.join(orders, ["id", "item"], people, "person", out="a, b, c")


def test_join_fields_are_there_and_there_is_one_for_each_stream(topology, orders, people):
    with pytest.raises(TopologyError, match="join asks for field 'nope'"):
        topology.join(orders, "nope", people, "person", out="a, b, c")
    with pytest.raises(TopologyError, match="join has 2 streams, but join fields for 1"):
        topology.join([orders, people], ["id"], out="a, b, c")
    with pytest.raises(TopologyError, match="join needs a field of each stream"):
        topology.join(orders, [], people, [], out="a, b, c, d")


def test_a_map_cannot_be_joined_grouped_or_partitioned_by(topology):
    maps = topology.new_stream("maps", FixedBatchSpout("m map<string,bigint>, n bigint", 1, []))

    for build in (
        lambda: topology.join(maps, "m", maps, "m", out="m, a, b"),
        lambda: maps.group_by("m"),
        lambda: maps.group_by(["n", "m"]),
        lambda: maps.partition_by("m"),
    ):
        with pytest.raises(TopologyError, match="goes by field 'm', a map<string,bigint>"):
            build()


@pytest.mark.parametrize("mode", ["COMPACT", "all", None])
def test_a_mode_that_is_none_is_refused(topology, orders, people, mode):
    with pytest.raises(TopologyError, match="mode is 'compact' or 'preserve'"):
        topology.join(orders, "id", people, "person", out="a, b, c", mode=mode)


@pytest.mark.parametrize(
    "how", ["cross", "full", "INNER", ["inner"], ["inner", "left"], ["inner"] * 3], ids=str
)
def test_a_kind_that_is_none_is_refused(topology, orders, people, how):
    with pytest.raises(TopologyError, match="'inner' or 'outer'"):
        topology.join(orders, "id", people, "person", out="a, b, c", how=how)


@pytest.mark.parametrize("how", ["left", "right"])
def test_left_and_right_are_of_two(topology, orders, how):
    three = [orders.project("id")] * 3

    with pytest.raises(TopologyError, match=f"not '{how}' for 3 streams"):
        topology.join(three, ["id"] * 3, out="id", how=how)


@pytest.mark.parametrize("arguments", ["none", "no out", "too many", "bare field"])
def test_arguments_that_are_no_join_say_what_a_join_takes(topology, orders, people, arguments):
    given = {
        "none": (),
        "no out": (orders, "id", people, "person"),
        "too many": (orders, "id", people, "person", "a, b, c", "inner"),
        "bare field": ([orders, people], "id", "a, b, c"),
    }[arguments]

    with pytest.raises(TopologyError, match=r"join takes \(s1, fields1, s2, fields2, out\)"):
        topology.join(*given)


class Ungrouped(MultiReducer):
    def init(self, collector):
        return None

    def execute(self, value, stream_index, tuple, collector):
        pass

    def complete(self, value, collector):
        pass


class Grouped(GroupedMultiReducer):
    def init(self, collector, group):
        return None

    def execute(self, value, stream_index, group, tuple, collector):
        pass

    def complete(self, value, group, collector):
        pass


def test_the_fields_of_a_reduction(topology, orders, people):
    made = topology.multi_reduce([orders, people], Ungrouped(), "n bigint")
    groups = [orders.group_by("id"), people.group_by("person")]
    by_group = topology.multi_reduce(groups, Grouped(), "n bigint")

    assert str(made.schema) == "n bigint"
    assert str(by_group.schema) == "id bigint, n bigint"


def test_a_reducer_of_the_other_kind_is_refused(topology, orders, people):
    with pytest.raises(TopologyError, match="needs a MultiReducer"):
        topology.multi_reduce([orders, people], Grouped(), "n bigint")
    with pytest.raises(TopologyError, match="needs a GroupedMultiReducer"):
        topology.multi_reduce(
            [orders.group_by("id"), people.group_by("person")], Ungrouped(), "n bigint"
        )
    with pytest.raises(TopologyError, match="needs a MultiReducer"):
        topology.multi_reduce([orders, people], Count(), "n bigint")


def test_a_function_takes_as_many_lists_as_there_are_streams(topology, orders, people):
    @multi_reducer
    def one(first) -> int:
        return 1

    @grouped_multi_reducer
    def without_group(first, second) -> int:
        return 1

    with pytest.raises(TopologyError, match="one"):
        topology.multi_reduce([orders, people], one, "n")
    with pytest.raises(TopologyError, match="without_group"):
        topology.multi_reduce(
            [orders.group_by("id"), people.group_by("person")], without_group, "n"
        )


def test_all_streams_are_grouped_or_none_and_by_the_same_types(topology, orders, people):
    with pytest.raises(TopologyError, match="either all streams are grouped, or none"):
        topology.multi_reduce([orders.group_by("id"), people], Grouped(), "n bigint")
    with pytest.raises(TopologyError, match="grouped by fields of different types"):
        topology.multi_reduce(
            [orders.group_by("id"), people.group_by("name")], Grouped(), "n bigint"
        )


def test_fields_of_a_reduction_are_there_for_each_stream(topology, orders, people):
    with pytest.raises(TopologyError, match="has 2 streams, but fields for 1"):
        topology.multi_reduce([orders, people], Ungrouped(), "n bigint", fields=["id"])
    with pytest.raises(TopologyError, match="asks for field 'nope'"):
        topology.multi_reduce([orders, people], Ungrouped(), "n bigint", fields=["id", "nope"])


def test_what_a_reduction_gives_has_types_and_new_names(topology, orders, people):
    with pytest.raises(TopologyError, match="does not know the type of its output field 'n'"):
        topology.multi_reduce([orders, people], Ungrouped(), "n")
    with pytest.raises(TopologyError, match="adds field 'id'"):
        topology.multi_reduce(
            [orders.group_by("id"), people.group_by("person")], Grouped(), "id bigint"
        )
