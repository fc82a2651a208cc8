"""What outlives the drivers of a drawn topology: sources, stores, the ledger; and the topology."""

from __future__ import annotations

import copy
import datetime as dt
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rows.stores import Place as RowsPlace
from tests.semantics.drawn_cases import (
    KEYS,
    Ask,
    Case,
    NewValues,
    Place,
    Source,
    Static,
    Step,
    Update,
)
from tests.semantics.drawn_oracle import FUNCTIONS, grouped, is_forgotten, labelled, within_ms
from tests.semantics.drawn_rows import DrawnRows
from tests.semantics.drawn_sources import FIELDS, Feed, feed_of
from tests.semantics.simulation import (
    Dice,
    Ids,
    LateMap,
    Service,
    UnreliableMap,
    UnreliableState,
)
from waterspout import Config
from waterspout._serde import encode_key
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import StoreError
from waterspout.state import CachedMap, ComparingMap, StateFactory, StateKind, ValueUpdater
from waterspout.state._base import BackingMap, State
from waterspout.state._head import Head
from waterspout.state._headed import HeadedState
from waterspout.state._kinds import make_map
from waterspout.state._memory import MemoryMap
from waterspout.state.files import FileState
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional._ledger import Ledger
from waterspout.trident import (
    AppendRows,
    Count,
    MapGet,
    ReducerAggregator,
    StateUpdater,
    Stream,
    Sum,
    TridentState,
    TridentTopology,
    UpsertRows,
)
from waterspout.trident.plan.plan import Plan

NAME = "drawn"
ROWS = ("published", "pinned")

Batch = tuple[int, Mapping[str, Any]]
"""The attempt that committed a batch, and what was in it."""


class Reduced(ReducerAggregator[list[int]]):
    """The same as `Ids`, tuple by tuple."""

    def init(self):
        return []

    def reduce(self, current, tuple):
        return sorted([*current, tuple["id"]])


@dataclass
class Append(ValueUpdater[list[int]]):
    number: int

    def update(self, stored):
        return sorted([*(stored or []), self.number])


class ById(StateUpdater):
    """Keys on one of the fields that it gets."""

    def update_state(self, state, tuples, collector):
        state.multi_update([(t["k"],) for t in tuples], [Append(t["id"]) for t in tuples])


@dataclass
class Add(ValueUpdater[int]):
    number: int

    def update(self, stored):
        return (stored or 0) + self.number


class Firsts(StateUpdater):
    """Counts, and emits the keys that it has not met before."""

    def update_state(self, state, tuples, collector):
        counts = Counter(t["k"] for t in tuples)
        keys = [(k,) for k in counts]
        before = state.multi_get(keys)
        after = state.multi_update(keys, [Add(number) for number in counts.values()])
        for (k,), old, new in zip(keys, before, after, strict=True):
            if old is None:
                collector.emit((k, new))


class Forgets(StateUpdater):
    """Counts, and removes some keys."""

    def update_state(self, state, tuples, collector):
        found = grouped([t.values for t in tuples])
        state.multi_update([(k,) for k in found], [Add(len(n)) for n in found.values()])
        state.multi_remove([(k,) for k, numbers in found.items() if is_forgotten(numbers)])


class NotingStore(MemoryCoordinationStore):
    """Keeps what each committed batch held."""

    def __init__(self, shared: SharedMemory, batches: dict[int, Batch], folder: Path) -> None:
        super().__init__(NAME, shared)
        self._batches = batches
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def save(self, ledger: Ledger) -> None:
        super().save(ledger)
        if ledger.committed_attempt is not None:
            held = ledger.committed_metadata or {}
            self._batches[ledger.current - 1] = (ledger.committed_attempt, held)
        self._batches.pop(ledger.current, None)  # it was rolled back


class TwoMethods(BackingMap[Any]):
    """What a store author begins with: no fence."""

    def __init__(self, dice: Dice) -> None:
        self.below = MemoryMap[Any]("two methods")

    def multi_get(self, keys):
        return self.below.multi_get(keys)

    def multi_put(self, keys, values):
        self.below.multi_put(keys, values)

    def scan(self, shard=0, shards=1):
        return self.below.scan(shard, shards)


class Unreachable(StoreError):
    """Raised by a store where none can be reached for a moment."""


