"""`state_query`: what a state answers, appended to each tuple."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.errors import RunFailedError
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, MapGet, QueryFunction, SnapshotGet, Sum, query

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("c", 6)]


class Several(QueryFunction):
    """Emits nothing for what is not there, and as many tuples as were counted."""

    def batch_retrieve(self, state, tuples):
        return state.multi_get([tuple.values for tuple in tuples])

    def execute(self, tuple, result, collector):
        for i in range(result or 0):
            collector.emit((i, tuple["word"] * 2))


@query
def known(state, tuples) -> list[bool]:
    return [count is not None for count in state.multi_get([t.values for t in tuples])]


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS, size=2)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    total = stream.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total")
    look("example", stream.state_query(counts, "word", MapGet(), out="so_far"), "word", "so_far")
    look("snapshot", stream.state_query(total, SnapshotGet(), out="before"), "n", "before")
    several = stream.state_query(counts, "word", Several(), out="i bigint, twice string")
    look("several", several, "n", "i", "twice")
    look("function", stream.state_query(counts, "word", known, out="known"), "n", "known")
    both = stream.state_query(counts, "word", MapGet(), out="c").state_query(
        total, SnapshotGet(), out="t"
    )
    look("two states", both, "n", "c", "t")
    none = stream.filter("n", lambda n: n < 0).state_query(counts, "word", MapGet(), out="c")
    look("nothing", none)
    if look.on_spark:
        spread = stream.partition_by("n").parallelism_hint(3)
        asked = placed(spread).state_query(counts, "word", MapGet(), out="c")
        asked = asked.project(["word", "n", "c", "at"]).map(
            lambda w, n, c, at: (w, n, c, at), out="word string, n bigint, c bigint, was int"
        )
        alone = stream.global_().state_query(counts, "word", MapGet(), out="c")
        alone = alone.each("n", lambda n: "x", out="all string").group_by("all")
        look("one partition", alone.partition_aggregate(Count(), out="rows"))
        look("places", placed(asked), "word", "was", "at")
        look("counted there", asked.partition_aggregate(Count(), out="rows"))
        look("none there", asked.filter("n", lambda n: n < 0).partition_aggregate(Count(), out="r"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """A query sees exactly the batches before its own."""
    assert ran.batches("example") == {
        1: [("a", None), ("b", None)],
        2: [("a", 1), ("b", 1)],
        3: [("a", 2), ("c", None)],
    }


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_global_state_gives_its_one_value(ran):
    assert ran["snapshot"] == [(1, None), (2, None), (3, 3), (4, 3), (5, 10), (6, 10)]


def test_a_query_may_emit_no_tuple_or_several(ran):
    assert ran["several"] == [(3, 0, "aa"), (4, 0, "bb"), (5, 0, "aa"), (5, 1, "aa")]


def test_a_query_may_be_a_function(ran):
    assert ran["function"] == [
        (1, False), (2, False), (3, True), (4, True), (5, True), (6, False),
    ]  # fmt: skip


def test_one_query_after_another(ran):
    assert ran["two states"] == sorted(
        [(1, None, None), (2, None, None), (3, 1, 3), (4, 1, 3), (5, 2, 10), (6, None, 10)],
        key=repr,
    )


def test_an_empty_batch_asks_nothing(ran):
    assert ran["nothing"] == []


def test_tuples_stay_on_their_partitions(ran):
    assert all(was == at for _, was, at in ran["places"])
    assert len({at for _, _, at in ran["places"]}) > 1
    for rows in (ran.batches("counted there"), ran.batches("none there")):
        assert [len(found) for found in rows.values()] == [3, 3, 3]


def test_tuples_of_one_partition_stay_together(ran):
    assert ran.batches("one partition") == {txid: [("x", 2)] for txid in (1, 2, 3)}


class Forgetful(QueryFunction):
    def batch_retrieve(self, state, tuples):
        return []

    def execute(self, tuple, result, collector):
        collector.emit((result,))


def test_another_number_of_answers_than_tuples_stops_the_run(spark, tmp_path):
    topology, stream = stream_of("word string", ["a", "b"])
    static = topology.new_static_state(SQLiteState.opaque(tmp_path / "x.db", table="t"))
    capture(stream.state_query(static, "word", Forgetful(), out="c bigint"))

    with pytest.raises(RunFailedError, match="0 answers for 2 tuples"):
        finish(topology, spark, Config(max_retries=0), timeout=200)
