"""Windows under crashes, replays, zombies and failing stores: every result exactly once.

The reference is the model, given the batches as they were committed: whatever was lost or tried
again in between, the results that a state has taken in are those of the model, in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.semantics.simulation import Dice, LateMap, UnreliableMap, UnreliableState
from tests.semantics.test_crash_points import CrashAt
from tests.soaking import repeated, soaked, stepped
from tests.trident.windows_support import Listed, counted, settings, timed
from waterspout import Config, faults
from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, MemoryLog, SimulatedCrash
from waterspout.testing._engine import InProcessEngine
from waterspout.topology import Seconds
from waterspout.trident import ReducerAggregator, TridentTopology
from waterspout.trident.windowing.config import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
)

WINDOWS = {
    "tumbling-count": TumblingCountWindow.of(3),
    "sliding-count": SlidingCountWindow.of(5, 2),
    "tumbling-time": TumblingDurationWindow.of(Seconds(0.02)),
    "sliding-time": SlidingDurationWindow.of(Seconds(0.05), Seconds(0.02)),
}


class Together(ReducerAggregator[list[Any]]):
    """All results in one value, in the order in which they came."""

    def init(self):
        return []

    def reduce(self, value, tuple):
        return [*value, tuple[0]]


@dataclass
class World:
    """What outlives a crash: the log, the ledger, the stores, the clock on the wall."""

    window: Any
    log: MemoryLog
    rows: list[list[tuple[int]]]
    windows: Any
    results: Any
    ledger: SharedMemory = field(default_factory=SharedMemory)
    committed: dict[int, Any] = field(default_factory=dict)
    now: float = 1000.0
    crashes: int = 0

    def start(self, config: Config) -> LocalRun:
        topology = TridentTopology("windowed")
        topology.new_stream("log", self.log).window(
            self.window, self.windows, "id", Listed(), "l array<bigint>"
        ).persistent_aggregate(self.results, "l", Together(), out="all array<array<bigint>>")
        return LocalRun(
            topology,
            config,
            store=MemoryCoordinationStore("windowed", self.ledger),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def look(self) -> None:
        """Note what the last committed batch held."""
        ledger = MemoryCoordinationStore("windowed", self.ledger).peek()
        if ledger is not None and ledger.committed_metadata is not None:
            self.committed[ledger.current - 1] = ledger.committed_metadata

    @property
    def expected(self) -> list[list[int]]:
        """The results of the model for the batches as they were committed."""
        assert sorted(self.committed) == list(range(1, len(self.committed) + 1))
        batches = []
        for _, metadata in sorted(self.committed.items()):
            ranges = metadata["log"]["ranges"]
            held = [row[0] for p, (a, b) in enumerate(ranges) for row in self.rows[p][a:b]]
            batches.append((metadata.get(CLOCK, {"time": 0})["time"], held))
        if self.window.by_time:
            made = timed(self.window, batches)
        else:
            made = counted(self.window, [held for _, held in batches])
        return [result for results in made for result in results]

    @property
    def found(self) -> list[list[int]]:
        """The results that a reader of the state sees."""
        return self.results.make_state(Config(), 0, 1).multi_get([()])[0] or []

    @property
    def is_drained(self) -> bool:
        if not self.committed:
            return False
        ranges = self.committed[max(self.committed)]["log"]["ranges"]
        return [end for _, end in ranges] == [len(rows) for rows in self.rows]


def fixed_world(window, kind=SpoutKind.OPAQUE, **stores) -> World:
    rows = [[(i,) for i in range(7)], [(i,) for i in range(100, 104)]]
    log = MemoryLog("id bigint", rows, kind=kind, take=2)
    dice = Dice(random=None, on=False)
    made = {
        name: UnreliableState(UnreliableMap(dice), StateKind.OPAQUE)
        for name in ("windows", "results")
    }
    return World(window, log, rows, **{**made, **stores})


def run_with_crashes(hook: CrashAt, world: World) -> World:
    """Run to the end, starting again after each crash; time passes, and the last windows close."""
    run = None
    faults.install(hook)
    try:
        for _ in range(3000):
            world.now += 0.004
            try:
                if run is None:
                    run = world.start(settings({"max_spout_pending": 2}))
                run.step()
            except SimulatedCrash:
                world.crashes += 1
                run = None
            world.look()
            if run is not None and world.is_drained and run.loop.is_idle and not _open(world):
                break
        else:
            raise TimeoutError("not drained")
    finally:
        faults.install(None)
    run.close()
    return world


def _open(world: World) -> bool:
    """Whether a window by time may still hold tuples."""
    entry = world.committed[max(world.committed)].get(CLOCK)
    return entry is not None and world.now * 1000 <= entry["data"] + 2 * world.window.span


@pytest.fixture(params=list(WINDOWS))
def window(request):
    return WINDOWS[request.param]


def test_every_kill_point_is_passed(window):
    hook = CrashAt()

    run_with_crashes(hook, fixed_world(window))

    assert set(hook.seen) == set(BATCH_POINTS)


@stepped(6)
@pytest.mark.parametrize("kind", [SpoutKind.OPAQUE, soaked(SpoutKind.TRANSACTIONAL)])
def test_a_crash_at_every_point_loses_and_doubles_no_result(window, kind, step):
    quiet = CrashAt()
    run_with_crashes(quiet, fixed_world(window, kind))

    for n in range(1, len(quiet.seen) + 1, step):
        hook = CrashAt(n)

        world = run_with_crashes(hook, fixed_world(window, kind))

        assert hook.all_fired or n > len(hook.seen)
        assert world.found == world.expected, f"crash at point {n} ({hook.seen[n - 1]})"
    assert len(world.expected) >= 3


@stepped(10)
def test_a_second_crash_during_every_recovery_does_no_damage(window, step):
    quiet = CrashAt()
    run_with_crashes(quiet, fixed_world(window))

    for n in range(1, len(quiet.seen) + 1, 3 * step):
        for m in range(1, 30, 3 * step):
            world = run_with_crashes(CrashAt(n, m), fixed_world(window))

            assert world.found == world.expected, f"crashes at {n} and {m} after"


@stepped(6)
def test_crashes_with_the_windows_in_a_file_that_undoes_lost_attempts(window, tmp_path, step):
    quiet = CrashAt()
    run_with_crashes(quiet, fixed_world(window))
    points = [i for i, name in enumerate(quiet.seen, 1) if name.startswith(("write", "mark"))]

    for n in points[::step]:
        store = SQLiteState.opaque(tmp_path / f"{n}.db", table="windows")
        world = run_with_crashes(CrashAt(n), fixed_world(window, windows=store))

        assert world.found == world.expected, f"crash at point {n}"


def rolled_world(seed: int, window: Any, map_class: Callable[[Dice], Any]) -> tuple[World, Dice]:
    rng = random.Random(seed)

    def sometimes(chance: float) -> float:
        return chance if rng.random() < 0.5 else 0.0

    dice = Dice(
        rng,
        crash=sometimes(0.02),
        fail=sometimes(0.03),
        error=sometimes(0.02),
        lost_write=sometimes(0.05),
        half_write=sometimes(0.1),
        lost_answer=sometimes(0.05),
        outage=sometimes(0.2),
        zombies=rng.random() < 0.5,
    )
    numbers = iter(range(10_000))
    rows = [[(next(numbers),) for _ in range(rng.randrange(1, 12))] for _ in range(3)]
    log = MemoryLog("id bigint", rows, take=lambda _: rng.randrange(0, 4))
    stores = [UnreliableState(map_class(dice), StateKind.OPAQUE) for _ in range(2)]
    return World(window, log, rows, *stores), dice


def run_schedule(world: World, dice: Dice, max_steps: int = 3000) -> None:
    config = Config(
        max_spout_pending=3,
        max_retries=1000,
        retry_backoff_millis=1,
        retry_backoff_max_millis=20,
        cancel_wait_secs=0.01,
    )
    old: list[InProcessEngine] = []
    run: LocalRun | None = None
    faults.install(dice.at_point)
    try:
        for step in range(max_steps):
            dice.on = dice.on and step < max_steps // 2  # then heal, and let it drain
            world.now += 0.002
            try:
                run = run or world.start(config)
                world.log.disabled = {p for p in range(3) if dice.hits(dice.outage)}
                run.step(dice.random.randrange)
                _let_zombies_write(old, dice)
            except SimulatedCrash:
                world.crashes += 1
                if run is not None and dice.zombies:
                    old.append(run.engine)
                run = None
            world.look()
            if run and world.is_drained and run.loop.is_idle and not _open(world):
                return
    finally:
        faults.install(None)
    raise TimeoutError("not drained")


def _let_zombies_write(old: list[InProcessEngine], dice: Dice) -> None:
    for engine in old:
        if dice.random.random() < 0.2:
            engine.report = lambda event: None
            engine.step(dice.random.randrange)


@repeated(6, in_soak=25)
@pytest.mark.parametrize("map_class", [UnreliableMap, LateMap])
@pytest.mark.parametrize("name", list(WINDOWS))
def test_no_schedule_of_failures_loses_or_doubles_a_result(name, map_class, count):
    fired = results = 0
    for seed in range(count):
        world, dice = rolled_world(seed, WINDOWS[name], map_class)

        run_schedule(world, dice)

        assert world.found == world.expected, f"seed {seed}"
        fired += dice.fired
        results += len(world.found)
    assert fired > 8 * count
    assert results > 2 * count
