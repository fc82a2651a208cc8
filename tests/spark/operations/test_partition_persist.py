"""`partition_persist`: a state of any kind, updated with the tuples of each partition."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from tests.spark.operations.support import ran_once, stream_of
from tests.trident.support import finish
from waterspout import Config
from waterspout.state import State, StateFactory, ValueUpdater
from waterspout.state.redis import RedisState
from waterspout.trident import StateUpdater, updater

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), (None, 5)]
numbers = itertools.count()
calls: dict[str, list[tuple]] = {}


class Shelf(State):
    """Notes each call, with its batch and the partition of the state."""

    def __init__(self, name, place):
        self.calls = calls.setdefault(name, [])
        self.place = place
        self.txid = None

    def begin_commit(self, txid):
        self.txid = txid

    def commit(self, txid):
        assert txid == self.txid


@dataclass(frozen=True)
class ShelfFactory(StateFactory):
    name: str = field(default_factory=lambda: f"shelf-{next(numbers)}")
    driver_only = True
    volatile = True

    def make_state(self, conf, partition_index, num_partitions):
        return Shelf(self.name, (partition_index, num_partitions))

    def location(self):
        return self.name


class Put(StateUpdater[Shelf]):
    """Emits one tuple for all that it was given."""

    def update_state(self, state, tuples, collector):
        rows = sorted((tuple.values for tuple in tuples), key=repr)
        state.calls.append((state.txid, state.place, rows))
        collector.emit((state.txid, len(rows)))


@updater
def put(state, tuples):
    state.calls.append((state.txid, state.place, len(tuples)))
    return [(tuple["n"],) for tuple in tuples]


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS, size=2)
    shelves = look.shelves = {
        name: ShelfFactory() for name in ("example", "function", "nothing", "by", "fixed")
    }
    kept = stream.partition_persist(
        shelves["example"], ["n"], Put(), out="txid bigint, rows bigint"
    )
    look("example", kept.new_values_stream())
    made = stream.partition_persist(shelves["function"], put, out="n bigint")
    look("function", made.new_values_stream())
    stream.filter("n", lambda n: n == 3).partition_persist(shelves["nothing"], Put())
    if look.on_spark:
        spread = stream.partition_by("word").parallelism_hint(3)
        spread.partition_persist(shelves["by"], "word", Put())
        fixed = stream.partition_persist(shelves["fixed"], "word", Put()).parallelism_hint(2)
        assert fixed.name
    ran_looks.append(look)
    return topology


ran_looks: list = []
ran = ran_once(build)


def called(ran, name):
    """What the state of a name was called with, on Spark."""
    look = next(look for look in ran_looks if look.kept is ran.spark)
    return calls.get(look.shelves[name].name, [])


def test_the_documented_example(ran):
    assert called(ran, "example") == [
        (1, (0, 1), [(1,), (2,)]),
        (2, (0, 1), [(3,), (4,)]),
        (3, (0, 1), [(5,)]),
    ]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_what_the_updater_emits_are_the_new_values(ran):
    assert ran["example"] == [(1, 2), (2, 2), (3, 1)]


def test_an_updater_may_be_a_function_and_without_fields_sees_all(ran):
    assert ran["function"] == [(n,) for n in range(1, 6)]
    assert called(ran, "function") == [(1, (0, 1), 2), (2, (0, 1), 2), (3, (0, 1), 1)]


def test_no_tuples_no_call(ran):
    assert called(ran, "nothing") == [(2, (0, 1), [("a", 3)])]


def test_the_partitions_of_the_stream_are_those_of_the_state(ran):
    places = {}
    for _, place, rows in called(ran, "by"):
        for (word,) in rows:
            places.setdefault(word, set()).add(place)

    assert set(places) == {"a", "b", "c", None}
    assert all(len(found) == 1 for found in places.values())
    assert {of for found in places.values() for _, of in found} == {3}


def test_the_state_may_have_a_number_of_partitions_of_its_own(ran):
    made = called(ran, "fixed")

    assert {of for _, (_, of), _ in made} == {2}
    assert sorted((w for _, _, rows in made for (w,) in rows), key=repr) == sorted(
        (w for w, _ in ROWS), key=repr
    )


class Add(ValueUpdater):
    def __init__(self, n):
        self.n = n

    def update(self, stored):
        return (stored or 0) + self.n


@updater(keys="word")
def add_by_word(state, tuples):
    state.multi_update([(t["word"],) for t in tuples], [Add(t["n"]) for t in tuples])


@pytest.mark.parametrize("where", ["driver", "tasks"])
def test_one_task_owns_a_key_of_a_map(spark, redis_server, where):
    rows = [(word, n) for n in range(1, 11) for word in ("a", "b", "c")]
    topology, stream = stream_of("word string, n bigint", rows, size=15)
    state = stream.partition_persist(
        RedisState.opaque(redis_server.url, prefix=f"sums-{where}"), add_by_word
    ).parallelism_hint(4)

    finish(topology, spark, Config(commit_in=where, retry_backoff_millis=1), timeout=200)

    assert state.multi_get(["a", "b", "c"]) == [55, 55, 55]
