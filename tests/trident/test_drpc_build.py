"""DRPC streams as they are built: what is refused, and what explain says."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from tests.trident.test_drpc import word_count
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, MapGet, Split, TridentTopology, expr
from waterspout.trident.drpc.streams import TABLE_MAX_ROWS


@pytest.fixture
def topology():
    return TridentTopology("built")


def test_a_drpc_stream_has_one_field_args(topology):
    stream = topology.new_drpc_stream("f")

    assert str(stream.schema) == "args string"


def test_a_function_is_there_once(topology):
    topology.new_drpc_stream("f")

    with pytest.raises(TopologyError, match="there is already a DRPC function 'f'"):
        topology.new_drpc_stream("f")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_a_name_that_no_address_can_have_is_refused(topology, name):
    with pytest.raises(TopologyError, match="cannot be an id"):
        topology.new_drpc_stream(name)


def test_requests_do_not_meet_the_batches_of_spouts(topology):
    requests = topology.new_drpc_stream("f")
    spouted = topology.new_stream("s", FixedBatchSpout("args string", 1, []))

    with pytest.raises(
        TopologyError,
        match=r"merge: a DRPC stream \('f'\) cannot be joined or merged with streams of spouts",
    ):
        topology.merge(requests, spouted)
    with pytest.raises(TopologyError, match="join: a DRPC stream"):
        topology.join(spouted, "args", requests, "args", out="args")


def test_requests_of_two_functions_do_not_meet(topology):
    with pytest.raises(TopologyError, match="the DRPC streams 'f' and 'g' cannot be joined or"):
        topology.merge(topology.new_drpc_stream("f"), topology.new_drpc_stream("g"))


@pytest.mark.parametrize(
    ("what", "keep"),
    [
        ("persistent_aggregate", lambda s: s.persistent_aggregate(MemoryMapState(), Count(), "n")),
        (
            "partition_persist",
            lambda s: s.partition_persist(MemoryMapState(), lambda state, tuples: None),
        ),
        ("a window", lambda s: s.tumbling_window(3, Count(), out="n")),
        ("a window", lambda s: s.tumbling_window(dt.timedelta(seconds=1), Count(), out="n")),
        ("deduplicate", lambda s: s.deduplicate("args")),
    ],
)
def test_a_request_changes_no_state(topology, what, keep):
    stream = topology.new_drpc_stream("f")

    with pytest.raises(TopologyError, match=f"{what}.* is not possible on the DRPC stream 'f'"):
        keep(stream)

    assert [call.function for call in topology.plan().calls] == ["f"]  # nothing was left behind
    assert not topology.plan().states


def test_a_request_has_no_dead_letters(topology):
    with pytest.raises(TopologyError, match="a row that fails is the error of its request"):
        topology.new_drpc_stream("f").map(str.upper, on_error="dead_letter")


def test_the_batches_do_not_have_the_nodes_of_requests():
    plan = word_count().plan()

    assert plan.nodes[0].title == "spout spout1"
    assert not [node for node in plan.nodes if "drpc" in node.title]
    (call,) = plan.calls
    assert [node.title for node in call.nodes] == [
        "drpc words",
        "each(Split)",
        "partition_by",
        "state_query(MapGet)",
        "each(FilterNull)",
        "aggregate(Sum)",
    ]


def test_explain_says_where_requests_run_and_what_they_see():
    text = word_count().explain()

    assert text[text.index("drpc words (") :] == (
        "drpc words (in the driver, without a Spark job)\n"
        "   5  drpc words  (args string)\n"
        "   6 <- 5  each(Split)  (args string, word string)\n"
        "   7 <- 6  partition_by  (args string, word string)\n"
        "   8 <- 7  state_query(MapGet) on state1  (args string, word string, count bigint)\n"
        "   9 <- 8  each(FilterNull)  (args string, word string, count bigint)\n"
        "  10 <- 9  aggregate(Sum)  (sum bigint)\n"
        "  answers with 10 aggregate(Sum): [[sum bigint], ...]\n"
        "  state1: committed values"
    )


def large():
    return pa.table({"args": ["x"] * (TABLE_MAX_ROWS + 1)}).append_column(
        "n", pa.array(range(TABLE_MAX_ROWS + 1))
    )


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda s: s.transform(lambda df: df), "is a function of DataFrames"),
        (lambda s: s.each("args", expr("upper(args)"), "up string"), "is a Spark expression"),
        (lambda s: s.join_static(large(), on="args"), "has 10,001 rows, more than 10,000"),
        (lambda s: s.shuffle().map(str.upper).parallelism_hint(4), "is to run on 4 partitions"),
    ],
)
def test_what_needs_spark_says_why(topology, build, why):
    build(topology.new_drpc_stream("f"))

    (line,) = [line for line in topology.explain().splitlines() if line.startswith("drpc f ")]

    assert line.startswith("drpc f (one Spark job for all requests that wait, because ")
    assert why in line


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("opaque", "committed values"),
        (
            "transactional",
            "committed values; a request waits where a batch is being committed to a key it asks",
        ),
        (
            "non_transactional",
            "also values of a batch that is being committed, for it keeps no older value",
        ),
    ],
)
def test_explain_says_what_a_kind_of_state_shows(topology, kind, seen):
    state = (
        topology.new_stream("s", FixedBatchSpout("word string", 1, []))
        .group_by("word")
        .persistent_aggregate(getattr(MemoryMapState, kind)(), Count(), "n")
    )
    topology.new_drpc_stream("f").state_query(state, "args", MapGet(), "n")

    assert topology.explain().splitlines()[-1] == f"  state1: {seen}"


def test_a_hint_of_a_drpc_stream_is_not_that_of_a_batchs_node(topology):
    stream = topology.new_stream("s", FixedBatchSpout("word string", 1, []))
    topology.new_drpc_stream("f").each("args", Split(), "word").parallelism_hint(4)
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    plan = topology.plan()

    assert all(plan.width_of(node) in (None, 1) for node in plan.nodes)
