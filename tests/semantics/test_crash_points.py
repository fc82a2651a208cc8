"""Every kill point, and every pair of them, in a fixed run: exact after each recovery."""

from __future__ import annotations

import pytest

from tests.semantics.simulation import (
    Dice,
    UnreliableMap,
    UnreliableState,
    World,
    _check_end,
    _start,
)
from tests.soaking import stepped
from waterspout import Config, faults
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import StateKind
from waterspout.testing import MemoryLog, SimulatedCrash

CONFIG = Config(max_spout_pending=2, retry_backoff_millis=0, cancel_wait_secs=0.0)
ROWS = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("c", 4), ("a", 5)],
]


class CrashAt:
    """Crashes at the n-th kill point that is passed, then at the m-th after that, and so on."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)
        self._passed = 0
        self.seen: list[str] = []

    def __call__(self, name, context):
        self.seen.append(name)
        self._passed += 1
        if self._counts and self._passed == self._counts[0]:
            self._counts.pop(0)
            self._passed = 0
            raise SimulatedCrash(name)

    @property
    def all_fired(self) -> bool:
        return not self._counts


def fixed_world(spout: SpoutKind, state: StateKind, batches: int) -> World:
    dice = Dice(random=None, on=False)
    take = -(-max(map(len, ROWS)) // batches)
    log = MemoryLog("key string, id bigint", ROWS, kind=spout, take=take)
    states = [UnreliableState(UnreliableMap(dice), state) for _ in range(2)]
    return World(dice, log, ROWS, *states)


def run_with_crashes(hook: CrashAt, world: World) -> World:
    """Run to the end, starting again after each crash, as a supervisor would."""
    faults.install(hook)
    try:
        while True:
            world.now += 1
            try:
                run = _start(world, CONFIG)
                run.finish(max_steps=500)
                break
            except SimulatedCrash:
                world.crashes += 1
    finally:
        faults.install(None)
    _check_end(world, run)
    return world


def passes(spout, state, batches) -> list[str]:
    hook = CrashAt()
    run_with_crashes(hook, fixed_world(spout, state, batches))
    return hook.seen


KINDS = [
    pytest.param(SpoutKind.OPAQUE, StateKind.OPAQUE, id="opaque-opaque"),
    pytest.param(SpoutKind.TRANSACTIONAL, StateKind.OPAQUE, id="transactional-opaque"),
    pytest.param(SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL, id="transactional"),
]


@pytest.mark.parametrize(("spout", "state"), KINDS)
def test_every_named_point_is_passed(spout, state):
    assert set(passes(spout, state, 3)) == set(BATCH_POINTS)


@pytest.mark.parametrize(("spout", "state"), KINDS)
def test_a_crash_at_every_point_loses_and_doubles_nothing(spout, state):
    for n in range(1, len(passes(spout, state, 3)) + 1):
        hook = CrashAt(n)

        world = run_with_crashes(hook, fixed_world(spout, state, 3))

        assert hook.all_fired
        assert world.wrong == [], f"crash at point {n} ({hook.seen[n - 1]})"


@stepped(16)
@pytest.mark.parametrize(
    ("spout", "state"),
    [KINDS[0], *(pytest.param(*k.values, id=k.id, marks=pytest.mark.soak) for k in KINDS[1:])],
)
def test_a_second_crash_during_every_recovery_loses_and_doubles_nothing(spout, state, step):
    pairs = 0
    for n in range(1, len(passes(spout, state, 2)) + 1, step):
        m = 0
        while True:
            m += 1
            hook = CrashAt(n, m)
            world = run_with_crashes(hook, fixed_world(spout, state, 2))
            if not hook.all_fired:
                break
            pairs += 1
            assert world.wrong == [], f"crashes at {n} ({hook.seen[n - 1]}) and {m} after"
    assert pairs > 500 // step


def test_ten_crashes_in_a_row_at_one_point_do_no_damage():
    for n in range(1, len(passes(SpoutKind.OPAQUE, StateKind.OPAQUE, 2)) + 1):
        hook = CrashAt(n, *[min(n, 3)] * 9)

        world = run_with_crashes(hook, fixed_world(SpoutKind.OPAQUE, StateKind.OPAQUE, 2))

        assert world.wrong == []
