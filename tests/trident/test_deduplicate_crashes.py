"""deduplicate under crashes, replays, zombies and failing stores: what passes, passes once.

The reference is the rule done slowly, given the batches as they were committed.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.semantics.simulation import Dice, LateMap, UnreliableMap, UnreliableState
from tests.semantics.test_crash_points import CrashAt
from tests.soaking import repeated, soaked, stepped
from tests.trident.test_windows_crashes import Together, World, run_schedule, run_with_crashes
from waterspout import Config
from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, MemoryLog
from waterspout.trident import TridentTopology

SHORT_MS = 12
ROWS = [
    [(1, 10), (1, 9), (2, 20), (3, 30), (1, 11), (2, 21), (4, 40)],
    [(2, 22), (5, 50), (3, 31), (5, 51)],
]


@dataclass
class Passing(World):
    """Rows (key, number) through `deduplicate`; `windows` is where its keys are."""

    within_ms: int | None = None

    def start(self, config: Config) -> LocalRun:
        topology = TridentTopology("windowed")
        within = None if self.within_ms is None else dt.timedelta(milliseconds=self.within_ms)
        topology.new_stream("log", self.log).deduplicate(
            "key", self.windows, within
        ).persistent_aggregate(self.results, "id", Together(), out="all array<bigint>")
        store = MemoryCoordinationStore("windowed", self.ledger)
        clock = lambda: self.now  # noqa: E731
        return LocalRun(topology, config, store=store, clock=clock, wall=clock)

    @property
    def expected(self) -> list[int]:
        assert sorted(self.committed) == list(range(1, len(self.committed) + 1))
        passed: dict[int, int] = {}
        out = []
        for _, metadata in sorted(self.committed.items()):
            now = metadata.get(CLOCK, {"time": 0})["time"]
            ranges = metadata["log"]["ranges"]
            rows = [row for p, (a, b) in enumerate(ranges) for row in self.rows[p][a:b]]
            for key, number in sorted(rows):
                if key not in passed or (self.within_ms and passed[key] <= now - self.within_ms):
                    passed[key] = now
                    out.append(number)
        return sorted(out)

    @property
    def found(self) -> list[int]:
        return sorted(self.results.make_state(Config(), 0, 1).multi_get([()])[0] or [])


def passing(within_ms: int | None, kind: SpoutKind = SpoutKind.OPAQUE, **stores: Any) -> Passing:
    log = MemoryLog("key bigint, id bigint", ROWS, kind=kind, take=2)
    dice = Dice(random=None, on=False)
    made = {
        name: UnreliableState(UnreliableMap(dice), StateKind.OPAQUE)
        for name in ("windows", "results")
    }
    no_window = SimpleNamespace(span=0)
    return Passing(no_window, log, ROWS, **{**made, **stores}, within_ms=within_ms)


@pytest.fixture(params=[None, SHORT_MS], ids=["ever", "within"])
def within_ms(request):
    return request.param


@stepped(6)
@pytest.mark.parametrize("kind", [SpoutKind.OPAQUE, SpoutKind.TRANSACTIONAL])
def test_a_crash_at_every_point_loses_and_doubles_no_row(within_ms, kind, step):
    quiet = CrashAt()
    world = run_with_crashes(quiet, passing(within_ms, kind))
    assert set(quiet.seen) == set(BATCH_POINTS)
    assert world.found == world.expected
    assert (within_ms is None) == (len(world.found) == 5)

    for n in range(1, len(quiet.seen) + 1, step):
        hook = CrashAt(n)

        world = run_with_crashes(hook, passing(within_ms, kind))

        assert hook.all_fired
        assert world.found == world.expected, f"crash at point {n} ({hook.seen[n - 1]})"


@stepped(8)
def test_a_second_crash_during_every_recovery_does_no_damage(within_ms, step):
    quiet = CrashAt()
    run_with_crashes(quiet, passing(within_ms))

    for n in range(1, len(quiet.seen) + 1, 2 * step):
        for m in range(1, 30, 3 * step):
            world = run_with_crashes(CrashAt(n, m), passing(within_ms))

            assert world.found == world.expected, f"crashes at {n} and {m} after"


def test_crashes_with_the_keys_in_a_file_that_undoes_lost_attempts(within_ms, tmp_path):
    quiet = CrashAt()
    run_with_crashes(quiet, passing(within_ms))
    points = [i for i, name in enumerate(quiet.seen, 1) if name.startswith(("write", "mark"))]

    for n in points:
        store = SQLiteState.opaque(tmp_path / f"{n}.db", table="keys")
        world = run_with_crashes(CrashAt(n), passing(within_ms, windows=store))

        assert world.found == world.expected, f"crash at point {n}"


@repeated(7, in_soak=50)
@pytest.mark.parametrize("map_class", [UnreliableMap, soaked(LateMap)])
def test_no_schedule_of_failures_loses_or_doubles_a_row(within_ms, map_class, count):
    fired = 0
    for seed in range(count):
        rng = random.Random(seed)
        dice = Dice(
            rng,
            crash=0.02,
            fail=0.03,
            error=0.02,
            lost_write=0.05,
            half_write=0.1,
            lost_answer=0.05,
            outage=0.2,
            zombies=rng.random() < 0.5,
        )
        numbers = iter(range(10_000))
        rows = [
            [(rng.randrange(8), next(numbers)) for _ in range(rng.randrange(1, 12))]
            for _ in range(3)
        ]
        log = MemoryLog("key bigint, id bigint", rows, take=lambda _: rng.randrange(0, 4))  # noqa: B023
        stores = [UnreliableState(map_class(dice), StateKind.OPAQUE) for _ in range(2)]
        no_window = SimpleNamespace(span=0)
        world = Passing(no_window, log, rows, *stores, within_ms=within_ms)

        run_schedule(world, dice)

        assert world.found == world.expected, f"seed {seed}"
        fired += dice.fired
    assert fired > 8 * count
