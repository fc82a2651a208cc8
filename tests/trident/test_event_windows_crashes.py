"""Windows of event time under crashes, replays, zombies and failing stores.

The reference is the oracle, given the batches as they were committed: whatever was lost or tried
again in between, results and late rows are those of the oracle, each once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.semantics.simulation import Dice, LateMap, UnreliableMap, UnreliableState
from tests.semantics.test_crash_points import CrashAt
from tests.soaking import repeated, soaked, stepped
from tests.trident.event_windows_support import Oracle, SessionOracle, all_of
from tests.trident.test_event_windows import millis
from tests.trident.test_windows_crashes import World, run_schedule, run_with_crashes
from waterspout import Config
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, MemoryLog
from waterspout.trident import Columns, Count, ReducerAggregator, Sum, TridentTopology

WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda groups: partial(groups.tumbling_window, millis(10)),
    "sliding": lambda groups: partial(groups.sliding_window, millis(10), millis(4)),
    "sessions": lambda groups: partial(groups.session_window, millis(4)),
}
ORACLES: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda fold: Oracle(10, 10, 3, fold),
    "sliding": lambda fold: Oracle(10, 4, 3, fold),
    "sessions": lambda fold: SessionOracle(4, 3, fold),
}


class Together(ReducerAggregator[list[Any]]):
    """All rows in one value, as texts, in the order in which they came."""

    def init(self):
        return []

    def reduce(self, value, tuple):
        return [*value, repr(tuple.values)]


@dataclass
class EventWorld(World):
    """The same world, with windows of event time whose late rows go to a state of their own."""

    late: Any = field(default=None)

    def start(self, config: Config) -> LocalRun:
        topology = TridentTopology("windowed")
        groups = topology.new_stream("log", self.log).group_by("key")
        WINDOWS[self.window](groups)(
            Columns(n=Count(), total=("v", Sum())), store=self.windows,
            event_time="at", lag=millis(3),
            late=lambda rows: rows.persistent_aggregate(self.late, Together(), "all array<string>"),
        ).persistent_aggregate(self.results, Together(), out="all array<string>")  # fmt: skip
        return LocalRun(
            topology,
            config,
            store=MemoryCoordinationStore("windowed", self.ledger),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    @property
    def expected(self) -> Any:
        assert sorted(self.committed) == list(range(1, len(self.committed) + 1))
        ranges = [m["log"]["ranges"] for _, m in sorted(self.committed.items())]
        batches = [
            [row for p, (a, b) in enumerate(some) for row in self.rows[p][a:b]] for some in ranges
        ]
        oracle = ORACLES[self.window](lambda values: (len(values), sum(values)))
        return tuple(sorted(map(repr, rows)) for rows in all_of(oracle, batches))

    @property
    def found(self) -> Any:
        states = [state.make_state(Config(), 0, 1) for state in (self.results, self.late)]
        return tuple(sorted(state.multi_get([()])[0] or []) for state in states)


def drawn_rows(rng: random.Random, count: int, base: int) -> list[tuple[str, int, int]]:
    """Draw rows whose times go on, with some that come far too late; values are unique."""
    at = [4 * i + rng.choice([0, 1, -3, -30]) for i in range(count)]
    return [(rng.choice("ab"), time, base + 2**i) for i, time in enumerate(at)]


def fixed_world(window: str, kind: SpoutKind = SpoutKind.OPAQUE, **stores: Any) -> EventWorld:
    rng = random.Random(7)
    rows = [drawn_rows(rng, 9, 0), drawn_rows(rng, 5, 1000)]
    log = MemoryLog("key string, at bigint, v bigint", rows, kind=kind, take=2)
    dice = Dice(random=None, on=False)
    made = {
        name: UnreliableState(UnreliableMap(dice), StateKind.OPAQUE)
        for name in ("windows", "results", "late")
    }
    return EventWorld(window, log, rows, **{**made, **stores})


@stepped(16)
@pytest.mark.parametrize("window", list(WINDOWS))
@pytest.mark.parametrize("kind", [SpoutKind.OPAQUE, soaked(SpoutKind.TRANSACTIONAL)])
def test_a_crash_at_every_point_loses_and_doubles_nothing(window, kind, step):
    quiet = CrashAt()
    run_with_crashes(quiet, fixed_world(window, kind))
    assert set(quiet.seen) == set(BATCH_POINTS)

    for n in range(1, len(quiet.seen) + 1, step):
        world = run_with_crashes(CrashAt(n), fixed_world(window, kind))

        assert world.found == world.expected, f"crash at point {n} ({quiet.seen[n - 1]})"
    assert len(world.expected[0]) >= 4
    assert len(world.expected[1]) >= 2


@pytest.mark.parametrize("window", ["sliding", "sessions"])
def test_crashes_with_the_windows_in_a_file_that_undoes_lost_attempts(window, tmp_path):
    quiet = CrashAt()
    run_with_crashes(quiet, fixed_world(window))
    points = [i for i, name in enumerate(quiet.seen, 1) if name.startswith(("write", "mark"))]

    for n in points[::3]:
        store = SQLiteState.opaque(tmp_path / f"{n}.db", table="windows")
        world = run_with_crashes(CrashAt(n), fixed_world(window, windows=store))

        assert world.found == world.expected, f"crash at point {n}"


@repeated(5, in_soak=40)
@pytest.mark.parametrize("map_class", [UnreliableMap, LateMap])
@pytest.mark.parametrize("name", list(WINDOWS))
def test_no_schedule_of_failures_loses_or_doubles_a_result(name, map_class, count):
    fired = results = 0
    for seed in range(count):
        rng = random.Random(seed)
        chances = {
            what: chance if rng.random() < 0.5 else 0.0
            for what, chance in [("crash", 0.02), ("fail", 0.03), ("error", 0.02),
                                 ("lost_write", 0.05), ("half_write", 0.1),
                                 ("lost_answer", 0.05), ("outage", 0.2)]
        }  # fmt: skip
        dice = Dice(rng, zombies=rng.random() < 0.5, **chances)
        rows = [drawn_rows(rng, rng.randrange(1, 12), 5000 * p) for p in range(3)]
        log = MemoryLog(
            "key string, at bigint, v bigint", rows, take=lambda _, rng=rng: rng.randrange(0, 4)
        )
        stores = [UnreliableState(map_class(dice), StateKind.OPAQUE) for _ in range(3)]
        world = EventWorld(name, log, rows, *stores[:2], late=stores[2])

        run_schedule(world, dice)

        assert world.found == world.expected, f"seed {seed}"
        fired += dice.fired
        results += len(world.found[0])
    assert fired > 8 * count
    assert results > 2 * count
