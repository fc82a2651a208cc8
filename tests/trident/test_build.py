"""What is refused when a topology is built, and what the message says."""

from __future__ import annotations

import pytest

from tests.trident.support import Capture, Keep
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Aggregator,
    Average,
    Count,
    FilterNull,
    Function,
    MapGet,
    Negate,
    ReducerAggregator,
    Split,
    Sum,
    TridentTopology,
    arrow_function,
    expr,
)


class Untyped(Function):
    def execute(self, tuple, collector):
        collector.emit((1,))


class UntypedReducer(ReducerAggregator[int]):
    def init(self):
        return 0

    def reduce(self, value, tuple):
        return value + 1


class Pairs(Aggregator[list]):
    def init(self, batch_id, collector):
        return []

    def aggregate(self, value, tuple, collector):
        value.append(tuple[0])

    def complete(self, value, collector):
        collector.emit((len(value), str(value)))


@pytest.fixture
def topology():
    return TridentTopology("built")


@pytest.fixture
def stream(topology):
    return topology.new_stream("lines", FixedBatchSpout("line string, n bigint", 1, [("a b", 1)]))


def other_fields(stream):
    """Every way to ask for a field, each asking for one that is not there."""
    state = stream.group_by("n").persistent_aggregate(MemoryMapState(), Count(), out="c")
    return {
        "each function": lambda: stream.each("nope", Split(), out="word"),
        "each filter": lambda: stream.each(["line", "nope"], FilterNull()),
        "each lambda": lambda: stream.each("nope", lambda v: v, out="v string"),
        "each arrow function": lambda: stream.each("nope", arrow_function(len), out="v int"),
        "filter": lambda: stream.filter("nope", FilterNull()),
        "project": lambda: stream.project(["line", "nope"]),
        "group_by": lambda: stream.group_by("nope"),
        "aggregate": lambda: stream.aggregate("nope", Sum(), out="s"),
        "grouped aggregate": lambda: stream.group_by("n").aggregate("nope", Sum(), out="s"),
        "persistent_aggregate": lambda: stream.persistent_aggregate(
            MemoryMapState(), "nope", Sum(), out="s"
        ),
        "persistent_aggregate reducer": lambda: stream.group_by("n").persistent_aggregate(
            MemoryMapState(), "nope", UntypedReducer(), out="s bigint"
        ),
        "partition_persist": lambda: stream.partition_persist(Capture(), ["nope"], Keep()),
        "state_query": lambda: stream.state_query(state, "nope", MapGet(), out="c"),
    }


WAYS = list(other_fields(TridentTopology("x").new_stream("s", FixedBatchSpout("n int", 1, []))))


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_field_is_named_with_those_there_are(stream, way):
    ask = other_fields(stream)[way]

    with pytest.raises(TopologyError, match="asks for field 'nope', but the stream has line, n"):
        ask()


def test_the_message_names_the_operation_that_asks(stream):
    with pytest.raises(TopologyError, match=r"each\(Split\) asks for field 'nope'"):
        stream.each("nope", Split(), out="word")
    with pytest.raises(TopologyError, match="project asks for field 'nope'"):
        stream.project("nope")


def test_an_output_field_that_is_there_already_is_refused(stream, topology):
    state = topology.new_static_state(MemoryMapState())
    adds = r"adds field 'n', but the stream already has it \(line, n\).*another name"

    with pytest.raises(TopologyError, match=adds):
        stream.each("line", Split(), out="n")
    with pytest.raises(TopologyError, match=adds):
        stream.state_query(state, "line", MapGet(), out="n bigint")
    with pytest.raises(TopologyError, match=r"adds field 'n', but the stream already has it \(n\)"):
        stream.group_by("n").aggregate(Count(), out="n")


def test_two_output_fields_of_one_name_are_refused(stream):
    with pytest.raises(TopologyError, match="duplicate field 'a' in a, a"):
        stream.each("line", Untyped(), out="a int, a int")


