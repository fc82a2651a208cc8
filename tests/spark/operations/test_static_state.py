"""`new_static_state`: a state that the topology only reads."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, run_both, stream_of
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import (
    Count,
    MapGet,
    SnapshotGet,
    Sum,
    TridentTopology,
    TupleCollectionGet,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

PRICES = [("tea", 3), ("pot", 20)]


def filled(name, by_item, total):
    """Another topology has written the states."""
    topology = TridentTopology(name)
    prices = topology.new_stream("prices", FixedBatchSpout("item string, price bigint", 5, PRICES))
    prices.group_by("item").persistent_aggregate(by_item, "price", Sum(), out="price")
    if total is not None:
        prices.persistent_aggregate(total, "price", Sum(), out="total")
    run_in_process(topology)


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("static")
    file = SQLiteState.opaque(folder / "prices.db", table="prices")
    memory = MemoryMapState()
    total = SQLiteState.opaque(folder / "prices.db", table="total")
    for name, factory in {"in-a-file": file, "in-memory": memory}.items():
        filled(name, factory, total if factory is file else None)

    def build(look):
        topology, orders = stream_of("item string, n bigint", [("tea", 2), ("cup", 1), ("tea", 4)])
        prices = topology.new_static_state(file, keys="item string", values="price bigint")
        look("example", orders.state_query(prices, "item", MapGet(), out="price"))
        totals = topology.new_static_state(total, values="total bigint")
        look("global", orders.state_query(totals, SnapshotGet(), out="total"), "n", "total")
        known = topology.new_static_state(memory)
        look("memory", orders.state_query(known, "item", MapGet(), out="price bigint"))
        every = orders.filter("n", lambda n: n == 1).state_query(
            prices, TupleCollectionGet(), out="other, price"
        )
        look("all", every)
        if look.on_spark:
            spread = orders.partition_by("item").parallelism_hint(3)
            for name, state in {"file": prices, "memory": known}.items():
                asked = spread.state_query(state, "item", MapGet(), out="price bigint")
                look(f"in {name}", asked.group_by("item").partition_aggregate(Count(), out="c"))
                look(f"places in {name}", placed(asked), "item", "at", "of")
                none = spread.filter("n", lambda n: n < 0)
                none = none.state_query(state, "item", MapGet(), out="price bigint")
                look(f"empty in {name}", none.partition_aggregate(Count(), out="c"))
        return topology

    return run_both(build, spark, folder)


def test_the_documented_example(ran):
    assert ran["example"] == [("cup", 1, None), ("tea", 2, 3), ("tea", 4, 3)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_state_that_only_the_driver_reaches_answers_the_same(ran):
    assert ran["memory"] == ran["example"]


def test_a_state_of_one_value(ran):
    assert ran["global"] == [(1, 23), (2, 23), (4, 23)]


def test_the_whole_state_can_be_listed(ran):
    assert ran["all"] == [("cup", 1, "pot", 20), ("cup", 1, "tea", 3)]


@pytest.mark.parametrize("where", ["file", "memory"])
def test_tuples_stay_on_their_partitions(ran, where):
    places = {(item, at) for item, at, _ in ran[f"places in {where}"]}

    assert len(places) == 2
    assert ran[f"in {where}"] == [("cup", 1), ("tea", 2)]
    assert ran[f"empty in {where}"] == [(0,), (0,), (0,)]