class ThreeMethods(TwoMethods, ComparingMap[Any]):
    """With the third, it has one: the head is among the records."""

    title = "three methods"
    undoes_lost_attempts = False

    def __init__(self, dice: Dice, kind: StateKind) -> None:
        super().__init__(dice)
        self._dice = dice
        self._service = Service(dice)
        self.kind = kind

    def multi_get(self, keys):
        self._service.reach()
        return super().multi_get(keys)

    def multi_compare_and_put(self, keys, read, values):
        self._service.reach()
        if self._dice.hits(self._dice.lost_write):
            raise Unreachable("not applied")
        stored = self.below.multi_compare_and_put(keys, read, values)
        if self._dice.hits(self._dice.lost_answer):
            raise Unreachable("applied, but the answer was lost")
        return stored

    def scan(self, shard=0, shards=1):
        for chunk in super().scan(shard, shards):
            yield [(key, record) for key, record in chunk if key != self.head_key]


@dataclass(frozen=True)
class UnfencedState(UnreliableState):
    fenced = False


@dataclass(frozen=True)
class Changing(StateFactory):
    """A static state of which it is noted what it held for which attempt."""

    world: World
    position: int
    driver_only = True

    def make_state(self, conf: Config, partition_index: int, num_partitions: int) -> State:
        content = self.world.note_static(self.position)
        below: MemoryMap[Any] = MemoryMap("static")
        below.multi_put([(k,) for k in KEYS], list(content))
        return make_map(StateKind.NON_TRANSACTIONAL, below, name="static")