def test_a_field_asked_for_twice_is_refused(stream):
    with pytest.raises(TopologyError, match="duplicate field 'n' in n, n"):
        stream.project(["n", "n"])


@pytest.mark.parametrize("form", ["function", "lambda", "expression", "arrow"])
def test_an_output_field_without_a_type_is_refused(stream, form):
    operation = {
        "function": Untyped(),
        "lambda": lambda v: v,
        "expression": expr("upper(line)"),
        "arrow": arrow_function(len),
    }[form]

    with pytest.raises(
        TopologyError,
        match=r"type of its output field 'x'; write it as Spark DDL.*out=\"x string\"",
    ):
        stream.each("line", operation, out="x")


def test_aggregates_and_updates_need_types_too(stream, topology):
    untyped = "does not know the type of its output field 'x'; write it as Spark DDL"
    static = topology.new_static_state(MemoryMapState())

    with pytest.raises(TopologyError, match=untyped):
        stream.aggregate("line", UntypedReducer(), out="x")
    with pytest.raises(TopologyError, match=untyped):
        stream.persistent_aggregate(MemoryMapState(), UntypedReducer(), out="x")
    with pytest.raises(TopologyError, match=untyped):
        stream.partition_persist(Capture(), "line", Keep(), out="x")
    with pytest.raises(TopologyError, match=untyped):
        stream.state_query(static, "line", MapGet(), out="x")
    with pytest.raises(TopologyError, match=untyped):
        stream.transform(lambda frame: frame, out="x")
    with pytest.raises(TopologyError, match=untyped):
        FixedBatchSpout("x", 1, [])


def test_an_operation_that_knows_its_types_fills_them_in(stream, topology):
    state = stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), out="c")

    assert str(stream.each("line", Split(), out="word").schema) == (
        "line string, n bigint, word string"
    )
    assert str(stream.aggregate("n", Sum(), out="total").schema) == "total bigint"
    assert str(stream.group_by("line").aggregate(Count(), out="c").schema) == (
        "line string, c bigint"
    )
    assert str(stream.state_query(state, "line", MapGet(), out="c").schema) == (
        "line string, n bigint, c bigint"
    )
    assert str(state.new_values_stream().schema) == "line string, c bigint"


def test_a_second_stream_of_the_same_id_is_refused(topology, stream):
    with pytest.raises(TopologyError, match="there is already a stream 'lines'; use another id"):
        topology.new_stream("lines", FixedBatchSpout("x int", 1, []))


def test_two_states_on_one_table_are_refused(stream, tmp_path):
    first = SQLiteState.opaque(tmp_path / "s.db", table="counts")
    stream.group_by("line").persistent_aggregate(first, Count(), out="c")

    with pytest.raises(TopologyError, match=r"two states .* are kept in sqlite:.*s\.db#counts"):
        stream.group_by("n").persistent_aggregate(
            SQLiteState.transactional(tmp_path / "s.db", table="COUNTS"), Count(), out="c"
        )


def test_two_states_in_one_memory_are_refused(stream):
    memory = MemoryMapState()
    stream.group_by("line").persistent_aggregate(memory, Count(), out="c")

    with pytest.raises(TopologyError, match=r"two states .* are kept in memory:"):
        stream.persistent_aggregate(memory, Count(), out="c")


def test_a_table_may_be_read_beside_being_updated(topology, stream):
    memory = MemoryMapState()
    stream.group_by("line").persistent_aggregate(memory, Count(), out="c")

    topology.new_static_state(memory)

    assert [spec.static for spec in topology.plan().states.values()] == [False, True]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "x" * 129])
def test_a_bad_topology_or_spout_name_is_refused(topology, name):
    with pytest.raises(TopologyError, match="cannot be an id; use 1 to 128 letters"):
        TridentTopology(name)
    with pytest.raises(TopologyError, match="cannot be an id; use 1 to 128 letters"):
        topology.new_stream(name, FixedBatchSpout("x int", 1, []))


