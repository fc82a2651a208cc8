"""Taking the last batch back: values, positions, crashes half-way, and what is refused."""

from __future__ import annotations

import contextlib

import pytest

from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.rollback import roll_back
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ConfigError, LeaseHeldError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.state import MemoryMapState, StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology
from waterspout.trident.runtime.states import open_state

ROWS = ["a", "b", "a", "c", "a", "b"]


class World:
    """A topology of two states over a list, two rows a batch."""

    def __init__(self, words, total, rows=ROWS):
        self.shared = SharedMemory()
        self.words, self.total = words, total
        self.rows = rows
        self.store_class = MemoryCoordinationStore

    def topology(self):
        topology = TridentTopology("undone")
        stream = topology.new_stream("rows", FixedBatchSpout("word string", 2, self.rows))
        stream.group_by("word").persistent_aggregate(self.words, Count(), out="n")
        stream.persistent_aggregate(self.total, Count(), out="n")
        return topology

    def store(self):
        return MemoryCoordinationStore("undone", self.shared)

    def run(self):
        run = LocalRun(self.topology(), Config(), store=self.store())
        run.finish()
        run.close()
        return run

    def roll_back(self):
        plan = self.topology().plan()
        states = {n: open_state(s, Config(), 0, None) for n, s in plan.states.items()}
        kinds = {n: s.factory.kind for n, s in plan.states.items()}
        return roll_back("undone", plan.fingerprint(), self.store(), states, kinds)

    def values(self):
        plan = self.topology().plan()
        words, total = (open_state(s, Config(), 0, None) for s in plan.states.values())
        return words.multi_get([("a",), ("b",), ("c",)]), total.multi_get([()])[0]


@pytest.fixture(params=["memory", "sqlite"])
def world(request, tmp_path):
    if request.param == "memory":
        return World(MemoryMapState.opaque(), MemoryMapState.opaque())
    path = tmp_path / "states.db"
    return World(SQLiteState.opaque(path, table="words"), SQLiteState.opaque(path, table="total"))


def test_the_last_batch_is_taken_out_of_all_states_and_counted_again_by_the_next_run(world):
    world.run()
    assert world.values() == ([3, 2, 1], 6)

    assert world.roll_back() == 3

    assert world.values() == ([2, 1, 1], 4)
    world.run()
    assert world.values() == ([3, 2, 1], 6)


def test_positions_go_back_too_and_the_batch_is_planned_anew(world):
    world.run()
    world.roll_back()
    world.rows = [*ROWS[:4], "c", "c"]  # what was wrong in the source was mended

    world.run()

    assert world.values() == ([2, 1, 3], 6)


def test_the_first_batch_can_be_taken_back(world):
    world.rows = ROWS[:2]
    world.run()

    assert world.roll_back() == 1

    assert world.values() == ([None, None, None], None)
    world.run()
    assert world.values() == ([1, 1, None], 2)


def test_taking_back_twice_takes_back_once(world):
    world.run()

    assert [world.roll_back(), world.roll_back()] == [3, 3]

    assert world.values() == ([2, 1, 1], 4)
    world.run()
    world.run()
    assert world.values() == ([3, 2, 1], 6)


def test_a_second_batch_cannot_be_taken_back_before_the_first_one_is_there_again(world):
    world.run()
    world.roll_back()
    world.run()
    world.roll_back()  # fine: it is the last batch again
    assert world.values() == ([2, 1, 1], 4)


@pytest.mark.parametrize("point", ["mark.before", "mark.after", "head.before", "head.after"])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("then", ["roll back again", "run"])
def test_a_crash_half_way_is_finished_by_the_next_call_or_the_next_run(world, point, nth, then):
    world.run()
    faults.install(FaultPlan([Fault(point, "raise", nth=nth)]))
    with contextlib.suppress(InjectedError):
        world.roll_back()
    faults.install(None)

    if then == "roll back again":
        assert world.roll_back() == 3
        assert world.values() == ([2, 1, 1], 4)
    world.run()

    assert world.values() == ([3, 2, 1], 6)


def test_other_states_than_opaque_ones_are_refused_and_nothing_changes():
    world = World(MemoryMapState.opaque(), MemoryMapState.transactional())
    world.run()

    with pytest.raises(ConfigError, match=r"state2 is a transactional state.*all opaque"):
        world.roll_back()

    assert world.values() == ([3, 2, 1], 6)


def test_there_is_nothing_to_take_back_before_anything_has_run(world):
    with pytest.raises(ConfigError, match="has never run here"):
        world.roll_back()


def test_a_topology_that_runs_is_refused(tmp_path):
    path = tmp_path / "states.db"
    words, total = (SQLiteState.opaque(path, table=name) for name in ("words", "total"))
    world = World(words, total)
    store = EmbeddedStore(tmp_path / "home", "undone")
    run = LocalRun(world.topology(), Config(), store=store)
    run.finish()
    plan = world.topology().plan()
    states = {n: open_state(s, Config(), 0, None) for n, s in plan.states.items()}
    kinds = dict.fromkeys(states, StateKind.OPAQUE)

    second = EmbeddedStore(tmp_path / "home", "undone")
    with pytest.raises(LeaseHeldError):
        roll_back("undone", plan.fingerprint(), second, states, kinds)

    assert world.values() == ([3, 2, 1], 6)
    run.close()
    assert roll_back("undone", plan.fingerprint(), store, states, kinds) == 3
    assert world.values() == ([2, 1, 1], 4)
