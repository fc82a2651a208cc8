"""RateSpout: numbers that are due, by a clock of the test's own."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.spouts._base import SpoutContext
from waterspout.spouts.rate import RateSpout


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def opened(spout, known=None):
    return spout.open(SpoutContext(Config(), "s", None, known or {}, 1))


def span(metadata):
    return metadata["start"], metadata["end"]


def test_a_batch_holds_what_is_due(clock):
    planner = opened(RateSpout(10, clock=clock))
    assert not planner.is_ready(None)

    clock.now += 0.5
    first = planner.plan(1, None)
    clock.now += 1

    assert span(first) == (0, 5)
    assert planner.is_ready(first)
    assert span(planner.plan(2, first)) == (5, 15)


def test_a_batch_is_no_larger_than_it_may_be(clock):
    planner = opened(RateSpout(10, max_batch_size=4, clock=clock))
    clock.now += 1

    first = planner.plan(1, None)
    second = planner.plan(2, first)
    third = planner.plan(3, second)

    assert [span(b) for b in (first, second, third)] == [(0, 4), (4, 8), (8, 10)]
    assert not planner.is_ready(third)


def test_after_the_limit_there_are_no_more(clock):
    planner = opened(RateSpout(10, limit=7, clock=clock))
    clock.now += 60

    only = planner.plan(1, None)

    assert span(only) == (0, 7)
    assert not planner.is_ready(only)
    assert span(planner.plan(2, only)) == (7, 7)


def test_nothing_due_plans_an_empty_batch(clock):
    assert span(opened(RateSpout(10, clock=clock)).plan(1, None)) == (0, 0)


def test_a_restart_goes_on_behind_the_last_known_batch_at_the_rate_from_then(clock):
    spout = RateSpout(10, clock=clock)
    clock.now += 3600
    known = {7: {"start": 40, "end": 50}, 8: {"start": 50, "end": 60}}

    planner = opened(spout, known)
    clock.now += 0.5

    assert span(planner.plan(9, known[8])) == (60, 65)


def test_the_rows_of_a_batch_are_a_function_of_its_metadata(clock):
    metadata = {"start": 3, "end": 5, "epoch": 100.0, "rate": 2.0}

    read = RateSpout(99, clock=clock).read(metadata)

    assert (read.start, read.end, read.epoch_s, read.per_second) == (3, 5, 100.0, 2.0)
    assert read == RateSpout(1).read(metadata)


def test_the_times_of_rows_go_on_across_batches(clock):
    planner = opened(RateSpout(10, clock=clock))
    clock.now += 1
    first = planner.plan(1, None)
    clock.now += 1

    second = planner.plan(2, first)

    assert first["epoch"] == second["epoch"]


@pytest.mark.parametrize(
    "bad",
    [
        {"rows_per_second": 0},
        {"rows_per_second": -1},
        {"rows_per_second": 1, "max_batch_size": 0},
        {"rows_per_second": 1, "limit": -1},
    ],
)
def test_a_rate_or_size_that_makes_no_sense_is_refused(bad):
    with pytest.raises(TopologyError, match="RateSpout needs a positive rate and batch size"):
        RateSpout(**bad)
