"""`explain()` and `strict`: which state is exactly-once, and why, before anything runs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.trident.support import Capture, Keep, capture
from waterspout import Config, submit
from waterspout.errors import TopologyError
from waterspout.spouts._base import SpoutKind
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import MemoryLog
from waterspout.trident import (
    Count,
    Filter,
    Function,
    MapGet,
    Negate,
    ReducerAggregator,
    SnapshotGet,
    StateUpdater,
    TridentTopology,
    arrow_function,
    expr,
)
from waterspout.trident.operations.adapters import SqlExpression
from waterspout.trident.plan.explain import explain, guarantees, refuse_weak

SPOUTS = (SpoutKind.NON_TRANSACTIONAL, SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
STATES = (StateKind.NON_TRANSACTIONAL, StateKind.TRANSACTIONAL, StateKind.OPAQUE)
EXACT = {
    (SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
    (SpoutKind.TRANSACTIONAL, StateKind.OPAQUE),
    (SpoutKind.OPAQUE, StateKind.OPAQUE),
}
every_cell = pytest.mark.parametrize(
    ("spout", "state"), list(itertools.product(SPOUTS, STATES)), ids=lambda kind: kind.value
)


class Random(Function):
    deterministic = False

    def execute(self, tuple, collector):
        collector.emit((4,))


class RandomFilter(Filter):
    deterministic = False

    def is_keep(self, tuple):
        return True


class Last(ReducerAggregator[int]):
    def init(self):
        return 0

    def reduce(self, value, tuple):
        return tuple[0]

    def output_types(self, inputs):
        return ["bigint"]


class LuckyLast(Last):
    deterministic = False


class CountUp(StateUpdater):
    """Reads, then writes: what it emits of a transactional state counts a replay twice."""

    keys = "word"

    def update_state(self, state, tuples, collector):
        for row in tuples:
            (count,) = state.multi_get([row.values])
            state.multi_put([row.values], [(count or 0) + 1])
            collector.emit((row["word"], (count or 0) + 1))


class LuckyGet(MapGet):
    deterministic = False


def rows(topology, kind=SpoutKind.TRANSACTIONAL, spout_id="log"):
    return topology.new_stream(spout_id, MemoryLog("word string, n bigint", [[]], kind=kind))


def memory(kind):
    return MemoryMapState(kind, "m")


def word_count(spout, state):
    topology = TridentTopology("matrix")
    rows(topology, spout).group_by("word").persistent_aggregate(state, Count(), out="count")
    return topology


def said(topology):
    return guarantees(topology.plan())


@every_cell
def test_every_cell_of_the_matrix_is_said_with_its_reason(spout, state):
    word = "exactly-once" if (spout, state) in EXACT else "not exactly-once"

    assert said(word_count(spout, memory(state))) == [
        f"state1 (memory:m): {word}: spout 'log' is {spout.value}, the state is {state.value}"
    ]


@every_cell
def test_strict_refuses_exactly_what_is_not_exactly_once(spout, state):
    plan = word_count(spout, memory(state)).plan()

    if (spout, state) in EXACT:
        refuse_weak(plan)
        return
    with pytest.raises(TopologyError) as refused:
        refuse_weak(plan)
    assert str(refused.value) == (
        f"strict=True refuses state1: not exactly-once, because spout 'log' is {spout.value}, the "
        f"state is {state.value}. Use an opaque state (and a spout that can replay), or leave "
        "strict off."
    )


@pytest.mark.parametrize("spout", SPOUTS, ids=lambda kind: kind.value)
def test_a_state_of_the_users_own_promises_nothing(spout):
    topology = TridentTopology("own")
    rows(topology, spout).partition_persist(Capture("own"), "word", Keep())

    assert said(topology) == [
        f"state1 (list:own): not exactly-once: spout 'log' is {spout.value}, the state is the "
        "user's own, and promises nothing"
    ]


NOT_DETERMINISTIC = {
    "function": lambda s: s.each("n", Random(), out="r int"),
    "filter": lambda s: s.filter("n", RandomFilter()),
    "negated filter": lambda s: s.filter("n", Negate(RandomFilter())),
    "expression": lambda s: s.each("n", SqlExpression("rand()", deterministic=False), out="r int"),
    "aggregator": lambda s: s.group_by("word").aggregate("n", LuckyLast(), out="last"),
    "query": lambda s: s.state_query(
        s._topology.new_static_state(MemoryMapState()), "word", LuckyGet(), out="found bigint"
    ),
}


@pytest.mark.parametrize("way", NOT_DETERMINISTIC)
def test_an_operation_that_is_not_deterministic_makes_the_stream_opaque(way):
    for state, word in (
        (StateKind.OPAQUE, "exactly-once"),
        (StateKind.TRANSACTIONAL, "not exactly-once"),
    ):
        topology = TridentTopology("random")
        stream = NOT_DETERMINISTIC[way](rows(topology))
        stream.group_by("word").persistent_aggregate(memory(state), Count(), out="count")

        (line,) = said(topology)[-1:]

        assert f": {word}: " in line
        assert "is declared not deterministic" in line


def test_a_reducer_that_is_not_deterministic_counts_as_opaque_too():
    topology = TridentTopology("random")
    rows(topology).group_by("word").persistent_aggregate(
        memory(StateKind.TRANSACTIONAL), "n", LuckyLast(), out="last"
    )

    assert said(topology) == [
        "state1 (memory:m): not exactly-once: update of state1 is declared not deterministic, the "
        "state is transactional"
    ]


def test_the_weakest_of_several_sources_counts():
    topology = TridentTopology("two")
    state = (
        rows(topology)
        .group_by("word")
        .persistent_aggregate(MemoryMapState(StateKind.OPAQUE, "a"), Count(), out="count")
    )
    other = rows(topology, SpoutKind.NON_TRANSACTIONAL, "other")
    other.group_by("word").persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "b"), Count(), out="count"
    )

    assert said(topology) == [
        "state1 (memory:a): exactly-once: spout 'log' is transactional, the state is opaque",
        "state2 (memory:b): not exactly-once: spout 'other' is non-transactional, the state is "
        "opaque",
    ]
    assert state.name == "state1"


def test_a_state_fed_by_a_state_that_is_not_exact_is_not_exact_either():
    topology = TridentTopology("chain")
    first = (
        rows(topology)
        .group_by("word")
        .persistent_aggregate(
            MemoryMapState(StateKind.NON_TRANSACTIONAL, "a"), Count(), out="count"
        )
    )
    first.new_values_stream().persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "b"), Count(), out="changes"
    )

    assert said(topology) == [
        "state1 (memory:a): not exactly-once: spout 'log' is transactional, the state is "
        "non-transactional",
        "state2 (memory:b): not exactly-once: it follows from state1, which is not exactly-once",
    ]


@pytest.mark.parametrize("second", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_a_state_fed_by_new_values_of_an_exact_state_is_exact(second):
    topology = TridentTopology("chain")
    first = (
        rows(topology)
        .group_by("word")
        .persistent_aggregate(MemoryMapState(StateKind.TRANSACTIONAL, "a"), Count(), out="count")
    )
    first.new_values_stream().persistent_aggregate(
        MemoryMapState(second, "b"), Count(), out="changes"
    )

    assert said(topology)[1] == (
        f"state2 (memory:b): exactly-once: spout 'log' is transactional, the state is "
        f"{second.value}"
    )


def asks(first, second, *, behind=False):
    """Count words into a state, ask it (before the update, or behind it), and count the answers."""
    topology = TridentTopology("asks")
    stream = rows(topology)
    counts = stream.group_by("word").persistent_aggregate(
        MemoryMapState(first, "a"), Count(), out="count"
    )
    asked = counts.new_values_stream() if behind else stream
    asked = asked.state_query(counts, "word", MapGet(), out="found bigint")
    asked.group_by("found").persistent_aggregate(MemoryMapState(second, "b"), Count(), out="count")
    return topology


@pytest.mark.parametrize("second", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_what_asks_a_transactional_state_that_is_updated_too_is_not_exact(second):
    # It has no value from before a lost attempt, so a replay is answered by its own batch.
    topology = asks(StateKind.TRANSACTIONAL, second)
    why = (
        "state_query(MapGet) asks state1, a transactional state that is updated here too, and may "
        "find values there that a lost attempt at the same batch wrote"
    )

    assert said(topology) == [
        "state1 (memory:a): exactly-once: spout 'log' is transactional, the state is transactional",
        f"state2 (memory:b): not exactly-once: {why}",
    ]
    with pytest.raises(TopologyError) as refused:
        refuse_weak(topology.plan())
    assert str(refused.value) == (
        f"strict=True refuses state2: not exactly-once, because {why}. Make state1 opaque: it "
        "keeps the values from before the batch, or leave strict off."
    )


def test_what_follows_from_such_answers_is_not_exact_either():
    topology = TridentTopology("asks")
    stream = rows(topology)
    counts = stream.persistent_aggregate(memory(StateKind.TRANSACTIONAL), Count(), out="count")
    asked = stream.state_query(counts, SnapshotGet(), out="before bigint")
    second = asked.group_by("before").persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "b"), Count(), out="n"
    )
    second.new_values_stream().persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "c"), Count(), out="changes"
    )

    assert ": not exactly-once: state_query(SnapshotGet) asks state1" in said(topology)[1]
    assert said(topology)[2] == (
        "state3 (memory:c): not exactly-once: it follows from state2, which is not exactly-once"
    )


def test_a_state_that_asks_none_is_exact_beside_one_that_does():
    topology = asks(StateKind.TRANSACTIONAL, StateKind.OPAQUE)
    rows(topology, spout_id="other").group_by("word").persistent_aggregate(
        MemoryMapState(StateKind.TRANSACTIONAL, "c"), Count(), out="n"
    )

    assert said(topology)[2] == (
        "state3 (memory:c): exactly-once: spout 'other' is transactional, the state is "
        "transactional"
    )


def test_answers_of_a_state_that_is_not_exact_are_not_exact():
    assert said(asks(StateKind.NON_TRANSACTIONAL, StateKind.OPAQUE))[1] == (
        "state2 (memory:b): not exactly-once: it follows from state1, which is not exactly-once"
    )


@pytest.mark.parametrize("second", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_answers_of_an_opaque_state_are_the_same_in_a_replay(second):
    assert ": exactly-once: " in said(asks(StateKind.OPAQUE, second))[1]


@pytest.mark.parametrize("first", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_answers_behind_the_update_are_the_same_in_a_replay(first):
    topology = asks(first, StateKind.TRANSACTIONAL, behind=True)

    assert ": exactly-once: " in said(topology)[1]


@pytest.mark.parametrize(
    ("kind", "word"),
    [(StateKind.OPAQUE, "exactly-once"), (StateKind.TRANSACTIONAL, "not exactly-once")],
)
def test_a_static_state_may_change_so_what_asks_it_counts_as_opaque(kind, word):
    topology = TridentTopology("static")
    static = topology.new_static_state(MemoryMapState(StateKind.NON_TRANSACTIONAL, "s"))
    stream = rows(topology).state_query(static, "word", MapGet(), out="found bigint")
    stream.group_by("word").persistent_aggregate(MemoryMapState(kind, "a"), Count(), out="count")

    assert said(topology) == [
        f"state2 (memory:a): {word}: state_query(MapGet) asks state1, a static state, which may "
        f"change between attempts, the state is {kind.value}"
    ]


def test_a_static_state_that_the_topology_updates_is_not_asked_as_one():
    topology = TridentTopology("static")
    table = MemoryMapState(StateKind.OPAQUE, "a")
    stream = rows(topology)
    stream.group_by("word").persistent_aggregate(table, Count(), out="count")
    static = topology.new_static_state(table)
    stream.state_query(static, "word", MapGet(), out="found bigint").persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "b"), Count(), out="count"
    )

    assert said(topology)[1] == (
        "state3 (memory:b): not exactly-once: state_query(MapGet) asks state2 as a static state, "
        "but it is state1, which is updated here: the answers may hold the batch itself, or lack "
        "those before it"
    )


@pytest.mark.parametrize(
    ("kind", "word"),
    [(StateKind.OPAQUE, "exactly-once"), (StateKind.TRANSACTIONAL, "not exactly-once")],
)
def test_what_an_updater_emits_may_come_of_what_it_reads(kind, word):
    topology = TridentTopology("emits")
    table = MemoryMapState(kind, "a")
    state = rows(topology).partition_persist(table, "word", CountUp(), out="word string, n bigint")
    state.new_values_stream().persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "b"), Count(), out="count"
    )

    assert f"state2 (memory:b): {word}: " in said(topology)[1]


WITH_VARYING = {
    "function": (lambda s: s.each("n", Random(), out="r int"), "each(Random) is declared not"),
    "bad rows": (
        lambda s: s.filter("n", lambda n: n, on_error="dead_letter"),
        "puts bad rows aside",
    ),
    "static state": (
        lambda s: s.state_query(
            s.topology.new_static_state(MemoryMapState()), "word", MapGet(), out="found bigint"
        ),
        "a static state, which may change",
    ),
}


@pytest.mark.parametrize("way", WITH_VARYING)
def test_what_varies_must_not_be_computed_anew_within_an_attempt(way):
    make, why = WITH_VARYING[way]
    topology = TridentTopology("recomputed")
    make(rows(topology)).group_by("word").persistent_aggregate(
        memory(StateKind.OPAQUE), Count(), out="count"
    )
    plan = topology.plan()
    refuse_weak(plan)

    recomputing = replace(plan, recomputes=True)

    (line,) = guarantees(recomputing)
    assert ": not exactly-once: " in line
    assert why in line
    with pytest.raises(TopologyError) as refused:
        refuse_weak(recomputing)
    assert str(refused.value).endswith(
        "this Spark session may compute a lost part of a batch anew, so that rows are lost or "
        "doubled where it differs. Start the session with spark.stage.maxConsecutiveAttempts=1, or "
        "leave strict off."
    )


@every_cell
def test_what_does_not_vary_may_be_computed_anew(spout, state):
    plan = word_count(spout, memory(state)).plan()

    assert guarantees(replace(plan, recomputes=True)) == guarantees(plan)


def test_explain_prints_the_plan_its_phases_and_the_guarantees():
    topology = TridentTopology("printed")
    stream = rows(topology).each("word", expr("upper(word)"), out="loud string")
    state = stream.group_by("loud").persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, "m"), Count(), out="count"
    )
    stream.state_query(state, "loud", MapGet(), out="before bigint").name("look back")

    assert explain(topology.plan(), Config(max_spout_pending=4)).splitlines() == [
        "topology printed",
        "processing phase (up to 4 batches at once)",
        "   1  spout log  (word string, n bigint)",
        "   2 <- 1  each(upper(word))  (word string, n bigint, loud string)",
        "      JVM; computed once for 3 and 5; staged for the commit",
        "   3 <- 2  aggregate(Count)  (loud string, count bigint)",
        "      JVM; shuffle by loud; staged for the commit",
        "commit phase (one batch at a time, in txid order)",
        "   5 <- 2  look back on state1  (word string, n bigint, loud string, before bigint)",
        "      driver",
        "   4 <- 3  update of state1  (loud string, count bigint)",
        "      driver",
        "jobs per batch",
        "  a tiny batch (no more than 10,000 rows, or 1 MB in files), in one task: 2 jobs for "
        "processing, 1 for commit; no shuffle",
        "  while results fit the driver: 2 jobs for processing, 1 for commit; 1 shuffle",
        "    processing: 2 each(upper(word)), kept for 3 and 5",
        "    processing: 3 aggregate(Count), collected for the update of state1",
        "    commit: 5 look back, rows come to the driver to ask state1",
        "  in chunks, if they do not: 2 jobs for processing, 2 or more for commit; 1 shuffle",
        "    processing: 2 each(upper(word)), kept for 3 and 5",
        "    processing: 3 aggregate(Count), kept on the executors for the update of state1",
        "    commit: 5 look back, rows come to the driver to ask state1",
        "    commit: 4 update of state1, its rows come to the driver, a chunk at a time",
        "guarantees",
        "  state1 (memory:m): exactly-once: spout 'log' is transactional, the state is opaque",
    ]


def shout(batch):
    return batch


def test_operations_are_shown_by_the_name_of_the_users_function():
    topology = TridentTopology("named")
    stream = rows(topology).each("word", arrow_function(shout), out="loud string")
    capture(stream.each("word", len, out="size int"))

    titles = [node.title for node in topology.plan().nodes]

    assert titles[1:3] == ["each(shout)", "each(len)"]


def test_a_topology_without_states_has_no_guarantees_to_print():
    topology = TridentTopology("loose")
    rows(topology)

    assert explain(topology.plan(), Config(max_spout_pending=2)).splitlines() == [
        "topology loose",
        "processing phase (up to 2 batches at once)",
        "   1  spout log  (word string, n bigint)",
        "jobs per batch",
        "  every batch: 1 job for processing, 0 for commit; no shuffle",
        "    processing: 1 spout log, nobody reads it; computed all the same",
    ]


def test_submit_with_strict_refuses_before_spark_is_asked_for_anything(home):
    topology = word_count(SpoutKind.OPAQUE, memory(StateKind.TRANSACTIONAL))
    no_spark = object()

    with pytest.raises(TopologyError, match="strict=True refuses state1: not exactly-once"):
        submit(topology, no_spark, Config(strict=True))

    assert not home.exists()
