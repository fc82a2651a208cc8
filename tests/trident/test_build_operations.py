"""What single operations refuse when a topology is built, and how wide its parts are."""

from __future__ import annotations

import pytest

from tests.trident.support import Capture, capture
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import (
    Columns,
    Count,
    Debug,
    MapGet,
    MinBy,
    Split,
    Sum,
    TridentTopology,
    TupleCollectionGet,
    aggregator,
    expr,
    query,
    updater,
)


@pytest.fixture
def topology():
    return TridentTopology("built")


@pytest.fixture
def stream(topology):
    return topology.new_stream("rows", FixedBatchSpout("k string, n bigint", 1, [("a", 1)]))


def test_as_many_expressions_as_outputs(stream):
    with pytest.raises(TopologyError, match=r"each\(n\) is one expression, but has 2 outputs"):
        stream.each("n", expr("n"), out="a bigint, b bigint")
    with pytest.raises(TopologyError, match="is 2 expressions, but has 1 outputs"):
        stream.map([expr("n"), expr("k")], out="a bigint")


def test_an_expression_needs_types(stream):
    with pytest.raises(TopologyError, match="does not know the type of its output field 'x'"):
        stream.each("n", expr("n"), out="x")


def test_maps_and_flat_maps_need_their_kind_of_function(stream):
    with pytest.raises(TopologyError, match="needs a MapFunction"):
        stream.map(Split(), out="word")
    with pytest.raises(TopologyError, match="needs a FlatMapFunction"):
        stream.flat_map(Count(), out="word string")
    with pytest.raises(TopologyError, match="needs a Consumer"):
        stream.peek(Debug())


def test_map_keeps_the_fields_and_types_unless_told_others(stream):
    assert stream.map(lambda k, n: (k, n)).schema == stream.schema
    assert str(stream.map(lambda k, n: k, out="only string").schema) == "only string"


@pytest.mark.parametrize("given", [None, 5, "FirstN"], ids=str)
def test_an_assembly_is_one_or_a_function(stream, given):
    with pytest.raises(TopologyError, match="needs an Assembly or a function"):
        stream.apply_assembly(given)


def test_an_assembly_gives_a_stream(stream):
    with pytest.raises(TopologyError, match="must return a stream; it gave None"):
        stream.apply_assembly(lambda s: None)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.project([]),
        lambda s: s.map(lambda k, n: (), out=""),
        lambda s: s.each("n", lambda n: (), out=[]),
        lambda s: s.aggregate("n", aggregator(lambda rows: ()), out=""),
        lambda s: s.state_query(
            s.topology.new_static_state(MemoryMapState()), "k", MapGet(), out=""
        ),
        lambda s: s.partition_persist(Capture(), updater(lambda *_: None)).new_values_stream(),
    ],
    ids=["project", "map", "each", "aggregate", "state_query", "new_values_stream"],
)
def test_a_stream_has_a_field(stream, build):
    with pytest.raises(TopologyError, match=r"no (output )?field"):
        build(stream)


def test_partitions_need_a_field_or_a_grouping(stream):
    with pytest.raises(TopologyError, match="partition_by needs a field"):
        stream.partition_by([])
    with pytest.raises(TopologyError, match="partition_by asks for field 'nope'"):
        stream.partition_by("nope")
    with pytest.raises(TopologyError, match="partition needs a grouping with choose_tasks"):
        stream.partition(lambda task, values: [0])


def width(topology, stream):
    return topology.plan().width_of(stream.node)


def test_a_group_is_as_wide_as_the_greatest_of_its_hints(topology, stream):
    before = stream.shuffle().parallelism_hint(2)
    behind = before.each("n", lambda n: n, out="m bigint").parallelism_hint(5).project("m")
    other = behind.shuffle()

    assert [width(topology, s) for s in (stream, before, behind, other)] == [None, 5, 5, None]


def test_where_the_number_shows_it_is_one_unless_hinted(topology, stream):
    shows = [
        stream.broadcast(),
        stream.global_(),
        stream.batch_global(),
        stream.shuffle().partition_aggregate(Count(), out="c"),
        stream.shuffle().min_by("n"),
        stream.shuffle().local_or_shuffle().partition_aggregate(Count(), out="c"),
    ]
    counted = stream.shuffle().partition_aggregate(Count(), out="c").parallelism_hint(3)

    assert [width(topology, s) for s in shows] == [1] * 6
    assert width(topology, counted) == 3


def test_both_sides_of_an_identity_partition_are_as_wide(topology, stream):
    before = stream.shuffle().parallelism_hint(2)
    behind = before.identity_partition().parallelism_hint(3)

    assert [width(topology, s) for s in (before, behind)] == [3, 3]


def test_local_or_shuffle_stays_as_wide_unless_hinted(topology, stream):
    before = stream.shuffle().parallelism_hint(2)
    same, other = before.local_or_shuffle(), before.local_or_shuffle().parallelism_hint(3)

    assert [width(topology, s) for s in (before, same, other)] == [2, 2, 3]


def test_a_chain_needs_an_aggregator_and_distinct_outputs(stream):
    chain = stream.chained_agg().aggregate(Count(), out="a")

    with pytest.raises(TopologyError, match=r"needs an aggregator before chain_end\(\)"):
        stream.chained_agg().chain_end()
    with pytest.raises(TopologyError, match="must be distinct; 'a' comes twice"):
        chain.aggregate("n", Sum(), out="a")
    with pytest.raises(TopologyError, match=r"either of aggregate\(\) or of partition_aggregate"):
        chain.partition_aggregate("n", Sum(), out="b")


