"""Seeded schedules of failures over the real loop, coordinator, ledger and states, one thread.

A schedule is a function of its seed: sources, batch sizes, interleavings, crashes at kill
points, refused and half-applied writes, lost answers, zombies, outages. Values are lists of
unique ids, so that one lost and one doubled tuple cannot cancel out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout import Config, FailedException, faults
from waterspout.coordination.events import BatchCommitted, BatchEmitted, Event
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import OutageError
from waterspout.spouts._base import SpoutKind
from waterspout.state import MemoryMapState, StateFactory, StateKind
from waterspout.state._base import BackingMap
from waterspout.state._batched import BatchedMap
from waterspout.state._comparing import ComparingMap
from waterspout.state._kinds import make_map
from waterspout.state._memory import MemoryMap
from waterspout.testing import LocalRun, MemoryLog, SimulatedCrash
from waterspout.testing._engine import InProcessEngine
from waterspout.trident import CombinerAggregator, TridentTopology

KEYS = "abcdef"


class Ids(CombinerAggregator[list[int]]):
    """All ids of a key, each as often as it was counted."""

    def init(self, tuple):
        return [tuple[0]]

    def combine(self, left, right):
        return sorted([*left, *right])

    def zero(self):
        return []


@dataclass
class Dice:
    """What goes wrong, and how likely: one seed, one schedule."""

    random: random.Random
    crash: float = 0.0
    fail: float = 0.0
    error: float = 0.0
    lost_write: float = 0.0
    half_write: float = 0.0
    lost_answer: float = 0.0
    outage: float = 0.0
    away: float = 0.0
    zombies: bool = False
    fired: int = 0
    on: bool = True
    clock: Callable[[], float] = lambda: 0.0

    def hits(self, chance: float) -> bool:
        if self.on and self.random.random() < chance:
            self.fired += 1
            return True
        return False

    def at_point(self, name: str, context: Mapping[str, object]) -> None:
        if self.hits(self.crash):
            raise SimulatedCrash(name)
        if name in ("processing", "write.before", "write.after", "head.after"):
            if self.hits(self.fail):
                raise FailedException(name)
            if self.hits(self.error):
                raise RuntimeError(name)


class Service:
    """The server of a store: for a while, now and then, nobody can reach it."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._away_until = 0.0

    def reach(self, times: float = 1.0) -> None:
        """Raise where nobody answers; so many times as often as elsewhere."""
        dice, now = self._dice, self._dice.clock()
        if dice.hits(times * dice.away):
            self._away_until = now + dice.random.choice([0.001, 0.01, 0.05, 0.2])
        if dice.on and now < self._away_until:
            raise OutageError("the service", "it cannot be reached")


class UnreliableMap(MemoryMap[Any]):
    """A store whose writes fail before, in the middle of, or after being applied."""

    def __init__(self, dice: Dice) -> None:
        super().__init__("the unreliable map")
        self._dice = dice
        self._service = Service(dice)

    def multi_get(self, keys):
        self._service.reach()
        return super().multi_get(keys)

    def read_head(self):
        self._service.reach()
        return super().read_head()

    def move_head(self, expected, new):
        self._service.reach(8.0)
        super().move_head(expected, new)

    def fenced_put(self, stamp, keys, values, read=None):
        self._service.reach()
        if self._dice.hits(self._dice.lost_write):
            raise ConnectionError("not applied")
        if self._dice.hits(self._dice.half_write):
            chosen = [i for i in range(len(keys)) if self._dice.random.random() < 0.5]
            super().fenced_put(stamp, [keys[i] for i in chosen], [values[i] for i in chosen])
            raise ConnectionError("applied in part")
        super().fenced_put(stamp, keys, values)
        if self._dice.hits(self._dice.lost_answer):
            raise ConnectionError("applied, but the answer was lost")


