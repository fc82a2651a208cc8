"""A source that cannot be asked for data: asked again after a pause, and never taken for empty."""

from __future__ import annotations

import pytest

from waterspout import Config, FailedException
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._base import BatchPlanner
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


class Away(BatchPlanner):
    """Raises these errors first, one each time it is asked, and says when that was."""

    def __init__(self, planner, errors, clock):
        self._planner, self._errors, self._clock = planner, errors, clock
        self.asked = []

    def is_ready(self, previous):
        self.asked.append(self._clock())
        if self._errors:
            raise self._errors.pop(0)
        return self._planner.is_ready(previous)

    def plan(self, txid, previous):
        return self._planner.plan(txid, previous)


class World:
    """One row into a count, from a source that is away at first; time in eighths of a second."""

    def __init__(self, errors, **options):
        self.now = 0
        spout = FixedBatchSpout("word string", 1, ["a"])
        opened = spout.open
        spout.open = lambda context: self._away(opened(context), errors)
        topology = TridentTopology("asked")
        state = MemoryMapState.opaque()
        rows = topology.new_stream("rows", spout)
        self.counts = rows.group_by("word").persistent_aggregate(state, Count(), out="n")
        config = Config(retry_backoff_millis=125, **options)
        self.run = LocalRun(topology, config, clock=lambda: self.now / 8)

    def _away(self, planner, errors):
        self.planner = Away(planner, list(errors), lambda: self.now)
        return self.planner

    def pass_by(self, eighths):
        for _ in range(eighths):
            self.now += 1
            self.run.step()


def test_it_is_asked_again_after_pauses_that_double():
    world = World([SourceError("away")] * 3)

    world.pass_by(40)

    assert world.planner.asked[:4] == [1, 2, 4, 8]
    assert world.counts.get("a") == 1


def test_nothing_is_idle_while_a_source_cannot_be_asked():
    world = World([SourceError("away")] * 2)

    world.pass_by(3)
    assert not world.run.loop.is_idle
    world.pass_by(40)
    assert world.run.loop.is_idle
    assert world.counts.get("a") == 1


def test_it_is_given_up_after_the_retries():
    world = World([SourceError("away")] * 3, max_retries=2)

    with pytest.raises(SourceError, match="away"):
        world.pass_by(100)
    assert world.now == 4


def test_one_that_asks_for_patience_gets_it_without_end():
    world = World([FailedException("not yet")] * 20, max_retries=2)

    world.pass_by(40)

    assert world.planner.asked[:20] == list(range(1, 21))
    assert world.counts.get("a") == 1


def test_a_mistake_in_the_topology_is_not_tried_again():
    world = World([TopologyError("wrong")])

    with pytest.raises(TopologyError, match="wrong"):
        world.pass_by(1)
    assert len(world.planner.asked) == 1
