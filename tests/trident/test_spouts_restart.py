"""A driver that dies with a batch in flight, for each kind of spout: what the next one does."""

from __future__ import annotations

import sqlite3

import pytest

from tests.trident.spout_kinds import (
    AT_ONCE,
    Batches,
    Messages,
    Opaque,
    Partitioned,
    SteadyBatches,
    Whole,
    calls,
    fill,
    forget,
    run_to_the_end,
)
from waterspout import faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ForeignStoreError
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, SimulatedCrash
from waterspout.transactional import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from waterspout.trident import Count, TridentTopology

WORDS = ["a", "b", "a", "c", "b", "a", "d"]
EXACT = [
    Whole,
    Partitioned,
    Opaque,
    SteadyBatches,
    lambda: MemoryTransactionalSpout([WORDS], "word", take=2),
    lambda: OpaqueMemoryTransactionalSpout([WORDS], "word", take=2),
]
NAMES = ["whole", "partitioned", "opaque", "steady batches", "memory", "opaque memory"]
CONFIG = AT_ONCE.replace(spout_max_batch_size=2, max_spout_pending=2)


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()
    yield
    faults.install(None)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class World:
    """What outlives a driver: the ledger and the state."""

    def __init__(self, folder):
        self.memory = SharedMemory()
        self.path = folder / "words.db"
        self.config = CONFIG

    def topology(self, spout, out=None):
        topology = TridentTopology("restarts")
        words = topology.new_stream("words", spout, out=out)
        state = SQLiteState.opaque(self.path, table="words")
        words.group_by("word").persistent_aggregate(state, Count(), out="n")
        return topology

    def store(self):
        return MemoryCoordinationStore("restarts", self.memory)

    def start(self, spout, out=None):
        return LocalRun(self.topology(spout, out), self.config, store=self.store())

    def finish(self, spout, out=None):
        run_to_the_end(self.topology(spout, out), self.config, store=self.store())

    def counted(self):
        with sqlite3.connect(self.path) as db:
            return dict(db.execute("SELECT word, n FROM words"))


class CrashAt:
    """Ends the driver when it passes a kill point in batch 2."""

    def __init__(self, point):
        self.point = point
        self.fired = False

    def __call__(self, name, context):
        if name == self.point and context["txid"] == 2 and not self.fired:
            self.fired = True
            raise SimulatedCrash(name)


@pytest.mark.parametrize("point", BATCH_POINTS)
@pytest.mark.parametrize("make", EXACT, ids=NAMES)
def test_a_crash_anywhere_loses_nothing_and_doubles_nothing(world, make, point):
    fill(WORDS)
    crash = CrashAt(point)
    faults.install(crash)
    with pytest.raises(SimulatedCrash):
        world.finish(make())

    world.finish(make())

    assert crash.fired
    assert world.counted() == {"a": 3, "b": 2, "c": 1, "d": 1}


@pytest.mark.parametrize("point", BATCH_POINTS)
@pytest.mark.parametrize(("make", "out"), [(Messages, "word string"), (Batches, None)])
def test_a_crash_of_a_spout_that_is_not_transactional_loses_nothing(world, make, out, point):
    words = list("abcdefg")  # each its own message
    fill(words)
    crash = CrashAt(point)
    faults.install(crash)
    with pytest.raises(SimulatedCrash):
        world.finish(make(), out)

    world.finish(make(), out)

    assert crash.fired
    assert sorted(world.counted()) == words


def die_in_batch_2(world, spout, out=None):
    world.config = CONFIG.replace(max_spout_pending=1)  # batch 1 has committed by then
    faults.install(CrashAt("processed"))
    with pytest.raises(SimulatedCrash):
        world.finish(spout, out)
    faults.install(None)


def test_a_rich_spouts_pending_batch_is_pulled_anew_and_may_be_empty(world):
    source = fill("abcd")
    die_in_batch_2(world, Messages(), "word string")
    source.partitions[0] = ["a", "b"]  # somebody else got the rest

    world.finish(Messages(), "word string")

    assert world.counted() == {"a": 1, "b": 1}
    assert calls("ack") == [("a",), ("b",)]


def test_a_batch_spouts_pending_batch_is_asked_for_by_its_number(world):
    fill("abcd")
    die_in_batch_2(world, Batches())
    before = len(calls("emit_batch"))

    world.finish(Batches())

    assert calls("emit_batch")[before] == (2,)
    assert world.counted() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_the_number_of_tuples_of_a_steady_batch_is_kept_over_a_restart(world):
    source = fill("abcd")
    die_in_batch_2(world, SteadyBatches())
    source.partitions[0].pop()

    with pytest.raises(Exception, match="gave 1 tuples for batch 2 where it had given 2"):
        world.finish(SteadyBatches())


def test_a_transactional_pending_batch_is_emitted_from_its_stored_metadata(world):
    source = fill("abcde")
    die_in_batch_2(world, Partitioned())
    source.take = 1

    world.finish(Partitioned())

    emitted = [(attempt, found) for attempt, _, found in calls("emit_partition_batch")]
    assert ("2:1", [2, 4]) in emitted
    assert world.counted() == dict.fromkeys("abcde", 1)


def test_an_opaque_pending_batch_is_planned_anew(world):
    source = fill("abcde")
    die_in_batch_2(world, Opaque())
    source.take = 1

    world.finish(Opaque())

    emitted = [(attempt, found) for attempt, _, found in calls("emit_partition_batch")]
    assert ("2:1", [2, 3]) in emitted
    assert world.counted() == dict.fromkeys("abcde", 1)


def test_a_spout_of_another_class_or_kind_is_refused(world):
    fill("ab")
    world.finish(Partitioned())

    for other in (Opaque(), SteadyBatches()):
        with pytest.raises(ForeignStoreError, match="Spout words had"):
            world.start(other)


def test_the_kinds_here_are_what_the_tests_say(world):
    fill("ab")
    kinds = [
        next(iter(world.topology(make()).plan().sources.values())).spout.kind for make in EXACT
    ]

    assert kinds == [
        SpoutKind.TRANSACTIONAL,
        SpoutKind.TRANSACTIONAL,
        SpoutKind.OPAQUE,
        SpoutKind.TRANSACTIONAL,
        SpoutKind.TRANSACTIONAL,
        SpoutKind.OPAQUE,
    ]
