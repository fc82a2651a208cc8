"""A state that could not be told that its last batch committed is told again."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout.errors import StoreError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


@pytest.fixture
def world():
    return World()


class World:
    """Three rows, one a batch, into a state whose store refuses to settle the last of them."""

    def __init__(self):
        self.now = 0.0
        self.refusals = 2
        self.state = MemoryMapState.opaque()
        topology = TridentTopology("settled")
        rows = topology.new_stream("rows", FixedBatchSpout("word string", 1, ["a", "a", "a"]))
        self.counts = rows.group_by("word").persistent_aggregate(self.state, Count(), out="n")
        backing = self.state.backing()
        move = backing.move_head

        def refusing(expected, new):
            if new.committed and new.stamp.txid == 3 and self.refusals:
                self.refusals -= 1
                raise StoreError("the server is away")
            move(expected, new)

        backing.move_head = refusing
        self.run = LocalRun(topology, Config(), clock=lambda: self.now)

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


def test_it_is_not_tried_more_often_than_once_a_second(world):
    world.refusals = 1000
    world.finish()
    before = world.refusals

    for _ in range(100):
        world.now += 0.1
        world.run.step()

    assert 8 <= before - world.refusals <= 11
    world.run.close()