@dataclass
class World:
    """What outlives a crash, and what was seen."""

    case: Case
    dice: Dice
    folder: Path
    ledger: SharedMemory = field(default_factory=SharedMemory)
    batches: dict[int, Batch] = field(default_factory=dict)
    feeds: dict[int, Feed] = field(default_factory=dict)
    statics: dict[int, int] = field(default_factory=dict)
    static_seen: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    running: tuple[int, int] = (0, 0)
    maps: dict[int, BackingMap[Any]] = field(default_factory=dict)
    rows: dict[int, RowsPlace] = field(default_factory=dict)
    services: dict[int, Service] = field(default_factory=dict)
    plan: Plan | None = None
    names: dict[int, str] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        (self.folder / "home").mkdir()
        for i, thing in enumerate(self.case.things):
            if isinstance(thing, Source):
                self.feeds[i] = feed_of(f"s{i}", thing, self.dice.random, self.folder)
            elif isinstance(thing, Static):
                self.statics[i] = 0

    def bring_late_rows(self) -> None:
        """Let the rest of the rows come."""
        for feed in self.feeds.values():
            feed.bring_late_rows()

    @property
    def sources(self) -> dict[int, Source]:
        """The spouts."""
        return {i: t for i, t in enumerate(self.case.things) if isinstance(t, Source)}

    def store(self) -> NotingStore:
        return NotingStore(self.ledger, self.batches, self.folder / "home")

    def change_statics(self) -> None:
        """Let somebody put other labels into the static states."""
        for i in self.statics:
            self.statics[i] += 1

    def note_static(self, i: int) -> str:
        static = self.case.things[i]
        assert isinstance(static, Static)
        content = static.labels[self.statics[i] % len(static.labels)]
        self.static_seen.setdefault(self.running, {})[i] = content
        return content

    def recipe(self, place: Place, kind: StateKind) -> StateFactory:
        """Return the recipe of a state."""
        if place.store == "sqlite":
            return SQLiteState(self._path(place), place.table, kind=kind)
        if place.store in ROWS:
            shared = self.rows.setdefault(place.number, RowsPlace())
            service = self.services.setdefault(place.number, Service(self.dice))
            address = f"{place.number}{'' if place.spelling == 'plain' else place.spelling}"
            return DrawnRows.of(place.store, shared, self.dice, service, address)
        if place.store == "files":
            return FileState(self._path(place), kind=kind, snapshot_every=3)
        recipe = UnfencedState if place.store == "two methods" else UnreliableState
        return recipe(self._map(place, kind), kind)

    def _map(self, place: Place, kind: StateKind = StateKind.OPAQUE) -> BackingMap[Any]:
        if place.number not in self.maps:
            self.maps[place.number] = self._new_map(place, kind)
        made = self.maps[place.number]
        return CachedMap(made, 3) if place.store == "cached" else made

    def _new_map(self, place: Place, kind: StateKind) -> BackingMap[Any]:
        match place.store:
            case "late":
                return LateMap(self.dice)
            case "two methods":
                return TwoMethods(self.dice)
            case "three methods":
                return ThreeMethods(self.dice, kind)
        return UnreliableMap(self.dice)

    def _path(self, place: Place) -> Path:
        name = f"s{place.number}" + (".db" if place.store == "sqlite" else "")
        match place.spelling:
            case "dots":
                return self.folder / "in" / ".." / name
            case "link":
                link = self.folder / "link"
                if not link.is_symlink():
                    os.symlink(self.folder, link)
                return link / name
        return self.folder / name

    def opened(self, i: int) -> Any:
        """Return a state as a reader outside of any batch has it."""
        assert self.plan is not None
        spec = self.plan.states[self.names[i]]
        state = spec.factory.make_state(Config(), 0, spec.partitions)
        assert isinstance(state, HeadedState)
        return state

    def content(self, i: int) -> dict[Any, Any]:
        """Return what a state holds, as it is read past the library if that is possible."""
        update = self.case.updates[i]
        if not update.writes_rows:
            with closing(self.opened(i)) as state:
                return {key: value for chunk in state.scan() for key, value in chunk}
        assert self.plan is not None
        factory = self.plan.states[self.names[i]].factory
        if isinstance(factory, DrawnRows):
            return dict(Counter(factory.seen()))
        path = self._path(update.place)
        if not path.exists():
            return {}
        with closing(sqlite3.connect(path)) as db:
            listed = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if not db.execute(listed, (update.place.table,)).fetchall():
                return {}
            found = db.execute(f"SELECT k, g, id FROM {update.place.table}").fetchall()
        return dict(Counter(map(tuple, found)))

    def heads(self, place: Place) -> list[Head | None]:
        """Return the heads of all states that are copied and put back together."""
        return [
            self.head(i)
            for i, update in self.case.updates.items()
            if (update.place.store, update.place.number) == (place.store, place.number)
        ]

    def head(self, i: int) -> Head | None:
        """Return the head of a state, as its operator sees it."""
        on, self.dice.on = self.dice.on, False
        try:
            with closing(self.opened(i)) as state:
                return state.read_head()
        finally:
            self.dice.on = on

    def list_of_files(self, i: int) -> Path:
        """Return where a spout keeps which files it has read."""
        return self.folder / "home" / f"files-s{i}.db"

    def copied(self, place: Place) -> Any:
        """Return a copy of a store as it is now."""
        if place.store == "sqlite":
            path, into = self._path(place), sqlite3.connect(":memory:")
            if path.exists():
                with closing(sqlite3.connect(path)) as db:
                    db.backup(into)
            return into
        if place.store == "files":
            path, made = self._path(place), self.folder / f"copy{place.number}"
            if path.exists():
                shutil.copytree(path, made)
            return made
        if place.store in ROWS:
            return self.rows.setdefault(place.number, RowsPlace()).content()
        below = self._memory(place)
        return copy.deepcopy(below._records), below._head

    def restore_ledger(self, made: tuple[str | None, int]) -> None:
        """Put an older copy of the coordination store in its place."""
        self.ledger.document, self.ledger.epoch = made
        ledger = self.store().peek()
        current = 1 if ledger is None else ledger.current
        for txid in [txid for txid in self.batches if txid >= current]:
            del self.batches[txid]

    def empty(self, place: Place) -> None:
        """Remove the records of a state and leave its head."""
        if place.store == "sqlite":
            with closing(sqlite3.connect(self._path(place))) as db, db:
                db.execute(f"DELETE FROM {place.table}")
        elif place.store in ROWS:
            self.rows[place.number].shown, self.rows[place.number].lines = [], []
        else:
            records = self._memory(place)._records
            head = encode_key(ComparingMap.head_key)
            for key in [key for key in records if key != head]:
                del records[key]

    def _memory(self, place: Place) -> MemoryMap[Any]:
        match self.maps[place.number]:
            case LateMap(_store=below) | TwoMethods(below=below) | below:
                assert isinstance(below, MemoryMap)
                return below

    def put_back(self, place: Place, made: Any) -> None:
        """Put a copy in the place of a store."""
        if place.store == "sqlite":
            with closing(sqlite3.connect(self._path(place))) as db:
                made.backup(db)
        elif place.store == "files":
            shutil.rmtree(self._path(place), ignore_errors=True)
            if made.exists():
                shutil.copytree(made, self._path(place))
        elif place.store in ROWS:
            self.rows[place.number].put_back(made)
        else:
            below = self._memory(place)
            below._records, below._head = copy.deepcopy(made[0]), made[1]


