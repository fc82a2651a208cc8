"""Whole topologies in this process, without Spark: the same operations, plan and states."""

from __future__ import annotations

import pytest

from tests.trident.support import Capture, Keep, capture
from waterspout import Config, FailedException
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import (
    CombinerAggregator,
    Count,
    Function,
    MapGet,
    Split,
    Sum,
    TridentTopology,
    expr,
)

# The data and the totals of storm-starter's TridentWordCount.
SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "to be or not to be the person",
]
OFTEN = {"the": 5, "to": 3, "and": 2, "be": 2}
COUNTS = {**dict.fromkeys(" ".join(SENTENCES).split(), 1), **OFTEN}


def word_count(spout=None, split=None):
    topology = TridentTopology("wordcount")
    state = (
        topology.new_stream("spout1", spout or FixedBatchSpout("sentence", 3, SENTENCES))
        .each("sentence", split or Split(), out="word")
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), out="count")
        .parallelism_hint(6)
    )
    return topology, state


def found(state, words=COUNTS):
    return dict(zip(words, state.multi_get([(word,) for word in words]), strict=True))


@pytest.mark.parametrize("pending", [1, 20])
def test_the_word_count_of_storm_starter_has_storms_totals(pending):
    topology, state = word_count()

    run_in_process(topology, Config(max_spout_pending=pending))

    assert found(state) == COUNTS
    assert len(COUNTS) == 28
    assert state.get("absent") is None


class FailsEveryOther(Split):
    """Fails each batch once, as DebugMemoryMapState does."""

    calls = 0

    def execute(self, tuple, collector):
        FailsEveryOther.calls += 1
        if FailsEveryOther.calls in (2, 4, 7):
            raise FailedException("again")
        super().execute(tuple, collector)


def test_replays_change_no_count():
    topology, state = word_count(split=FailsEveryOther())

    run_in_process(topology, Config(max_spout_pending=2, retry_backoff_millis=0))

    assert found(state) == COUNTS
    assert FailsEveryOther.calls > len(SENTENCES)


def test_a_crash_of_user_code_stops_after_the_retries():
    class Broken(Function):
        def execute(self, tuple, collector):
            raise ZeroDivisionError("broken for good")

        def output_types(self, inputs):
            return ["string"]

    topology, _ = word_count(split=Broken())

    with pytest.raises(ZeroDivisionError, match="broken for good"):
        run_in_process(topology, Config(max_retries=2, retry_backoff_millis=0))


def test_a_global_sum_counts_every_tuple_once():
    topology = TridentTopology("total")
    numbers = topology.new_stream("numbers", FixedBatchSpout("n", 7, range(1, 101)))
    total = numbers.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total")

    run_in_process(topology)

    assert total.get() == 5050


class Ids(CombinerAggregator[list]):
    def init(self, tuple):
        return [tuple[0]]

    def combine(self, left, right):
        return [*left, *right]

    def zero(self):
        return []


def test_new_values_feed_a_second_state():
    topology = TridentTopology("chain")
    counts = (
        topology.new_stream("words", FixedBatchSpout("word", 2, list("abacab")))
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), out="count")
    )
    seen = (
        counts.new_values_stream()
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), "count", Ids(), out="seen array<bigint>")
    )

    run_in_process(topology)

    # Batches: ab, ac, ab.
    assert seen.multi_get(["a", "b", "c"]) == [[1, 2, 3], [1, 2], [1]]


def test_a_query_on_its_own_state_sees_exactly_the_batches_before():
    topology = TridentTopology("looks-back")
    words = topology.new_stream("words", FixedBatchSpout("word", 2, list("aabaab")))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    before = capture(words.state_query(counts, "word", MapGet(), out="count"))

    run_in_process(topology, Config(max_spout_pending=3))

    assert before.batches == {
        1: [("a", None), ("a", None)],
        2: [("a", 2), ("b", None)],
        3: [("a", 3), ("b", 1)],
    }


def test_a_static_state_is_seen_as_its_own_topology_left_it():
    shared = MemoryMapState()
    writer = TridentTopology("writer")
    (
        writer.new_stream("words", FixedBatchSpout("word", 1, list("aab")))
        .group_by("word")
        .persistent_aggregate(shared, Count(), out="count")
    )
    run_in_process(writer)
    reader = TridentTopology("reader")
    words = reader.new_stream("words", FixedBatchSpout("word", 1, list("ab")))
    static = reader.new_static_state(shared)
    early = capture(words.state_query(static, "word", MapGet(), out="count bigint"))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="n")
    # In the commit phase too: this topology's batches say nothing about the other's state.
    late = capture(
        counts.new_values_stream().state_query(static, "word", MapGet(), out="count bigint")
    )

    run_in_process(reader)

    assert early.rows == [("a", 2), ("b", 1)]
    assert late.rows == [("a", 1, 2), ("b", 1, 1)]


def test_several_sources_and_states_share_their_batches():
    topology = TridentTopology("both")
    left = topology.new_stream("left", FixedBatchSpout("n", 1, [1, 2, 3]))
    right = topology.new_stream("right", FixedBatchSpout("n", 2, [10, 20, 30, 40, 50]))
    kept = Capture()
    left.partition_persist(kept, "n", Keep())
    total = right.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total")

    run_in_process(topology)

    assert kept.batches == {1: [(1,)], 2: [(2,)], 3: [(3,)]}
    assert total.get() == 150


def test_a_spark_expression_is_refused_without_spark():
    topology = TridentTopology("sql")
    words = topology.new_stream("words", FixedBatchSpout("word", 1, ["a"]))
    words.each("word", expr("upper(word)"), out="loud string")

    with pytest.raises(TopologyError, match=r"each\(upper\(word\)\) is a Spark expression; run it"):
        run_in_process(topology, Config(max_retries=0))