class LateMap(ComparingMap[Any]):
    """A store that compares key by key, and whose writes may arrive long after they were given up.

    What arrives late was compared with what its writer read, however long ago that was: the
    worst that a zombie can do to such a store.
    """

    undoes_lost_attempts = False
    title = "the late map"

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._service = Service(dice)
        self._store = MemoryMap[Any]("the late map")
        self._late: list[tuple[list[Any], list[Any], list[Any]]] = []

    def multi_get(self, keys):
        self._service.reach()
        self._let_some_arrive()
        return self._store.multi_get(keys)

    def multi_put(self, keys, values):
        self._store.multi_put(keys, values)

    def scan(self, shard=0, shards=1):
        return self._store.scan(shard, shards)

    def read_head(self):
        self._service.reach()
        return self._store.read_head()

    def move_head(self, expected, new):
        self._service.reach(8.0)
        self._store.move_head(expected, new)

    def multi_compare_and_put(self, keys, read, values):
        self._service.reach()
        if self._dice.hits(self._dice.lost_write):
            raise ConnectionError("not applied")
        if self._dice.hits(self._dice.half_write):
            late = {i for i in range(len(keys)) if self._dice.random.random() < 0.5}
            now = [i for i in range(len(keys)) if i not in late]
            for i in late:
                self._late.append(([keys[i]], [read[i]], [values[i]]))
            self._store.multi_compare_and_put(
                *([column[i] for i in now] for column in (keys, read, values))
            )
            raise ConnectionError("applied in part; the rest is on its way")
        stored = self._store.multi_compare_and_put(keys, read, values)
        if self._dice.hits(self._dice.lost_answer):
            raise ConnectionError("applied, but the answer was lost")
        return stored

    def _let_some_arrive(self) -> None:
        while self._late and self._dice.random.random() < 0.3:
            chosen = self._dice.random.randrange(len(self._late))
            self._store.multi_compare_and_put(*self._late.pop(chosen))


@dataclass(frozen=True)
class UnreliableState(StateFactory):
    backing: BackingMap[Any]
    kind: StateKind = StateKind.OPAQUE
    driver_only = True
    volatile = True
    fenced = True

    def bind_rows(self, rows, keys=(), order_by=None):
        assert keys, "there are no rows without a key in a map"
        return self

    def make_state(self, conf, partition_index, num_partitions) -> BatchedMap[Any, Any]:
        return make_map(self.kind, self.backing, name="state", partition=partition_index)


@dataclass
class World:
    """What outlives a crash: the log, the ledger, the stores; and what was seen."""

    dice: Dice
    log: MemoryLog
    rows: list[list[tuple[str, int]]]
    by_key: StateFactory
    total: StateFactory
    ledger: SharedMemory = field(default_factory=SharedMemory)
    marks: list[int] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    crashes: int = 0
    now: float = 0.0

    def topology(self) -> TridentTopology:
        topology = TridentTopology("simulated")
        rows = topology.new_stream("log", self.log)
        rows.group_by("key").persistent_aggregate(
            self.by_key, "id", Ids(), out="ids array<bigint>"
        ).parallelism_hint(2)
        rows.persistent_aggregate(self.total, "id", Ids(), out="ids array<bigint>")
        return topology

    def reference(self, ranges: list[list[int]]) -> dict[str, list[int]]:
        """Count again, from the source: what the batches up to these positions hold."""
        found: dict[str, list[int]] = {}
        for rows, (_, end) in zip(self.rows, ranges, strict=True):
            for key, number in rows[:end]:
                found.setdefault(key, []).append(number)
        return {key: sorted(ids) for key, ids in found.items()}

    def state(self) -> dict[str, list[int]]:
        """What a reader outside of any batch sees."""
        reader = self.by_key.make_state(Config(), 0, 1)
        values = reader.multi_get([(key,) for key in KEYS])
        return {key: sorted(ids) for key, ids in zip(KEYS, values, strict=True) if ids}


