"""Joins, chains and repartitionings against the plainest code that does the same."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.trident.support import capture
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import (
    Aggregator,
    Count,
    Sum,
    TridentTopology,
    grouped_multi_reducer,
)

KEYS = st.none() | st.sampled_from(["", "a", "b", "c"])
ROWS = st.lists(st.tuples(KEYS, st.none() | st.integers(-9, 9)), max_size=8)
KINDS = st.sampled_from(["inner", "outer"])


def three_streams(sides):
    topology = TridentTopology("property")
    streams = [
        topology.new_stream(f"s{i}", FixedBatchSpout(f"k{i} string, v{i} bigint", 100, rows))
        for i, rows in enumerate(sides)
    ]
    return topology, streams


def nested_loops(sides, kinds):
    """For each key that any side has: a row for each choice of one tuple of each side."""
    for key in {key for side in sides for key, _ in side}:
        found = [[row for row in side if row[0] == key] for side in sides]
        if all(rows or kind == "outer" for rows, kind in zip(found, kinds, strict=True)):
            yield from (
                (key, choice) for choice in itertools.product(*(f or [None] for f in found))
            )


@given(sides=st.lists(ROWS, min_size=2, max_size=3), data=st.data())
def test_a_join_is_nested_loops(sides, data):
    kinds = data.draw(st.lists(KINDS, min_size=len(sides), max_size=len(sides)))
    topology, streams = three_streams(sides)
    keys = [f"k{i}" for i in range(len(sides))]
    values = ", ".join(f"v{i}" for i in range(len(sides)))
    every = ", ".join(f"a{i}, b{i}" for i in range(len(sides)))
    compact = capture(topology.join(streams, keys, out=f"k, {values}", how=kinds))
    preserved = capture(topology.join(streams, keys, out=every, how=kinds, mode="preserve"))

    run_in_process(topology)

    rows = list(nested_loops(sides, kinds))
    assert compact.rows == sorted(
        ((key, *(row and row[1] for row in choice)) for key, choice in rows), key=repr
    )
    assert preserved.rows == sorted(
        (tuple(itertools.chain(*(row or (None, None) for row in choice))) for _, choice in rows),
        key=repr,
    )


@given(sides=st.lists(ROWS, min_size=3, max_size=3))
def test_a_merge_is_all_tuples_and_a_grouped_reduction_sees_each_once(sides):
    topology, streams = three_streams(sides)
    merged = capture(topology.merge(*streams))

    @grouped_multi_reducer
    def sizes(group, a, b, c) -> tuple[int, int, int]:
        return len(a), len(b), len(c)

    groups = [stream.group_by(f"k{i}") for i, stream in enumerate(streams)]
    reduced = capture(topology.multi_reduce(groups, sizes, "x, y, z"))

    run_in_process(topology)

    assert merged.rows == sorted(itertools.chain(*sides), key=repr)
    keys = {key for side in sides for key, _ in side}
    assert reduced.rows == sorted(
        ((key, *([k for k, _ in side].count(key) for side in sides)) for key in keys), key=repr
    )


class Every(Aggregator[list]):
    """Emits what it was given, as often."""

    def init(self, batch_id, collector):
        return []

    def aggregate(self, value, tuple, collector):
        value.append(tuple[0])

    def complete(self, value, collector):
        for one in value:
            collector.emit((one,))


@given(rows=ROWS)
def test_a_chain_gives_the_cross_product_of_each_group_in_order(rows):
    topology, (stream,) = three_streams([rows])
    by_key = stream.group_by("k0").chained_agg().aggregate("v0", Every(), "a bigint")
    by_key = by_key.aggregate(Count(), out="n").aggregate("v0", Every(), "b bigint")
    whole = (
        stream.chained_agg().aggregate("v0", Sum(), out="s").aggregate("v0", Every(), "v bigint")
    )
    kept, of_all = capture(by_key.chain_end()), capture(whole.chain_end())

    run_in_process(topology)

    groups: dict[str | None, list[int | None]] = {}
    for key, value in rows:
        groups.setdefault(key, []).append(value)
    assert kept.in_order == [
        (key, *made)
        for key, values in groups.items()
        for made in itertools.product(values, [len(values)], values)
    ]
    values = [value for _, value in rows]
    assert of_all.in_order == list(itertools.product([sum(v or 0 for v in values)], values))


class Doubling:
    """Sends each tuple to every partition."""

    def prepare(self, context, stream, target_tasks):
        self._all = list(target_tasks)

    def choose_tasks(self, task_id, values):
        return self._all


REPARTITIONINGS = {
    "shuffle": lambda s: s.shuffle(),
    "local_or_shuffle": lambda s: s.local_or_shuffle(),
    "global_": lambda s: s.global_(),
    "batch_global": lambda s: s.batch_global(),
    "identity_partition": lambda s: s.identity_partition(),
    "partition_by": lambda s: s.partition_by("k0"),
    "broadcast": lambda s: s.broadcast().parallelism_hint(1),
    "partition": lambda s: s.partition(Doubling()).parallelism_hint(1),
}


@given(
    rows=ROWS,
    path=st.lists(st.sampled_from(sorted(REPARTITIONINGS)), max_size=4),
    copies=st.integers(1, 3),
)
def test_repartitionings_keep_content(rows, path, copies):
    topology, (stream,) = three_streams([rows])
    for name in path:
        stream = REPARTITIONINGS[name](stream)
    kept = capture(stream)
    several = capture(stream.partition(Doubling()).parallelism_hint(copies))
    sent = capture(stream.broadcast().parallelism_hint(copies))

    run_in_process(topology)

    assert kept.rows == sorted(rows, key=repr)
    assert several.rows == sent.rows == sorted(copies * rows, key=repr)
