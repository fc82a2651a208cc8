"""A state that could not be told that its last batch committed is told again."""

from __future__ import annotations

import pytest

from waterspout import Config, faults
from waterspout.errors import StoreError
from waterspout.faults import Fault, FaultPlan
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


@pytest.fixture
def world():
    return World()


class World:
    """Three rows, one a batch, into a state whose store refuses to settle one of them."""

    def __init__(self, txid=3, refusals=2):
        self.now = 0.0
        self.refusals = refusals
        self.state = MemoryMapState.opaque()
        topology = TridentTopology("settled")
        rows = topology.new_stream("rows", FixedBatchSpout("word string", 1, ["a", "a", "a"]))
        self.counts = rows.group_by("word").persistent_aggregate(self.state, Count(), out="n")
        backing = self.state.backing()
        move = backing.move_head

        def refusing(expected, new):
            if new.committed and new.stamp.txid == txid and self.refusals:
                self.refusals -= 1
                raise StoreError("the server is away")
            move(expected, new)

        backing.move_head = refusing
        self.run = LocalRun(topology, Config(retry_backoff_millis=5_000), clock=lambda: self.now)

    def finish(self):
        for _ in range(200):
            self.now += 0.001
            self.run.step()


def test_readers_see_the_last_batch_once_the_store_is_back(world):
    world.finish()
    assert world.run.loop.ledger.current == 4
    assert (world.counts.get("a"), world.refusals) == (2, 1)

    for expected in (2, 3):
        world.now += 2.0
        world.run.step()
        assert world.counts.get("a") == expected

    world.run.close()


def test_a_state_is_told_to_be_settled_when_it_is(world):
    settled = []
    world.run.loop.events.subscribe(
        lambda event: (
            settled.append(event.attempt.txid)
            if getattr(event, "step", None) == "settled"
            else None
        )
    )
    world.finish()
    assert settled == [1, 2]

    for _ in range(2):
        world.now += 2.0
        world.run.step()

    assert settled == [1, 2, 3]
    world.run.close()


def test_it_is_not_tried_more_often_than_once_a_second(world):
    world.refusals = 1000
    world.finish()
    before = world.refusals

    for _ in range(100):
        world.now += 0.1
        world.run.step()

    assert 8 <= before - world.refusals <= 11
    world.run.close()


@pytest.mark.parametrize("point", ["head.before", "head.after"])
def test_it_is_not_told_once_the_next_batch_has_claimed_it(point):
    world = World(txid=2, refusals=1)
    faults.install(FaultPlan([Fault(point, "raise", where={"txid": 3})]))
    try:
        world.finish()
        assert (world.run.loop.ledger.current, world.refusals) == (3, 0)
        world.now += 2.0  # time to tell it of batch 2, and not yet to try batch 3 again
        world.run.step()
    finally:
        faults.install(None)
    assert world.counts.get("a") == 2
    # A claim that was sent may not have arrived.
    assert world.run.loop.ledger.settled is (point == "head.before")

    world.now += 10.0
    world.finish()
    assert (world.run.loop.ledger.current, world.counts.get("a")) == (4, 3)
    world.run.close()