@pytest.mark.parametrize("fields", ["line n", "a.b", "1st", "", "line,"])
def test_several_fields_in_one_string_are_refused_with_the_remedy(stream, fields):
    with pytest.raises(TopologyError, match=r"several fields are a list: \['a', 'b'\]"):
        stream.project(fields)


def test_an_empty_operation_name_is_refused(stream):
    with pytest.raises(TopologyError, match="a name must not be empty"):
        stream.name("")


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_a_parallelism_that_is_no_positive_number_is_refused(stream, n):
    state = stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), out="c")

    with pytest.raises(TopologyError, match="parallelism_hint must be a positive number, not"):
        stream.parallelism_hint(n)
    with pytest.raises(TopologyError, match="parallelism_hint must be a positive number, not"):
        state.parallelism_hint(n)


def test_a_filter_with_output_fields_is_refused(stream):
    with pytest.raises(TopologyError, match=r"has output fields, so it needs a Function"):
        stream.each("line", FilterNull(), out="x string")


def test_a_function_without_output_fields_is_refused(stream):
    with pytest.raises(TopologyError, match=r"each\(Split\) is a Function, so it needs output"):
        stream.each("line", Split())


@pytest.mark.parametrize("operation", [5, None, Split, FilterNull])
def test_what_is_no_operation_is_refused(stream, operation):
    with pytest.raises(TopologyError, match="needs a Function; got"):
        stream.each("line", operation, out="x string")
    with pytest.raises(TopologyError, match="needs a Filter or a predicate; got"):
        stream.each("line", operation)


def test_what_is_no_aggregator_is_refused(stream):
    with pytest.raises(TopologyError, match="needs a CombinerAggregator, ReducerAggregator or"):
        stream.aggregate("n", Split(), out="x")
    with pytest.raises(TopologyError, match="needs a CombinerAggregator or ReducerAggregator"):
        stream.persistent_aggregate(MemoryMapState(), Pairs(), out="x int, y string")


def test_an_aggregation_with_a_missing_argument_says_what_it_takes(stream):
    with pytest.raises(TopologyError, match=r"takes \(\[fields,\] aggregator, out\); got 'n'"):
        stream.aggregate("n")
    with pytest.raises(TopologyError, match=r"aggregate\(Count\) does not say what its result is"):
        stream.aggregate(Count())


def test_a_combiner_gives_one_field(stream):
    with pytest.raises(TopologyError, match="gives one value, but out has 2 fields"):
        stream.aggregate("n", Sum(), out="a bigint, b bigint")


def test_a_function_with_known_types_refuses_another_number_of_fields(stream):
    with pytest.raises(TopologyError, match="makes 1 fields, but out has 2"):
        stream.each("line", Split(), out="a, b")


@pytest.mark.parametrize("kind", ["string", "boolean", "array<int>", "timestamp"])
def test_sum_refuses_what_is_no_number(topology, kind):
    stream = topology.new_stream("s", FixedBatchSpout(f"x {kind}", 1, []))

    with pytest.raises(TopologyError, match="Sum cannot add up a field of type"):
        stream.aggregate("x", Sum(), out="total")


@pytest.mark.parametrize(
    ("aggregator", "out", "own"),
    [(Sum(), "total double", "bigint"), (Average(), "mean bigint", "double")],
    ids=["sum", "average"],
)
def test_a_type_that_does_not_hold_what_a_built_in_gives_is_refused(stream, aggregator, out, own):
    with pytest.raises(TopologyError, match=f"gives {own}, but .* does not hold every {own}"):
        stream.aggregate("n", aggregator, out=out)


def test_sum_takes_one_field(stream):
    with pytest.raises(TopologyError, match="Sum takes one field, not 2"):
        stream.aggregate(Sum(), out="total")


