"""Operations in streams, without Spark: the plain forms and the built-ins where users put them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from tests.trident.support import capture
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import (
    Average,
    CollectSet,
    Count,
    CountDistinct,
    FirstN,
    MapGet,
    SnapshotGet,
    TopN,
    TridentTopology,
    TupleCollectionGet,
    aggregator,
    arrow_aggregator,
    combiner,
    multi_reducer,
    nondeterministic,
    pandas_aggregator,
    query,
    reducer,
    updater,
)

SALES = [("ann", 3), ("bob", 5), ("ann", 4), ("cat", None), ("bob", 5), ("dan", 1)]


def sales(size=2):
    topology = TridentTopology("sales")
    return topology, topology.new_stream(
        "sales", FixedBatchSpout("user string, amount bigint", size, SALES)
    )


def test_functions_with_annotations_need_no_types():
    def double(amount) -> int:
        return (amount or 0) * 2

    def initials(user) -> Iterator[tuple[str, int]]:
        yield user[0], len(user)

    topology, stream = sales()
    kept = capture(
        stream.each("amount", double, out="twice").each("user", initials, out="first, length"),
        "first", "length", "twice",
    )  # fmt: skip

    run_in_process(topology)

    assert kept.rows == sorted((user[0], 3, (n or 0) * 2) for user, n in SALES)


def test_map_flat_map_and_peek_take_plain_functions():
    seen = []

    def swap(user, amount) -> tuple[int, str]:
        return amount, user

    topology, stream = sales()
    swapped = stream.map(swap, out="n, who")
    letters = stream.peek(lambda user, amount: seen.append(user)).flat_map(
        lambda user, amount: list(user), out="letter string"
    )
    kept, spelled = capture(swapped), capture(letters)

    run_in_process(topology)

    assert str(swapped.schema) == "n bigint, who string"
    assert kept.rows == sorted(((n, user) for user, n in SALES), key=repr)
    assert len(spelled.rows) == 18
    assert sorted(seen) == sorted(user for user, _ in SALES)


def test_a_missing_type_is_refused_when_the_topology_is_built():
    _, stream = sales()

    with pytest.raises(TopologyError, match=r'out="n string", or annotate'):
        stream.each("user", lambda user: user, out="n")
    with pytest.raises(TopologyError, match='out="n string"'):
        stream.aggregate("amount", aggregator(lambda rows: 1), out="n")


@reducer(init=0)
def total(so_far, amount) -> int:
    return so_far + (amount or 0)


@aggregator
def biggest(rows) -> list[tuple[str, int]]:
    known = [(r["user"], r["amount"]) for r in rows if r["amount"] is not None]
    return sorted(known, key=lambda pair: -pair[1])[:1]


@arrow_aggregator
def arrow_total(table) -> int:
    return pc.sum(table["amount"], min_count=0)


@pandas_aggregator
def pandas_users(frame) -> list[str]:
    return sorted(set(frame["user"]))


def test_aggregators_of_every_form_see_the_batch():
    topology, stream = sales(size=6)
    kept = {
        "reducer": capture(stream.aggregate("amount", total, out="n")),
        "combiner": capture(stream.aggregate("user", combiner(len, max, 0, "int"), out="longest")),
        "aggregator": capture(stream.aggregate(biggest, out="who, n")),
        "arrow": capture(stream.aggregate("amount", arrow_total, out="n")),
        "pandas": capture(stream.aggregate("user", pandas_users, out="who")),
        "top": capture(stream.aggregate(TopN(2, ["user", "amount"], by="amount"), out="top")),
    }

    run_in_process(topology)

    assert {form: found.rows for form, found in kept.items()} == {
        "reducer": [(18,)],
        "combiner": [(3,)],
        "aggregator": [("bob", 5)],
        "arrow": [(18,)],
        "pandas": [("ann",), ("bob",), ("cat",), ("dan",)],
        "top": [([{"user": "bob", "amount": 5}, {"user": "bob", "amount": 5}],)],
    }


def test_grouped_aggregators_of_every_form_see_each_group():
    topology, stream = sales(size=6)
    by_user = stream.group_by("user")
    kept = {
        "reducer": capture(by_user.aggregate("amount", total, out="n")),
        "arrow": capture(by_user.aggregate("amount", arrow_total, out="n")),
        "mean": capture(by_user.aggregate("amount", Average(), out="mean")),
    }

    run_in_process(topology)

    totals = [("ann", 7), ("bob", 10), ("cat", 0), ("dan", 1)]
    assert kept["reducer"].rows == kept["arrow"].rows == totals
    assert kept["mean"].rows == [("ann", 3.5), ("bob", 5.0), ("cat", None), ("dan", 1.0)]


def test_what_finishes_is_finished_for_readers_queries_and_new_values():
    topology, stream = sales()
    users = stream.persistent_aggregate(MemoryMapState(), "user", CountDistinct(), out="users")
    means = stream.group_by("user").persistent_aggregate(
        MemoryMapState(), "amount", Average(), out="mean"
    )
    names = stream.persistent_aggregate(MemoryMapState(), "user", CollectSet(), out="names")
    news = capture(means.new_values_stream())
    asked = capture(stream.state_query(means, "user", MapGet(), out="so_far"), "user", "so_far")
    known = capture(stream.state_query(users, "user", SnapshotGet(), out="known"), "known")

    run_in_process(topology)

    assert users.get() == 4
    assert names.get() == ["ann", "bob", "cat", "dan"]
    assert means.multi_get(["ann", "bob", "cat", "nobody"]) == [3.5, 5.0, None, None]
    assert news.batches[2] == [("ann", 3.5), ("cat", None)]
    assert asked.batches[3] == [("bob", 5.0), ("dan", None)]
    assert known.batches[3] == [(3,), (3,)]


def test_the_first_n_of_a_batch():
    topology, stream = sales(size=6)
    kept = capture(stream.apply_assembly(FirstN(2, "amount", reverse=True)))
    least = capture(stream.apply_assembly(FirstN(2, "amount")))

    run_in_process(topology)

    assert kept.rows == [("bob", 5), ("bob", 5)]
    assert least.rows == [("cat", None), ("dan", 1)]


def test_a_choice_by_arrival_makes_a_stream_opaque():
    topology, stream = sales(size=6)
    first = stream.apply_assembly(FirstN(2))
    first.group_by("user").persistent_aggregate(MemoryMapState(), Count(), out="n")

    assert "FirstN(2)) is declared not deterministic" in topology.explain()


def test_a_marked_function_makes_a_stream_opaque():
    topology, stream = sales()
    marked = stream.each("user", nondeterministic(lambda user: user), out="who string")
    marked.group_by("who").persistent_aggregate(MemoryMapState(), Count(), out="n")

    assert "<lambda>) is declared not deterministic" in topology.explain()


def test_every_tuple_of_a_state_is_asked_for():
    topology, stream = sales(size=3)
    counts = stream.group_by("user").persistent_aggregate(MemoryMapState(), Count(), out="n")
    asked = stream.state_query(counts, "user", TupleCollectionGet(), out="who string, n bigint")
    kept = capture(asked, "user", "who", "n")

    run_in_process(topology)

    assert kept.batches == {
        2: sorted((u, who, n) for u in ("cat", "bob", "dan") for who, n in [("ann", 2), ("bob", 1)])
    }


def test_a_query_and_an_updater_are_plain_functions():
    @query
    def is_rich(state, tuples) -> list[bool]:
        return [(n or 0) > 4 for n in state.multi_get([t.values for t in tuples])]

    @updater
    def keep_largest(state, tuples):
        for row in tuples:
            state.multi_put([(row["user"],)], [row["amount"] or 0])
            yield row["user"], row["amount"]

    topology, stream = sales(size=6)
    state = stream.partition_persist(
        MemoryMapState().bind(Schema.parse("user string"), Schema.parse("n bigint")),
        ["user", "amount"],
        keep_largest,
        out="user string, n bigint",
    )
    again = TridentTopology("asks")
    asked = again.new_stream("who", FixedBatchSpout("user string", 9, [("bob",), ("dan",)]))
    static = again.new_static_state(topology.state_spec(state.name).factory)
    kept = capture(asked.state_query(static, "user", is_rich, out="rich"))
    news = capture(state.new_values_stream())

    run_in_process(topology)
    run_in_process(again)

    assert news.rows == sorted(SALES, key=repr)
    assert kept.rows == [("bob", True), ("dan", False)]


def test_a_multi_reducer_is_a_plain_function():
    @multi_reducer
    def common(left, right):
        for one in left:
            if any(other["who"] == one["user"] for other in right):
                yield one["user"], one["amount"]

    topology, stream = sales(size=6)
    others = stream.filter("amount", lambda n: n == 5).map(lambda user, n: user, out="who string")
    kept = capture(topology.multi_reduce([stream, others], common, out="user string, n bigint"))

    run_in_process(topology)

    assert kept.rows == [("bob", 5), ("bob", 5)]
