"""`new_values_stream`: the keys that a batch changed, with their new values."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import Where, placed, ran_once, stream_of
from waterspout.state import MemoryMapState
from waterspout.trident import Count, Sum, expr, reducer

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), (None, 5)]


@reducer(init=100)
def less(value, n) -> int:
    return value - n


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS, size=2)
    words = stream.group_by("word")
    counts = words.persistent_aggregate(MemoryMapState(), Count(), out="count")
    look("example", counts.new_values_stream())
    total = stream.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total")
    look("global", total.new_values_stream())
    reduced = words.persistent_aggregate(MemoryMapState(), "n", less, out="left")
    look("reduced", reduced.new_values_stream())
    again = counts.new_values_stream().filter("count", lambda c: c > 1).group_by("count")
    third = again.persistent_aggregate(MemoryMapState(), Count(), out="how_many")
    look("a third state", third.new_values_stream())
    nothing = stream.filter("n", lambda n: n == 3)
    rare = nothing.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    look("seldom", rare.new_values_stream())
    new = counts.new_values_stream()
    look("joined", topology.join(new, "word", stream, "word", out="word, count, n"))
    look("merged", topology.merge(new, stream))
    together = topology.multi_reduce(
        [new.group_by("word"), words], lambda word, new, old: len(new) + len(old), "rows bigint"
    )
    look("reduced together", together)
    if look.on_spark:
        loud = counts.new_values_stream().each("word", expr("upper(word)"), out="loud string")
        look("sql", loud, "loud", "count")
        spread = counts.new_values_stream().partition_by("word").parallelism_hint(3)
        look("per partition", spread.partition_aggregate(Count(), out="rows"))
        hinted = counts.new_values_stream().parallelism_hint(2)
        look("hinted", hinted.partition_aggregate(Count(), out="rows"))
        moved = spread.each("word", Where(), out="was, of_was").identity_partition()
        look("places", placed(moved), "was", "at")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran.batches("example") == {
        1: [("a", 1), ("b", 1)],
        2: [("a", 2), ("c", 1)],
        3: [(None, 1)],
    }


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_global_state_gives_one_value_a_batch(ran):
    assert ran.batches("global") == {1: [(3,)], 2: [(10,)], 3: [(15,)]}


def test_a_reducers_values(ran):
    assert ran.batches("reduced") == {
        1: [("a", 99), ("b", 98)],
        2: [("a", 96), ("c", 96)],
        3: [(None, 95)],
    }


def test_they_can_feed_another_state(ran):
    assert ran.batches("a third state") == {2: [(2, 1)]}


def test_a_batch_that_changes_nothing_gives_nothing(ran):
    assert ran.batches("seldom") == {2: [("a", 1)]}


def test_they_can_be_joined_and_merged_with_the_batch_that_made_them(ran):
    counted = {1: {"a": 1, "b": 1}, 2: {"a": 2, "c": 1}, 3: {None: 1}}
    batches = {1: ROWS[:2], 2: ROWS[2:4], 3: ROWS[4:]}

    assert ran.batches("joined") == {
        txid: sorted(((w, counted[txid][w], n) for w, n in rows), key=repr)
        for txid, rows in batches.items()
    }
    assert ran.batches("merged") == {
        txid: sorted([*rows, *counted[txid].items()], key=repr) for txid, rows in batches.items()
    }
    assert ran.batches("reduced together") == {
        txid: [(word, 2) for word in found] for txid, found in counted.items()
    }


def test_an_expression_may_follow(ran):
    assert ran["sql"] == [("A", 1), ("A", 2), ("B", 1), ("C", 1), (None, 1)]


def test_they_can_be_spread_over_partitions(ran):
    for name, partitions in {"per partition": 3, "hinted": 2}.items():
        for txid, rows in ran.batches(name).items():
            assert len(rows) == partitions, (name, txid)
            assert sum(n for (n,) in rows) == len(ran.batches("example")[txid]), (name, txid)
    assert all(was == at for was, at in ran["places"])