def test_what_a_chain_gives_must_not_be_called_like_its_group(stream):
    with pytest.raises(TopologyError, match="adds field 'k', but the stream already has it"):
        stream.group_by("k").chained_agg().aggregate(Count(), out="k").chain_end()


def test_expressions_aggregate_batches_and_only_with_each_other(stream):
    with pytest.raises(TopologyError, match="aggregates a batch, not a partition"):
        stream.partition_aggregate(expr("max(n)"), out="m bigint")
    mixed = stream.chained_agg().aggregate(expr("max(n)"), out="m bigint")
    with pytest.raises(TopologyError, match="chain Spark expressions with each other only"):
        mixed.aggregate(Count(), out="c").chain_end()


@pytest.mark.parametrize("method", ["min_by", "max_by"])
def test_the_least_and_the_greatest_go_by_a_field_that_is_there(stream, method):
    with pytest.raises(TopologyError, match="asks for field 'nope', but the stream has k, n"):
        getattr(stream, method)("nope")
    with pytest.raises(TopologyError, match="asks for field 'k', but the stream has n"):
        stream.aggregate("n", MinBy("k"), out="n bigint")


def test_the_least_and_the_greatest_of_tuples_need_a_key(stream):
    for method in (stream.min, stream.max):
        with pytest.raises(TopologyError, match="needs a field, or a key"):
            method(None)


def test_a_query_of_a_state_of_ones_own_is_as_wide_as_the_state(topology, stream):
    spread = stream.partition_by("k").parallelism_hint(3)
    state = spread.partition_persist(Capture(), updater(lambda *_: None))
    spread.state_query(state, query(lambda state, tuples: tuples), out="x string")
    topology.plan()
    stream.shuffle().state_query(state, query(lambda state, tuples: tuples), out="x string")

    with pytest.raises(TopologyError, match=r"3 partitions.*parallelism_hint\(3\)"):
        topology.plan()


def test_queries_that_go_round_in_a_circle_are_refused(topology, stream):
    counts = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), out="c")
    sums = stream.group_by("k").persistent_aggregate(MemoryMapState(), "n", Sum(), out="s")
    counts.new_values_stream().state_query(sums, "k", MapGet(), out="x")
    sums.new_values_stream().state_query(counts, "k", MapGet(), out="x")

    for act in (topology.plan, topology.explain, lambda: run_in_process(topology)):
        with pytest.raises(TopologyError, match="go round in a circle"):
            act()


def test_a_static_state_with_fields_tells_queries_their_types(topology, stream):
    prices = topology.new_static_state(MemoryMapState(), keys="k string", values="price double")
    asked = stream.state_query(prices, "k", MapGet(), out="price")
    listed = stream.state_query(prices, TupleCollectionGet(), out="other, price")

    assert asked.schema.type_of("price") == "double"
    assert str(listed.schema) == "k string, n bigint, other string, price double"


def test_the_fields_of_a_static_state_have_types_and_values(topology):
    with pytest.raises(TopologyError, match="does not know the type of its output field 'k'"):
        topology.new_static_state(MemoryMapState(), keys="k", values="v int")
    with pytest.raises(TopologyError, match="has keys, so it needs values"):
        topology.new_static_state(MemoryMapState(), keys="k string")


def test_one_query_behind_the_update_of_another_state_is_fine(topology, stream):
    counts = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), out="c")
    sums = stream.group_by("k").persistent_aggregate(MemoryMapState(), "n", Sum(), out="s")
    counts.new_values_stream().state_query(sums, "k", MapGet(), out="x")
    sums.new_values_stream().state_query(sums, "k", MapGet(), out="x")

    assert len(topology.plan().commit_order) == 6


def routes_of(topology):
    rows = [("north", 4), ("south", 5), ("north", 4)]
    tickets = topology.new_stream("tickets", FixedBatchSpout("route string, fare bigint", 3, rows))
    totals = Columns(tickets=Count(), income=("fare", Sum()))
    return tickets.group_by("route").persistent_aggregate(MemoryMapState(), totals)


def test_a_key_of_a_state_with_several_columns_gives_a_field_for_each():
    topology = TridentTopology("t")
    routes = routes_of(topology)
    names = [("a",), ("b",), ("north",), ("west",)]  # the first two in the batch of the tickets
    asked = topology.new_stream("asked", FixedBatchSpout("name string", 2, names))
    found = asked.state_query(routes, "name", MapGet(), out="tickets, income")
    kept = capture(found)

    run_in_process(topology)

    assert str(found.schema) == "name string, tickets bigint, income bigint"
    assert kept.rows[2:] == [("north", 2, 8), ("west", None, None)]


@pytest.mark.parametrize("out", ["total bigint", "a bigint, b bigint, c bigint"])
def test_a_query_with_other_fields_than_the_state_has_columns_is_refused(out):
    topology = TridentTopology("t")
    routes = routes_of(topology)
    asked = topology.new_stream("asked", FixedBatchSpout("name string", 1, [("north",)]))

    with pytest.raises(TopologyError, match=r'state1; write out="tickets, income", or as many'):
        asked.state_query(routes, "name", MapGet(), out=out)


def test_a_memory_state_with_a_name_for_its_kind_is_refused_with_what_to_write():
    with pytest.raises(TopologyError, match=r"MemoryMapState\(\).named\('words'\)"):
        MemoryMapState("words")