def build(world: World) -> TridentTopology:
    """Return the topology of a world."""
    topology = TridentTopology(NAME)
    made: dict[int, Any] = {}
    for i in range(len(world.case.things)):
        made[i] = _built(world, topology, made, i)
    world.names = {i: made[i].name for i in world.case.updates}
    return topology


def _built(world: World, topology: TridentTopology, made: Mapping[int, Any], i: int) -> Any:
    match world.case.things[i]:
        case Source():
            return world.feeds[i].stream(topology)
        case Static():
            return topology.new_static_state(
                Changing(world, i), keys="k string", values="label string"
            )
        case Step() as step:
            return _step(world, topology, step, [made[parent] for parent in step.of])
        case Ask(of=of, state=state, keeps_new=keeps_new):
            return _asked(world, made[of], made[state], keeps_new, state)
        case NewValues(of=of):
            return made[of].new_values_stream().map(lambda k, n: (k, "new", n), FIELDS)
        case Update() as update:
            return _updated(world, made[update.of], update)


def _step(world: World, topology: TridentTopology, step: Step, streams: list[Stream]) -> Stream:
    stream = streams[0]
    store = None if step.place is None else world.recipe(step.place, StateKind.OPAQUE)
    match step.name:
        case "filter":
            return stream.filter(["id"], lambda number: bool(number % step.by))
        case "map" | "flat_map":
            function = FUNCTIONS[step.name]
            return stream.flat_map(lambda *row: function(row, step.by), FIELDS)  # type: ignore[arg-type]
        case "sums":
            sums = stream.group_by("k").aggregate("id", Sum(), out="total")
            return sums.map(lambda k, total: (k, "sum", total), FIELDS)
        case "merge":
            return topology.merge(*streams)
        case "join":
            both = topology.join(
                streams[0], "k", streams[1], "k", out=["k", "g", "id", "g2", "id2"]
            )
            return both.map(lambda k, g, i, g2, i2: (k, f"{g}{g2}", 100 * i + i2), FIELDS)
        case "window":
            sums = stream.tumbling_window(step.by, "id", Sum(), store=store, out="total")
            return sums.map(lambda total: ("a", "window", total), FIELDS)
        case "deduplicate":
            # Shuffled first: a hint is for all that reads the stream, and windows are by partition.
            return stream.shuffle().parallelism_hint(step.by).deduplicate(step.keys, store)
        case "within":
            return stream.deduplicate(step.keys, store, dt.timedelta(milliseconds=within_ms(step)))
    raise AssertionError(step)


def _asked(
    world: World, stream: Stream, state: TridentState, keeps_new: bool, position: int
) -> Stream:
    if isinstance(world.case.things[position], Static):
        found = stream.state_query(state, "k", MapGet(), out="label string")
        return found.map(lambda *row: labelled(row[:3], row[3]), FIELDS)
    found = stream.state_query(state, "k", MapGet(), out="n bigint")
    if keeps_new:
        found = found.filter(["n"], lambda n: n is None)
        return found.project(["k", "g", "id"])
    return found.map(lambda *row: labelled(row[:3], row[3]), FIELDS)


def _updated(world: World, stream: Stream, update: Update) -> TridentState:
    factory = world.recipe(update.place, StateKind(update.kind))
    if update.is_persist:
        return _persisted(stream, update, factory)
    into = stream.group_by(list(update.keys)) if update.keys else stream
    match update.how:
        case "count":
            state = into.persistent_aggregate(factory, Count(), out="n")
        case "sum":
            state = into.persistent_aggregate(factory, "id", Sum(), out="n")
        case "append":
            state = stream.partition_persist(factory, AppendRows())
        case "upsert":
            state = stream.partition_persist(factory, UpsertRows("k", order_by="id"))
        case "ids":
            state = into.persistent_aggregate(factory, "id", Ids(), out="ids array<bigint>")
        case _:
            state = into.persistent_aggregate(factory, "id", Reduced(), out="ids array<bigint>")
    return state.parallelism_hint(update.partitions)


def _persisted(stream: Stream, update: Update, factory: StateFactory) -> TridentState:
    updater = {"firsts": Firsts, "forgets": Forgets, "persist": ById}[update.how]()
    updater.keys = "k" if update.declares_keys else None
    out = "k string, n bigint" if update.how == "firsts" else None
    if update.hints_stream:
        stream = stream.shuffle().parallelism_hint(update.partitions)
    state = stream.partition_persist(factory, ["k", "g", "id"], updater, out=out)
    return state if update.hints_stream else state.parallelism_hint(update.partitions)
