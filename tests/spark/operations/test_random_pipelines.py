"""Chains of operations drawn at random: Spark gives what the engine without Spark gives."""

from __future__ import annotations

import random

import pytest

from tests.soaking import soaked
from tests.spark.operations.support import run_both, stream_of
from tests.trident.support import Capture
from waterspout.state import MemoryMapState
from waterspout.trident import Count, FirstN, MapGet, Sum, reducer, updater

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FIELDS = "k string, n bigint"


class PythonSum(Sum):
    """Not Sum itself, so it is not replaced by Spark's own."""


@reducer(init=0)
def total(value, n) -> int:
    return value + (n or 0)


@updater
def passed_on(state, tuples):
    return [(t["k"], t["n"]) for t in tuples]


def even(n):
    return n is not None and n % 2 == 0


def sizes(group, left, right):
    return 10 * len(left) + len(right)


def with_key(stream):
    return stream.each("n", lambda n: "z", out="k string").project(["k", "n"])


def first_two(stream):
    """Return a stream of a text and a number as one of the usual fields."""
    return stream.map(lambda k, n: (k, n), out=FIELDS)


def joined(rng, topology, stream):
    how = rng.choice(["inner", "left", "right", "outer"])
    counts = stream.filter("n", even).group_by("n").aggregate(Count(), out="c")
    made = topology.join(stream, "n", counts, "n", out="n, k, c", how=how)
    return first_two(made.project(["k", "c"]))


def queried(rng, topology, stream):
    counts = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), out="c")
    return first_two(stream.state_query(counts, "k", MapGet(), out="c").project(["k", "c"]))


def aggregated(rng, topology, stream):
    return stream.group_by("k").aggregate("n", rng.choice([Sum(), PythonSum(), total]), out="n")


def persisted(rng, topology, stream):
    state = stream.group_by("k").persistent_aggregate(
        MemoryMapState(), "n", rng.choice([Sum(), PythonSum(), total]), out="n"
    )
    return state.new_values_stream()


def reduced(rng, topology, stream):
    groups = [stream.group_by("k"), stream.filter("n", even).group_by("k")]
    return topology.multi_reduce(groups, sizes, "n bigint")


def chained(rng, topology, stream):
    chain = stream.group_by("k").chained_agg().aggregate("n", Sum(), out="n")
    return chain.aggregate(Count(), out="c").chain_end().project(["k", "n"])


STEPS = [
    lambda rng, topology, s: first_two(
        s.each("n", lambda n: (n or 0) + 1, out="m bigint").project(["k", "m"])
    ),
    lambda rng, topology, s: s.filter("n", lambda n: n is None or n % 4 != 1),
    lambda rng, topology, s: s.map(lambda k, n: ((k or "") + "x" if n else k, n)),
    lambda rng, topology, s: s.flat_map(lambda k, n: [(k, i) for i in range((n or 0) % 3)]),
    lambda rng, topology, s: s.peek(lambda k, n: None),
    lambda rng, topology, s: s.shuffle().parallelism_hint(rng.choice([1, 2, 3])),
    lambda rng, topology, s: s.partition_by("k").parallelism_hint(rng.choice([2, 3])),
    lambda rng, topology, s: rng.choice([s.global_, s.batch_global, s.local_or_shuffle])(),
    lambda rng, topology, s: s.identity_partition(),
    lambda rng, topology, s: with_key(s.aggregate("n", rng.choice([Sum(), PythonSum()]), out="n")),
    lambda rng, topology, s: s.global_().group_by("k").partition_aggregate("n", Sum(), out="n"),
    lambda rng, topology, s: s.apply_assembly(FirstN(3, "n", reverse=rng.random() < 0.5)),
    lambda rng, topology, s: topology.merge(s, s.filter("n", even)),
    lambda rng, topology, s: s.partition_persist(
        Capture(), passed_on, out=FIELDS
    ).new_values_stream(),
    joined, queried, aggregated, persisted, reduced, chained,
]  # fmt: skip


def pipelines(seed):
    """Return what builds a topology of a few chains; the same for the same seed."""

    def build(look):
        dice = random.Random(seed)
        rows = [
            (dice.choice(["a", "b", None, "", "c"]), dice.choice([None, 0, 1, 2, 3, 7, -5]))
            for _ in range(dice.choice([3, 9, 14]))
        ]
        topology, source = stream_of(FIELDS, rows, size=dice.choice([5, 9, 20]))
        for number in range(3):
            stream = source
            for _ in range(dice.randint(2, 5)):
                stream = dice.choice(STEPS)(dice, topology, stream)
            look(f"chain {number}", stream)
        return topology

    return build


@pytest.mark.parametrize("seed", [1, soaked(2), soaked(3), soaked(4), soaked(5)])
def test_spark_and_the_engine_without_it_agree(spark, tmp_path, seed):
    ran = run_both(pipelines(seed), spark, tmp_path)

    assert ran.differences == {}
    assert any(kept.rows for kept in ran.spark.values())
