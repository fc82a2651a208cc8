"""Seeded schedules of failures over transactional topologies: the real loop, emitters and bolts.

A schedule is a function of its seed: topology, source, batches in flight, interleavings, failures
in bolts, crashes of the driver, deaths of workers, zombies, outages. What committers keep are lists
of unique ids, so that one lost and one doubled tuple cannot cancel out.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from waterspout import BasicBolt, Config, FailedException, faults
from waterspout.coordination.events import BatchCommitted, BatchEmitted, Event
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.state import OpaqueMap, OpaqueValue, TransactionalValue
from waterspout.state._base import BackingMap, StateFactory, StateKind, ValueUpdater
from waterspout.state._kinds import make_map
from waterspout.state._memory import MemoryMap
from waterspout.testing import SimulatedCrash
from waterspout.testing._batch_bolts import InProcessBatchBolts, LocalBatches, LostWorker
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalTopology,
    TransactionalTopologyBuilder,
)

KEYS = "abcd"
SPOUT = "rows"
DRIVER_POINTS = {
    "metadata.before", "metadata.after", "processed", "commit.before_record",
    "commit.after_record", "mark.before", "mark.after", "cleanup",
    "head.before", "head.after", "settle.before", "settle.after",
}  # fmt: skip

_worlds: dict[int, World] = {}
"""Bolts are pickled, and find their world here: it is what is outside of all workers."""


@dataclass
class Dice:
    """What goes wrong, and how likely."""

    random: random.Random
    crash: float = 0.0
    fail: float = 0.0
    error: float = 0.0
    death: float = 0.0
    lost_result: float = 0.0
    half_write: float = 0.0
    outage: float = 0.0
    zombies: bool = False
    fired: Counter[str] = field(default_factory=Counter)
    on: bool = True

    def hits(self, what: str) -> bool:
        chance = getattr(self, what)
        if chance and self.on and self.random.random() < chance:
            self.fired[what] += 1
            return True
        return False

    def at_point(self, name: str, context: Mapping[str, object]) -> None:
        if self.hits("crash"):
            raise SimulatedCrash(name)
        if name not in DRIVER_POINTS and self.hits("death"):
            raise LostWorker(name)

    def in_bolt(self, where: str) -> None:
        if self.hits("fail"):
            raise FailedException(where)
        if self.hits("error"):
            raise RuntimeError(where)


class Store:
    """What the committers of one name have written: records by key, each write atomic."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.records: dict[str, Any] = {}


class NewestAttempt(BackingMap[Any]):
    """Takes a record only from an attempt that is not older than the one that wrote there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def multi_get(self, keys):
        return [self._store.records.get(key[0]) for key in keys]

    def multi_put(self, keys, values):
        for key, record in zip(keys, values, strict=True):
            if self._store.dice.hits("half_write"):
                raise ConnectionError("applied in part")
            stored = self._store.records.get(key[0])
            if stored is not None and (stored.txid, stored.attempt) > (record.txid, record.attempt):
                raise FailedException(f"{stored} is newer than {record}")
            self._store.records[key[0]] = record


class _Append(ValueUpdater[list[int]]):
    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def update(self, stored):
        return sorted([*(stored or []), *self._ids])


class Tag(BasicBolt):
    """Passes rows on, one by one."""

    output_fields = ("tx", "key", "id")

    def __init__(self, world: int) -> None:
        self.world = world

    def execute(self, tuple, collector):
        _worlds[self.world].dice.in_bolt("execute of a basic bolt")
        collector.emit(list(tuple))


class Gather(BatchBolt):
    """Keeps rows, and passes them on when the batch is complete."""

    output_fields = ("tx", "key", "id")

    def __init__(self, world: int) -> None:
        self.world = world

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.rows = []

    def execute(self, tuple):
        _worlds[self.world].dice.in_bolt("execute")
        self.rows.append(tuple)

    def finish_batch(self):
        _worlds[self.world].dice.in_bolt("finish_batch")
        for tuple in self.rows:
            self.collector.emit([self.id, tuple["key"], tuple["id"]])


class GatherColumns(Gather):
    """The same by column."""

    def execute_batch(self, batch):
        _worlds[self.world].dice.in_bolt("execute_batch")
        self.rows.append(batch)

    def finish_batch(self):
        _worlds[self.world].dice.in_bolt("finish_batch")
        for batch in self.rows:
            self.collector.emit_batch(batch)


class Keep(Gather, Committer):
    """A committer: writes the ids of each key, for their txid once, and passes the rows on."""

    def __init__(self, world: int, store: str) -> None:
        super().__init__(world)
        self.store = store

    def finish_batch(self):
        world = _worlds[self.world]
        world.check_may_commit(self.id)
        world.dice.in_bolt("finish_batch before its writes")
        ids: dict[str, list[int]] = {}
        for tuple in self.rows:
            ids.setdefault(tuple["key"], []).append(tuple["id"])
        self.write(world.stores[self.store], ids)
        world.dice.in_bolt("finish_batch after its writes")
        for tuple in self.rows:
            self.collector.emit([self.id, tuple["key"], tuple["id"]])

    def write(self, store: Store, ids: dict[str, list[int]]) -> None:
        raise NotImplementedError


class KeepByTxid(Keep):
    """The recipe for a transactional spout: the txid is kept with each value."""

    def write(self, store, ids):
        for key, new in ids.items():
            if store.dice.hits("half_write"):
                raise ConnectionError("applied in part")
            txid, value = store.records.get(key, (0, []))
            if txid < self.id.txid:
                store.records[key] = (self.id.txid, sorted([*value, *new]))


class KeepOpaquely(Keep):
    """The recipe for an opaque spout: the library's map over any store."""

    def resolved(self):
        return self.context.resolved

    def write(self, store, ids):
        state = OpaqueMap(NewestAttempt(store))
        state.begin_commit(self.id.txid, attempt=self.id.attempt_id, resolved=self.resolved())
        state.multi_update([(key,) for key in ids], [_Append(new) for new in ids.values()])
        state.commit(self.id.txid)


