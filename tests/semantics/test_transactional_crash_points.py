"""A transactional topology is killed at every step of one run, and goes on exactly."""

from __future__ import annotations

import logging

import pytest

from tests.semantics.transactional_simulation import (
    DRIVER_POINTS,
    Dice,
    KeepByTxid,
    KeepInState,
    KeepInTransactionalState,
    KeepOpaquely,
    World,
    a_b_c_d,
    run_schedule,
)
from tests.soaking import soaked, stepped
from waterspout.faults import BATCH_POINTS
from waterspout.testing import SimulatedCrash
from waterspout.testing._batch_bolts import LostWorker

ROWS = [[("a", 0), ("b", 1), ("a", 2)], [("b", 3), ("c", 4)]]


class Even:
    """A random that leaves nothing to chance."""

    def randrange(self, start, stop=None):
        return min(start - 1, 2) if stop is None else start

    def random(self):
        return 0.99


class Step(Dice):
    """Counts the kill points, and does what it is told at some of them."""

    def __init__(self, *at, action=SimulatedCrash):
        super().__init__(Even())
        self.at, self.action = at, action
        self.passed: list[str] = []

    def at_point(self, name, context):
        self.passed.append(name)
        if len(self.passed) - 1 in self.at:
            raise self.action(name)


def run(dice, committer, pending=2):
    opaque = committer in (KeepOpaquely, KeepInState)
    return run_schedule(World(0, dice, opaque, a_b_c_d, ROWS, pending, 0, committer))


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


ON_THEIR_OWN = (KeepByTxid, KeepOpaquely)
WITH_STATES = (KeepInTransactionalState, KeepInState)
KINDS = pytest.mark.parametrize(
    "committer", [*ON_THEIR_OWN, *WITH_STATES], ids=lambda kind: kind.__name__
)


@KINDS
def test_the_run_passes_every_point_that_it_has(committer):
    dice = Step()

    world = run(dice, committer)

    assert world.wrong == []
    of_states = {"head.before", "head.after", "settle.before", "settle.after"}
    without = of_states if committer in ON_THEIR_OWN else set()
    assert set(dice.passed) == set(BATCH_POINTS) - without
    assert world.marks == ([1, 2] if world.opaque else [1, 2, 3])


@stepped(3)
@KINDS
@pytest.mark.parametrize("pending", [soaked(1), 2])
@pytest.mark.parametrize("action", [SimulatedCrash, LostWorker])
def test_a_death_at_any_point_changes_nothing(committer, pending, action, step):
    dice = Step()
    run(dice, committer, pending)
    points = dice.passed

    for at, point in list(enumerate(points))[::step]:
        if action is LostWorker and point in DRIVER_POINTS:
            continue
        world = run(Step(at, action=action), committer, pending)
        assert (point, world.wrong) == (point, [])


@pytest.mark.soak
@pytest.mark.timeout(600)
@KINDS
def test_a_second_crash_during_the_recovery_changes_nothing_either(committer):
    dice = Step()
    run(dice, committer)

    for first in range(len(dice.passed)):
        for second in range(first + 1 + first % 7, first + 30, 7):
            assert (first, second, run(Step(first, second), committer).wrong) == (first, second, [])