class Watcher:
    """Checks the promises at every mark."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.run: LocalRun | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case BatchEmitted(attempt=attempt):
                self._world.attempts.append((attempt.txid, attempt.attempt_id))
            case BatchCommitted():
                try:
                    self._check(event)
                except Exception as error:  # the run only logs what a listener raises
                    self._world.wrong.append(f"the check of {event.attempt} raised {error!r}")

    def _check(self, event: BatchCommitted) -> None:
        world = self._world
        world.marks.append(event.attempt.txid)
        assert self.run is not None
        metadata = self.run.loop.ledger.committed_metadata
        expected = world.reference(metadata["log"]["ranges"])
        if world.state() != expected:
            world.wrong.append(f"after batch {event.attempt}: {world.state()} != {expected}")


def make_world(
    seed: int,
    *,
    spout: SpoutKind = SpoutKind.OPAQUE,
    state: StateKind = StateKind.OPAQUE,
    map_class: Callable[[Dice], BackingMap[Any]] = UnreliableMap,
) -> World:
    """Roll the dice for a world; each kind of fault is there in about half of them."""
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
    rows = [
        [(rng.choice(KEYS), next(numbers)) for _ in range(rng.randrange(1, 9))]
        for _ in range(rng.randrange(1, 4))
    ]
    log = MemoryLog("key string, id bigint", rows, kind=spout, take=lambda _: rng.randrange(0, 4))
    states = [UnreliableState(map_class(dice), state) for _ in range(2)]
    return World(dice, log, rows, *states)


def run_schedule(world: World, *, max_batches: int = 3, max_steps: int = 3000) -> World:
    """Run until the source is drained, restarting after every crash; then check the end."""
    config = Config(
        max_spout_pending=max_batches,
        max_retries=1000,
        retry_backoff_millis=1,
        retry_backoff_max_millis=20,
        cancel_wait_secs=0.01,
    )
    old: list[InProcessEngine] = []
    run: LocalRun | None = None
    faults.install(world.dice.at_point)
    try:
        for step in range(max_steps):
            if step > max_steps // 2:
                world.dice.on = False  # heal, and let it drain
            world.now += 0.005
            try:
                if run is None:
                    run = _start(world, config)
                _one_step(world, run, old)
                if _drained(world, run):
                    break
            except SimulatedCrash:
                world.crashes += 1
                if run is not None and world.dice.zombies:
                    old.append(run.engine)
                run = None
    finally:
        faults.install(None)
    _check_end(world, run)
    return world


def _start(world: World, config: Config) -> LocalRun:
    watcher = Watcher(world)
    run = LocalRun(
        world.topology(),
        config,
        store=MemoryCoordinationStore("simulated", world.ledger),
        clock=lambda: world.now,
        listener=watcher,
    )
    watcher.run = run
    return run


def _one_step(world: World, run: LocalRun, old: list[InProcessEngine]) -> None:
    rng = world.dice.random
    world.log.disabled = {
        partition for partition in range(len(world.rows)) if world.dice.hits(world.dice.outage)
    }
    run.step(rng.randrange)
    for engine in old:
        # The dead driver's tasks go on for a while; nobody listens to them any more.
        if rng.random() < 0.2:
            engine.report = lambda event: None
            try:
                engine.step(rng.randrange)
            except SimulatedCrash:
                world.crashes += 1


def _drained(world: World, run: LocalRun) -> bool:
    metadata = run.loop.ledger.committed_metadata
    if metadata is None or not run.loop.is_idle or run.engine.waiting:
        return False
    ends = [end for _, end in metadata["log"]["ranges"]]
    return ends == [len(rows) for rows in world.rows]


def _check_end(world: World, run: LocalRun | None) -> None:
    everything = [[0, len(rows)] for rows in world.rows]
    expected = world.reference(everything)
    if run is None or not _drained(world, run):
        world.wrong.append("not drained")
    if world.state() != expected:
        world.wrong.append(f"at the end: {world.state()} != {expected}")
    total = world.total.make_state(Config(), 0, 1).multi_get([()])[0]
    if sorted(total or []) != sorted(number for ids in expected.values() for number in ids):
        world.wrong.append(f"the global state holds {total}")
    if world.marks != sorted(set(world.marks)):
        world.wrong.append(f"marks out of order: {world.marks}")
    for txid in {t for t, _ in world.attempts}:
        numbers = [a for t, a in world.attempts if t == txid]
        if numbers != sorted(set(numbers)):
            world.wrong.append(f"attempts of batch {txid} do not increase: {numbers}")


__all__ = [
    "Dice",
    "LateMap",
    "MemoryMapState",
    "UnreliableMap",
    "World",
    "make_world",
    "run_schedule",
]
