"""`join_static` without Spark: rows with a table of the process, and with a state."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.trident.support import capture
from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import Count, TridentTopology
from waterspout.trident.plan.verdicts import verdict_of

ORDERS = [(1, "tea"), (1, "cup"), (2, "pot"), (None, "lost")]
PEOPLE = pa.table({"id": [1, 3, 1], "name": ["Ann", "Bea", "Amy"], "age": [30, 40, 50]})


def orders_of(spout=None):
    topology = TridentTopology("joined")
    spout = spout or FixedBatchSpout("id bigint, item string", 3, ORDERS)
    return topology, topology.new_stream("orders", spout)


def test_a_table_adds_its_fields_to_the_rows_of_the_same_key():
    topology, orders = orders_of()
    inner = capture(orders.join_static(PEOPLE, on="id"))
    left = capture(orders.join_static(PEOPLE.to_pandas(), on="id", how="left", out="who, years"))
    named = orders.join_static(
        PEOPLE.rename_columns(["person", "name", "age"]), on={"id": "person"}, out="who, years"
    )
    renamed = capture(named)

    run_in_process(topology)

    assert named.schema.names == ("id", "item", "who", "years")
    pairs = [("Amy", 50), ("Ann", 30)]
    both = sorted((1, item, *pair) for item in ("tea", "cup") for pair in pairs)
    assert sorted(inner.rows) == sorted(renamed.rows) == both
    missing = [(2, "pot", None, None), (None, "lost", None, None)]
    assert sorted(left.rows, key=repr) == sorted([*both, *missing], key=repr)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_state_adds_the_columns_of_its_values(how, tmp_path):
    store = SQLiteState.opaque(tmp_path / "s.db", table="people")
    writing = TridentTopology("people")
    writing.new_stream(
        "people", FixedBatchSpout("person bigint, name string", 9, [(1, "Ann"), (2, "Bo")])
    ).group_by("person").persistent_aggregate(store, Count(), "n")
    run_in_process(writing)
    topology, orders = orders_of()
    people = topology.new_static_state(store, keys="person bigint", values="n bigint")
    kept = capture(orders.join_static(people, on={"id": "person"}, how=how))

    run_in_process(topology)

    there = [(1, "cup", 1), (1, "tea", 1), (2, "pot", 1)]
    assert kept.rows == sorted(there + [(None, "lost", None)] * (how == "left"), key=repr)


def test_a_state_that_the_topology_updates_answers_with_the_batches_before():
    topology, orders = orders_of(FixedBatchSpout("id bigint, item string", 2, ORDERS[:2] * 2))
    counts = orders.group_by("id").persistent_aggregate(MemoryMapState(), Count(), "n")
    kept = capture(orders.join_static(counts, on="id"))

    run_in_process(topology)

    assert kept.batches == {2: [(1, "cup", 2), (1, "tea", 2)]}


def test_what_a_table_joins_counts_as_opaque(tmp_path):
    topology, orders = orders_of()
    joined = orders.join_static(PEOPLE, on="id")
    joined.group_by("name").persistent_aggregate(
        SQLiteState.transactional(tmp_path / "s.db", table="t"), Count(), "n"
    )

    plan = topology.plan(Config())

    verdict = verdict_of(plan, plan.updates["state1"])
    assert not verdict.exact
    assert "table (id bigint, name string, age bigint) may change between attempts" in verdict.why
    assert "1 more for a join of which Spark sends a small side to all tasks" in topology.explain()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s, t: s.join_static(PEOPLE, on="item"), "asks for field 'item'"),
        (lambda s, t: s.join_static(PEOPLE, on={"item": "id"}), "'item' is string.*'id' is bigint"),
        (lambda s, t: s.join_static(PEOPLE, on=[]), "needs the field to join by"),
        (lambda s, t: s.join_static(PEOPLE, on="id", how="outer"), "'inner' or 'left'"),
        (lambda s, t: s.join_static(PEOPLE, on="id", out="a"), "adds 2 fields"),
        (lambda s, t: s.join_static(PEOPLE, on="id", out="item, b"), "adds field 'item'"),
        (lambda s, t: s.join_static([1, 2], on="id"), "joins a DataFrame"),
        (lambda s, t: s.join_static(MemoryMapState(), on="id"), "new_static_state"),
        (
            lambda s, t: s.join_static(t.new_static_state(MemoryMapState()), on="id"),
            "fields of state1 are not known",
        ),
        (
            lambda s, t: s.join_static(
                t.new_static_state(MemoryMapState(), keys="id bigint, b int", values="v int"), "id"
            ),
            "does not say what 'b' is",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_when_the_topology_is_built(build, message):
    topology, orders = orders_of()

    with pytest.raises(TopologyError, match=message):
        build(orders, topology)