class KeepInState(Keep):
    """No recipe at all: the bolt has a state of ours, which it changes while it executes."""

    kind = StateKind.OPAQUE

    def execute(self, tuple):
        super().execute(tuple)
        self.context.state(self.store).update(tuple["key"], _Append([tuple["id"]]))

    def write(self, store, ids):
        """Also here: changes of both phases go into one record."""
        state = self.context.state(self.store)
        state.multi_update(list(ids), [_Same() for _ in ids])


class KeepInTransactionalState(KeepInState):
    kind = StateKind.TRANSACTIONAL


class _Same(ValueUpdater[list[int]]):
    def update(self, stored):
        return stored


class HalfWriting(MemoryMap[Any]):
    """A store with a head, which now and then applies a write in part."""

    def __init__(self, dice: Dice) -> None:
        super().__init__("the simulated state")
        self._dice = dice

    def _store(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            if self._dice.hits("half_write"):
                raise ConnectionError("applied in part")
            super()._store([key], [value])


@dataclass(frozen=True)
class SimulatedState(StateFactory):
    """The recipe of a state in a world."""

    world: int
    name: str
    kind: StateKind

    def make_state(self, conf, partition_index, num_partitions):
        backing = _worlds[self.world].maps[self.name]
        return make_map(self.kind, backing, name=self.name, partition=partition_index)


class Fickle(OpaqueMemoryTransactionalSpout):
    """How much a batch has of a partition is another number each time."""

    def __init__(self, rows, world: int) -> None:
        super().__init__(rows, ("key", "id"), 3)
        self.world = world

    def after(self, partition, last):
        start = 0 if last is None else last[0] + last[1]
        count = min(_worlds[self.world].dice.random.randrange(5), len(self.rows[partition]) - start)
        return [start, count] if count > 0 else None


def global_list(builder, world):
    builder.set_bolt("tag", Tag(world.number), 2).shuffle_grouping(SPOUT)
    world.keep(builder, "keep", "one").global_grouping("tag")
    return {"one": 1}


def keyed(builder, world):
    builder.set_bolt("gather", world.gather(), 3).none_grouping(SPOUT)
    for name in ("one", "two"):
        world.keep(builder, f"keep {name}", name, 2).fields_grouping("gather", "key")
    return {"one": 1, "two": 1}


def a_b_c_d(builder, world):
    builder.set_bolt("a", world.gather(), 2).shuffle_grouping(SPOUT)
    world.keep(builder, "b", "b", 2).fields_grouping("a", "key")
    c = builder.set_bolt("c", world.gather(), 2)
    c.shuffle_grouping("a").shuffle_grouping("b")
    world.keep(builder, "d", "d", 2).fields_grouping("c", "key")
    return {"b": 1, "d": 2}


def two_stores(builder, world):
    """The second committer goes by what the first has written."""
    world.keep(builder, "first", "one", 2).fields_grouping(SPOUT, "key")
    builder.set_bolt("tag", Tag(world.number), 2).shuffle_grouping("first")
    world.keep(builder, "second", "two", 2).fields_grouping("tag", "key")
    return {"one": 1, "two": 1}


SHAPES = (global_list, keyed, a_b_c_d, two_stores)


@dataclass
class World:
    """What outlives a crash: source, ledger, stores; and what was seen."""

    number: int
    dice: Dice
    opaque: bool
    shape: Callable[..., dict[str, int]]
    rows: list[list[tuple[str, int]]]
    pending: int
    collapse: int
    committer_class: type[Keep]
    stores: dict[str, Store] = field(default_factory=dict)
    maps: dict[str, HalfWriting] = field(default_factory=dict)
    ledger: SharedMemory = field(default_factory=SharedMemory)
    marks: list[int] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    now: float = 0.0
    topology: TransactionalTopology = None  # type: ignore[assignment]
    copies: dict[str, int] = field(default_factory=dict)

    @property
    def sized(self) -> bool:
        """Whether it chooses by itself how many are in flight."""
        return random.Random(f"sized {self.number}").random() < 0.25

    def gather(self) -> Gather:
        """Return a bolt that passes rows on, one by one or by column: half of the worlds each."""
        by_column = random.Random(f"columns {self.number}").random() < 0.5
        return (GatherColumns if by_column else Gather)(self.number)

    def __post_init__(self) -> None:
        _worlds[self.number] = self
        if self.opaque:
            spout = Fickle(self.rows, self.number)
        else:
            take = self.dice.random.randrange(1, 4)
            spout = MemoryTransactionalSpout(self.rows, ("key", "id"), take)
        builder = TransactionalTopologyBuilder("simulated", SPOUT, spout, 2)
        self.copies = self.shape(builder, self)
        self.topology = builder.build_topology()

    @property
    def spout(self) -> Any:
        return self.topology.components[SPOUT].component

    def keep(self, builder, id: str, store: str, tasks: int = 1) -> Any:
        """Add a committer, with a state of ours if its class has one."""
        self.stores[store] = Store(self.dice)
        bolt = self.committer_class(self.number, store)
        declarer = builder.set_bolt(id, bolt, tasks)
        if isinstance(bolt, KeepInState):
            self.maps[store] = HalfWriting(self.dice)
            state = SimulatedState(self.number, store, bolt.kind)
            declarer.with_state(store, state, keys="key string", values="ids array<bigint>")
        return declarer

    def stored(self) -> dict[str, Any]:
        assert self.ledger.document is not None
        return json.loads(self.ledger.document)

    def check_may_commit(self, attempt) -> None:
        """Note a committer that finishes before its attempt was recorded as begun."""
        ledger = self.stored()
        begun = attempt.txid < ledger["current"] or (
            attempt.txid == ledger["current"] and attempt.attempt_id in ledger["begun"]
        )
        if not begun:
            self.wrong.append(f"{attempt} finishes outside of its commit phase")

    def reference(self, ends: list[int], copies: int) -> dict[str, list[int]]:
        """Count again, from the source."""
        found: dict[str, list[int]] = {}
        for rows, end in zip(self.rows, ends, strict=True):
            for key, number in rows[:end]:
                found.setdefault(key, []).extend([number] * copies)
        return {key: sorted(ids) for key, ids in found.items()}

    def view(self, store: Store, current: int, resolved: Mapping[int, int]) -> dict[str, list[int]]:
        """What is stored, as the batch `current` finds it."""
        found = {}
        kept = self.maps.get(next(name for name, s in self.stores.items() if s is store))
        records = store.records if kept is None else {key[0]: r for key, r in kept.items()}
        for key, record in records.items():
            if isinstance(record, OpaqueValue):
                value = record.before(current, resolved)
            else:
                value = record.value if isinstance(record, TransactionalValue) else record[1]
            if value:
                found[key] = value
        return found

    def check(self, when: str, metadata: Any, current: int, resolved: Mapping[int, int]) -> None:
        ends = ends_of(metadata, len(self.rows))
        for name, store in self.stores.items():
            expected = self.reference(ends, self.copies[name])
            found = self.view(store, current, resolved)
            if found != expected:
                self.wrong.append(f"{when}: {name} holds {found}, not {expected}")


def ends_of(metadata: Any, partitions: int) -> list[int]:
    """Where a batch ends, by partition."""
    ends = []
    for last, pinned in metadata or [(None, None)] * partitions:
        start, count = pinned or last or (0, 0)
        ends.append(start + count)
    return ends


class Watcher:
    """Checks the promises at every mark."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.run: LocalBatches | None = None

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
        ledger = self.run.loop.ledger
        metadata = (ledger.committed_metadata or {})[SPOUT]
        before = None if ledger.earlier_metadata is None else ledger.earlier_metadata[SPOUT]
        for (last, pinned), end in zip(metadata, ends_of(before, len(world.rows)), strict=True):
            starts = pinned[0] if pinned else end
            if starts != end or sum(last or (0, 0)) != end:
                world.wrong.append(f"batch {event.attempt} does not go on at {end}: {metadata}")
        world.check(f"after batch {event.attempt}", metadata, ledger.current, ledger.resolved)


def make_world(
    seed: int, *, opaque: bool, committer: type[Keep] | None = None, shape: Any = None
) -> World:
    """Roll the dice for a world; each kind of fault is there in about half of them."""
    rng = random.Random(seed)

    def sometimes(chance: float) -> float:
        return chance if rng.random() < 0.5 else 0.0

    dice = Dice(
        rng,
        crash=sometimes(0.02),
        fail=sometimes(0.03),
        error=sometimes(0.01),
        death=sometimes(0.03),
        lost_result=sometimes(0.05),
        half_write=sometimes(0.05),
        outage=sometimes(0.2),
        zombies=rng.random() < 0.5,
    )
    numbers = iter(range(10_000))
    rows = [
        [(rng.choice(KEYS), next(numbers)) for _ in range(rng.randrange(1, 6))]
        for _ in range(rng.randrange(1, 4))
    ]
    return World(
        seed,
        dice,
        opaque,
        rng.choice(SHAPES) if shape is None else shape,
        rows,
        pending=min(rng.randrange(1, 9), rng.randrange(1, 9)),
        collapse=rng.choice([0, 2000]),
        committer_class=committer or (KeepOpaquely if opaque else KeepByTxid),
    )


def run_schedule(world: World, *, max_steps: int = 4000) -> World:
    """Run until the source is drained, restarting after every crash; then check the end."""
    config = Config(
        max_spout_pending=None if world.sized else world.pending,
        batch_sizing=world.sized,
        wave_collapse_tuples=world.collapse,
        max_retries=1000,
        retry_backoff_millis=1,
        retry_backoff_max_millis=20,
        cancel_wait_secs=0.01,
    )
    old: list[InProcessBatchBolts] = []
    run: LocalBatches | None = None
    faults.install(world.dice.at_point)
    try:
        for step in range(max_steps):
            if step > max_steps // 2:
                world.dice.on = False  # heal, and let it drain
            world.now += 0.01
            try:
                if run is None:
                    run = _start(world, config)
                _one_step(world, run, old)
                if _drained(world, run):
                    break
            except SimulatedCrash:
                if run is not None and world.dice.zombies:
                    run.engine.report = lambda event: None
                    old.append(run.engine)
                run = None
    finally:
        faults.install(None)
        _worlds.pop(world.number)
    _check_end(world, run)
    return world


def _start(world: World, config: Config) -> LocalBatches:
    watcher = Watcher(world)
    run = LocalBatches(
        world.topology,
        config,
        store=MemoryCoordinationStore("simulated", world.ledger),
        clock=lambda: world.now,
        listener=watcher,
        loses_result=lambda: world.dice.hits("lost_result"),
        keep_emitted=False,
    )
    watcher.run = run
    return run


def _one_step(world: World, run: LocalBatches, old: list[InProcessBatchBolts]) -> None:
    rng = world.dice.random
    if world.opaque:
        world.spout.disabled = {p for p in range(len(world.rows)) if world.dice.hits("outage")}
    run.loop.step()
    for _ in range(rng.randrange(1, 4)):
        run.engine.step(rng.randrange)
    for engine in old:
        # The dead driver's tasks go on for a while; nobody listens to them any more.
        if rng.random() < 0.2:
            with suppress(SimulatedCrash):
                engine.step(rng.randrange)


def _drained(world: World, run: LocalBatches) -> bool:
    if not run.loop.is_idle or run.engine.waiting:
        return False
    metadata = (run.loop.ledger.committed_metadata or {}).get(SPOUT)
    return ends_of(metadata, len(world.rows)) == [len(rows) for rows in world.rows]


def _check_end(world: World, run: LocalBatches | None) -> None:
    if run is None or not _drained(world, run):
        world.wrong.append("not drained")
        return
    ledger = run.loop.ledger
    metadata = (ledger.committed_metadata or {})[SPOUT]
    world.check("at the end", metadata, ledger.current, ledger.resolved)
    if world.marks != sorted(set(world.marks)):
        world.wrong.append(f"marks out of order: {world.marks}")
    for txid in {t for t, _ in world.attempts}:
        numbers = [a for t, a in world.attempts if t == txid]
        if numbers != sorted(set(numbers)):
            world.wrong.append(f"attempts of batch {txid} do not increase: {numbers}")
