"""`multi_reduce`: the tuples of several streams, or of their groups, reduced together."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    GroupedMultiReducer,
    MultiReducer,
    TridentTopology,
    expr,
    grouped_multi_reducer,
    multi_reducer,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

PAID = [("ann", 5), ("bob", 7), ("ann", 1)]
OWED = [(3, "ann", "x"), (4, "cat", None), (9, None, "z")]


class Balance(GroupedMultiReducer[dict]):
    """What each has paid, less what each owes."""

    def init(self, collector, group):
        return {"sum": 0}

    def execute(self, value, stream_index, group, tuple, collector):
        value["sum"] += tuple["paid"] if stream_index == 0 else -tuple["owed"]

    def complete(self, value, group, collector):
        collector.emit((value["sum"],))


class Log(MultiReducer[list]):
    """Emits while it goes, and a total at the end."""

    def prepare(self, conf, context):
        self.prepared = (context.partition_index, context.num_partitions)

    def init(self, collector):
        return []

    def execute(self, value, stream_index, tuple, collector):
        value.append(stream_index)
        collector.emit((stream_index, ",".join(map(str, tuple.values))))

    def complete(self, value, collector):
        collector.emit((len(value), f"total on {self.prepared}"))


@grouped_multi_reducer
def sizes(group, paid, owed) -> tuple[int, int]:
    return len(paid), len(owed)


@multi_reducer
def both(paid, owed) -> int:
    return sum(t["paid"] for t in paid) - sum(t["owed"] for t in owed)


def build(look):
    topology = TridentTopology("operations")
    paid = topology.new_stream("paid", FixedBatchSpout("who string, paid bigint", 3, PAID))
    owed = topology.new_stream(
        "owed", FixedBatchSpout("owed bigint, name string, note string", 3, OWED)
    )
    groups = [paid.group_by("who"), owed.group_by("name")]
    look("example", topology.multi_reduce(groups, Balance(), "balance bigint"))
    look("function", topology.multi_reduce(groups, sizes, "paid, owed"))
    fields = [["paid"], ["note", "owed"]]
    look("log", topology.multi_reduce([paid, owed], Log(), "i int, what string", fields=fields))
    look("ungrouped", topology.multi_reduce([paid, owed], both, "left"))
    three = topology.multi_reduce([paid, owed, paid], lambda a, b, c: len(a + b + c), "n bigint")
    look("three", three)
    no_paid, no_owed = paid.filter("paid", lambda p: p < 0), owed.filter("owed", lambda o: o < 0)
    look("nothing", topology.multi_reduce([no_paid, no_owed], both, "left"))
    none = [no_paid.group_by("who"), no_owed.group_by("name")]
    look("nothing grouped", topology.multi_reduce(none, Balance(), "balance bigint"))
    if look.on_spark:
        spread = topology.multi_reduce([paid, owed], both, "left").parallelism_hint(3)
        look("three partitions", spread)
        gone = paid.filter(expr("1 = 2")), owed.filter(expr("owed < 0"))
        empty = topology.multi_reduce(gone, both, "left").parallelism_hint(3)
        look("three empty partitions", empty)
        wide = topology.multi_reduce(groups, Balance(), "balance bigint").parallelism_hint(3)
        look("groups on three", wide)
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("ann", 3), ("bob", 7), ("cat", -4), (None, -9)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_function_takes_the_tuples_of_each_stream(ran):
    assert ran["function"] == [("ann", 2, 1), ("bob", 1, 0), ("cat", 0, 1), (None, 0, 1)]
    assert ran["ungrouped"] == [(13 - 16,)]
    assert ran["three"] == [(9,)]


def test_it_sees_the_fields_asked_for_and_emits_when_it_likes(ran):
    assert ran["log"] == sorted(
        [(0, "5"), (0, "7"), (0, "1"), (1, "x,3"), (1, "None,4"), (1, "z,9"),
         (6, "total on (0, 1)")],
        key=repr,
    )  # fmt: skip


def test_nothing_gives_one_result_ungrouped_and_none_grouped(ran):
    assert (ran["nothing"], ran["nothing grouped"]) == ([(0,)], [])


def test_with_a_hint_each_partition_reduces_its_own_also_an_empty_one(ran):
    assert len(ran["three partitions"]) == 3
    assert sum(left for (left,) in ran["three partitions"]) == 13 - 16
    assert ran["three empty partitions"] == [(0,)] * 3


def test_groups_stay_together_on_any_number_of_partitions(ran):
    assert ran["groups on three"] == ran["example"]
