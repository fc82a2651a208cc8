"""Which phase a node runs in, and in which order a commit phase goes."""

from __future__ import annotations

import pytest

from tests.trident.support import Capture, Keep
from waterspout import Config
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, MapGet, Split, TridentTopology
from waterspout.trident.plan.nodes import NewValues, Query, Update
from waterspout.trident.plan.plan import Phase, ancestors


@pytest.fixture
def topology():
    return TridentTopology("planned")


@pytest.fixture
def words(topology):
    spout = FixedBatchSpout("line string", 1, ["a b"])
    return topology.new_stream("lines", spout).each("line", Split(), out="word")


def counts(stream, field="word"):
    return stream.group_by(field).persistent_aggregate(MemoryMapState(), Count(), out="count")


def titles(nodes):
    return [node.title for node in nodes]


def in_phase(plan, phase):
    return titles(node for node in plan.nodes if plan.phases[node] is phase)


def test_everything_up_to_the_update_is_processing(topology, words):
    counts(words)

    plan = topology.plan()

    assert in_phase(plan, Phase.PROCESSING) == ["spout lines", "each(Split)", "aggregate(Count)"]
    assert in_phase(plan, Phase.COMMIT) == ["update of state1"]
    assert titles(plan.staged) == ["aggregate(Count)"]


def test_what_follows_from_new_values_runs_in_the_commit_phase(topology, words):
    again = counts(words).new_values_stream().each("word", Split(), out="part").project("part")
    counts(again, "part")

    plan = topology.plan()

    assert in_phase(plan, Phase.COMMIT) == [
        "update of state1",
        "new values of state1",
        "each(Split)",
        "project",
        "aggregate(Count)",
        "update of state2",
    ]
    assert plan.commit_order == [n for n in plan.nodes if plan.phases[n] is Phase.COMMIT]


def test_a_query_on_a_static_state_runs_in_processing(topology, words):
    state = topology.new_static_state(MemoryMapState())
    words.state_query(state, "word", MapGet(), out="n bigint")

    plan = topology.plan()

    assert in_phase(plan, Phase.COMMIT) == []
    assert titles(plan.staged) == ["state_query(MapGet)"]


def test_a_query_on_a_state_updated_here_runs_before_the_update(topology, words):
    state = counts(words)
    words.state_query(state, "word", MapGet(), out="count").partition_persist(
        Capture(), ["word", "count"], Keep()
    )

    plan = topology.plan()

    assert titles(plan.commit_order) == [
        "state_query(MapGet)",
        "update of state1",
        "project",
        "update of state2",
    ]


def test_a_query_that_follows_from_the_update_runs_after_it(topology, words):
    state = counts(words)
    new = state.new_values_stream().project("word")
    new.state_query(state, "word", MapGet(), out="count")

    order = titles(topology.plan().commit_order)

    assert order == ["update of state1", "new values of state1", "project", "state_query(MapGet)"]


def test_a_query_waits_only_for_its_own_state(topology, words):
    first, second = counts(words), counts(words)
    first.new_values_stream().project("word").state_query(
        second, "word", MapGet(), out="other bigint"
    )

    order = titles(topology.plan().commit_order)

    assert order.index("update of state1") < order.index("state_query(MapGet)")
    assert order.index("state_query(MapGet)") < order.index("update of state2")


def test_every_parent_comes_before_its_children_in_the_commit_order(topology, words):
    first = counts(words)
    second = counts(first.new_values_stream().state_query(first, "word", MapGet(), out="c"))
    words.state_query(second, "word", MapGet(), out="x bigint")
    counts(second.new_values_stream())

    order = topology.plan().commit_order

    for position, node in enumerate(order):
        assert all(p in order[:position] for p in node.parents if p in order)
        if isinstance(node, Query):
            updates = [n for n in order if isinstance(n, Update) and n.state == node.state]
            late = [u for u in updates if u not in ancestors(node)]
            assert all(order.index(u) > position for u in late)


def test_a_stream_with_two_readers_is_shared(topology, words):
    counts(words)
    counts(words)

    assert titles(topology.plan().shared) == ["each(Split)"]


def test_a_loose_end_of_processing_is_staged_to_be_run_at_all(topology, words):
    words.project("word")

    assert titles(topology.plan().staged) == ["project"]


def test_new_values_stand_for_their_update_only(topology, words):
    state = counts(words)
    first, second = state.new_values_stream(), state.new_values_stream()

    plan = topology.plan()

    assert first.fields == second.fields == ("word", "count")
    assert sum(isinstance(node, NewValues) for node in plan.nodes) == 2


def test_a_state_has_the_partitions_of_its_hint_or_of_the_configuration(topology, words):
    counts(words).parallelism_hint(5)
    counts(words)

    states = topology.plan(Config(state_partitions=3)).states

    assert [spec.partitions for spec in states.values()] == [5, 3]


def test_the_fingerprint_has_spouts_and_states_but_no_user_code(topology, words):
    counts(words.filter("word", lambda word: True))
    topology.new_static_state(MemoryMapState())

    assert topology.plan().fingerprint() == {
        "spout lines": {
            "spout": "FixedBatchSpout",
            "kind": "transactional",
            "fields": "line string",
        },
        "state state1": {
            "backend": "MemoryMapState",
            "kind": "opaque",
            "layout": "word string -> count bigint",
            "partitions": 2,
        },
    }


def test_a_name_given_by_the_user_is_shown(topology, words):
    words.project("word").name("only the words")

    assert titles(topology.plan().nodes)[-1] == "only the words"