@pytest.mark.parametrize(
    ("kind", "total"),
    [
        ("tinyint", "bigint"),
        ("int", "bigint"),
        ("bigint", "bigint"),
        ("float", "double"),
        ("double", "double"),
        ("decimal(10,2)", "decimal(38,2)"),
        ("Decimal(10, 2)", "decimal(38,2)"),
        ("decimal(10)", "decimal(38,0)"),
    ],
)
def test_a_sum_is_as_wide_as_its_kind_of_number_gets(topology, kind, total):
    stream = topology.new_stream("s", FixedBatchSpout(f"x {kind}", 1, []))

    assert stream.aggregate("x", Sum(), out="total").schema.types == (total,)


def test_grouping_by_nothing_is_refused(stream):
    with pytest.raises(TopologyError, match="group_by needs a field"):
        stream.group_by([])


def test_a_transform_that_is_no_function_is_refused(stream):
    with pytest.raises(TopologyError, match="needs a function of a DataFrame, not None"):
        stream.transform(None)


def test_a_state_is_made_by_a_factory(topology, stream):
    for make in (
        lambda: topology.new_static_state({}),
        lambda: stream.persistent_aggregate("counts.db", Count(), out="c"),
        lambda: stream.partition_persist(MemoryMapState, "line", Keep()),
    ):
        with pytest.raises(TopologyError, match="is not a StateFactory; a state is made by a"):
            make()


def test_partition_persist_needs_a_state_updater(stream):
    with pytest.raises(TopologyError, match="needs a StateUpdater or a function"):
        stream.partition_persist(Capture(), "line", Split())


def test_a_query_needs_a_query_function_and_a_state_of_this_topology(topology, stream):
    state = topology.new_static_state(MemoryMapState())
    elsewhere = TridentTopology("other").new_static_state(MemoryMapState())

    with pytest.raises(TopologyError, match="needs a QueryFunction or a function"):
        stream.state_query(state, "line", Split(), out="x string")
    with pytest.raises(TopologyError, match="asks a state of another topology"):
        stream.state_query(elsewhere, "line", MapGet(), out="x string")
    with pytest.raises(TopologyError, match=r"new_static_state\(\) makes one of a factory"):
        stream.state_query(MemoryMapState(), "line", MapGet(), out="x string")


def test_a_static_state_has_no_new_values(topology):
    with pytest.raises(TopologyError, match="'state1' is not updated here: it has no new values"):
        topology.new_static_state(MemoryMapState()).new_values_stream()


@pytest.mark.parametrize("spout", [None, [1, 2], FixedBatchSpout])
def test_a_stream_needs_a_spout(topology, spout):
    with pytest.raises(TopologyError, match=r"new_stream\('s'\) needs a spout; got"):
        topology.new_stream("s", spout)


def test_a_topology_without_a_stream_is_refused(topology):
    with pytest.raises(TopologyError, match="has no stream; begin with new_stream"):
        topology.plan()


def test_negate_needs_a_filter():
    with pytest.raises(TopologyError, match="Negate needs a Filter, not"):
        Negate(len)


def test_a_value_field_called_like_a_key_or_a_column_of_ours_is_refused(stream, tmp_path):
    state = SQLiteState.opaque(tmp_path / "s.db", table="t")

    with pytest.raises(TopologyError, match="adds field 'line', but the stream already has it"):
        stream.group_by("line").persistent_aggregate(state, Count(), out="line")
    with pytest.raises(TopologyError, match="field '_txid' cannot be a column"):
        stream.group_by("line").persistent_aggregate(state, Count(), out="_txid")
    with pytest.raises(TopologyError, match="duplicate field 'LINE' in line, LINE"):
        stream.group_by("line").persistent_aggregate(state, Count(), out="LINE")


def test_a_stream_that_was_refused_leaves_no_node_behind(stream, topology):
    before = len(topology.plan().nodes)

    with pytest.raises(TopologyError):
        stream.each("line", Split(), out="n")

    assert len(topology.plan().nodes) == before
