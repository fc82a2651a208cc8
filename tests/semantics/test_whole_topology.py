"""Two spouts, a merge, a join, three states: exact after a crash at every point, in process."""

from __future__ import annotations

import random
from itertools import count

import pytest

from tests.semantics.shop import everything_is_read, recount, shop, spouts
from tests.semantics.simulation import Dice, UnreliableMap, UnreliableState
from tests.semantics.test_crash_points import CrashAt
from tests.soaking import repeated, stepped
from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import StateKind
from waterspout.testing import LocalRun, SimulatedCrash

CONFIG = Config(max_spout_pending=2, retry_backoff_millis=0, cancel_wait_secs=0.0)
KINDS = [
    pytest.param(SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL, id="transactional"),
    pytest.param(SpoutKind.TRANSACTIONAL, StateKind.OPAQUE, id="transactional-opaque"),
    pytest.param(SpoutKind.OPAQUE, StateKind.OPAQUE, id="opaque"),
]


def run_with_crashes(spout, state, hook, take=2):
    """Run to the end, starting again after each crash; return the states and the batches."""
    # New values are read off the first state, and an opaque one can still tell what was before.
    kinds = (StateKind.OPAQUE, state, StateKind.OPAQUE)
    factories = [UnreliableState(UnreliableMap(Dice(None, on=False)), kind) for kind in kinds]
    sources, ledger, clock = spouts(spout, take), SharedMemory(), count()
    batches = {}
    faults.install(hook)
    try:
        while True:
            topology, states = shop(sources, factories)
            store = MemoryCoordinationStore(topology.name, ledger)
            try:
                run = LocalRun(topology, CONFIG, store=store, clock=lambda: next(clock))
                while not (run.loop.is_idle and not run.engine.waiting):
                    run.step()
                    note(batches, run.loop.ledger)
                break
            except SimulatedCrash:
                continue
    finally:
        faults.install(None)
    note(batches, run.loop.ledger)
    return states, batches


def note(batches, ledger):
    if ledger.committed_metadata is not None:
        batches[ledger.current - 1] = ledger.committed_metadata


@pytest.mark.parametrize(("spout", "state"), KINDS)
def test_a_run_without_crashes_passes_every_point(spout, state):
    hook = CrashAt()

    states, batches = run_with_crashes(spout, state, hook)

    assert everything_is_read(batches)
    assert states.found() == recount(batches)
    assert set(hook.seen) == set(BATCH_POINTS)


@stepped(3)
@pytest.mark.parametrize(("spout", "state"), KINDS)
def test_a_crash_at_every_point_loses_and_doubles_nothing(spout, state, step):
    passed = CrashAt()
    run_with_crashes(spout, state, passed)
    for n in range(1, len(passed.seen) + 1, step):
        hook = CrashAt(n)

        states, batches = run_with_crashes(spout, state, hook)

        assert hook.all_fired
        assert everything_is_read(batches), f"crash at {n} ({hook.seen[n - 1]})"
        assert states.found() == recount(batches), f"crash at {n} ({hook.seen[n - 1]})"


@repeated(25, in_soak=200)
def test_batches_that_differ_between_attempts_are_counted_as_they_committed(count):
    rng = random.Random(3)
    for _ in range(count):
        hook = CrashAt(*(rng.randint(1, 60) for _ in range(rng.randint(1, 4))))

        states, batches = run_with_crashes(
            SpoutKind.OPAQUE, StateKind.OPAQUE, hook, take=lambda _: rng.randint(0, 3)
        )

        assert everything_is_read(batches)
        assert states.found() == recount(batches)
