"""A shadow of all tuple trees, kept outside of the code that tracks them, and bolts that feed it.

Every emission of a spout and every tuple is noted here as it is made, by a number of its own;
nothing in here knows about XOR, frames or waves.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from waterspout import FailedException
from waterspout.topology import Bolt, Direct, Spout, Topology, TopologyBuilder
from waterspout.topology._component import DEFAULT_STREAM

TICK = {"topology.tick.tuple.freq.secs": 1}


@dataclass
class Emission:
    """One emission of a message: what of its tree is open, and what its spout was told."""

    task: int
    time: float
    open: Counter[tuple[int, int]] = field(default_factory=Counter)
    failed: bool = False
    told: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.failed and not any(self.open.values())


class World:
    """All trees of one run, and what is to be done with each tuple."""

    def __init__(self, seed: int, messages: int, *, timeout: float, depth: int = 4) -> None:
        self.random = random.Random(seed)
        self.left = messages
        self.timeout = timeout
        self.depth = depth
        self.clock: Callable[[], float] = lambda: 0.0
        self.emissions: dict[int, Emission] = {}
        self.roots: dict[int, frozenset[int]] = {}
        self.numbers = itertools.count(1)
        self.acks = 0
        self.draining = False
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._undo: list[Callable[[], None]] = []

    def message(self, task: int) -> int:
        """A message is about to be emitted."""
        emission = next(self.numbers)
        self.emissions[emission] = Emission(task, self.clock())
        return emission

    def created(self, tuple_id: int, roots: Iterable[int], targets: Iterable[int]) -> None:
        self.roots[tuple_id] = frozenset(roots)
        for root in self.roots[tuple_id]:
            for target in targets:
                self._change(root, (tuple_id, target), 1)

    def acked(self, tuple_id: int, task: int) -> None:
        self.acks += 1
        for root in self.roots[tuple_id]:
            self._change(root, (tuple_id, task), -1)

    def failed(self, tuple_id: int) -> None:
        for root in self.roots[tuple_id]:
            emission = self.emissions[root]
            if not emission.failed:
                emission.failed = True
                self._undo.append(lambda e=emission: setattr(e, "failed", False))

    def reset(self, tuple_id: int) -> None:
        for root in self.roots[tuple_id]:
            self.emissions[root].time = self.clock()

    def told(self, verb: str, root: int, task: int) -> None:
        """A spout was told; everything that is wrong with that is noted."""
        emission = self.emissions[root]
        if emission.told:
            self.wrong.append(f"{root}: {verb} after {emission.told}")
        if emission.task != task:
            self.wrong.append(f"{root}: {verb} at task {task}, emitted by {emission.task}")
        if verb == "ack" and not emission.is_complete:
            self.wrong.append(f"{root}: acked early, open: {+emission.open}")
        age = self.clock() - emission.time
        if verb == "fail" and not emission.failed and age < self.timeout:
            self.wrong.append(f"{root}: failed without a reason at the age of {age}")
        emission.told.append(verb)

    def missing(self) -> list[str]:
        """What a spout should have been told by the end of a wave, and was not."""
        found = []
        for root, emission in self.emissions.items():
            if emission.is_complete and not emission.told:
                found.append(f"{root}: complete, and not acked")
            if emission.failed and not emission.told:
                found.append(f"{root}: failed, and its spout does not know")
        return found

    def mark(self) -> None:
        """Remember how things are: a wave begins."""
        self._undo.clear()

    def roll_back(self) -> None:
        """Forget what has happened since the mark: the wave came to nothing."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _change(self, root: int, key: tuple[int, int], by: int) -> None:
        counts = self.emissions[root].open
        counts[key] += by
        self._undo.append(lambda: counts.update({key: -by}))


worlds: dict[str, World] = {}


class ShadowSpout(Spout):
    """Emits numbered messages, some untracked, some on a direct stream."""

    streams: ClassVar = {DEFAULT_STREAM: ("id", "depth"), "d": Direct("id", "depth")}

    def __init__(self, world: str, direct_to: str | None = None) -> None:
        self._world, self._direct_to = world, direct_to

    def open(self, conf, context, collector):
        self.collector = collector
        self._task = context.this_task_id
        self._direct = context.component_tasks(self._direct_to) if self._direct_to else ()

    def next_tuple(self):
        world = worlds[self._world]
        if world.left <= 0 or world.random.random() < 0.3:
            return
        world.left -= 1
        tracked = world.random.random() < 0.9
        root = world.message(self._task) if tracked else None
        tuple_id = next(world.numbers)
        roots = [root] if tracked else []
        if self._direct and world.random.random() < 0.3:
            target = world.random.choice(self._direct)
            self.collector.emit_direct(target, [tuple_id, 0], msg_id=root, stream="d")
            world.created(tuple_id, roots, [target])
        else:
            world.created(tuple_id, roots, self.collector.emit([tuple_id, 0], msg_id=root))

    def ack(self, msg_id):
        worlds[self._world].told("ack", msg_id, self._task)

    def fail(self, msg_id):
        worlds[self._world].told("fail", msg_id, self._task)

    def __getstate__(self):
        return {"_world": self._world, "_direct_to": self._direct_to}


class ShadowBolt(Bolt):
    """Does with each tuple what chance says, and notes it."""

    streams: ClassVar = {
        DEFAULT_STREAM: ("id", "depth"),
        "all": ("id", "depth"),
        "back": ("id", "depth"),
        "d": Direct("id", "depth"),
    }
    configuration: ClassVar = TICK

    def __init__(self, world: str, direct_to: str | None = None) -> None:
        self._name, self._direct_to = world, direct_to
        self.held: list[Any] = []

    def prepare(self, conf, context, collector):
        self.collector = collector
        self._task = context.this_task_id
        self._direct = context.component_tasks(self._direct_to) if self._direct_to else ()

    @property
    def _world(self) -> World:
        return worlds[self._name]

    def execute(self, tuple):
        world, dice = self._world, self._world.random
        if tuple.is_tick:
            self._let_go(len(self.held) if world.draining else 1)
            return
        if dice.random() < 0.2:
            self._let_go(dice.randint(0, 2))
        if tuple["depth"] < world.depth:
            for _ in range(dice.choice([0, 0, 1, 1, 2, 3])):
                self._emit(tuple)
        self._end(tuple)

    def _emit(self, given: Any) -> None:
        world, dice = self._world, self._world.random
        kind = dice.choice(["one", "one", "one", "list", "twice", "many", "many", "none"])
        world.done[kind] += 1
        if kind == "many":
            anchors: Any = [given, *dice.sample(self.held, min(len(self.held), dice.randint(0, 3)))]
        else:
            anchors = {"one": given, "list": [given], "twice": [given, given], "none": None}[kind]
        given_anchors = anchors if isinstance(anchors, list) else [anchors] if anchors else []
        roots = {root for anchor in given_anchors for root in world.roots[anchor["id"]]}
        tuple_id = next(world.numbers)
        values = [tuple_id, given["depth"] + 1]
        stream = dice.choice([DEFAULT_STREAM, DEFAULT_STREAM, "all", "back", "d"])
        if stream == "d" and self._direct:
            target = dice.choice(self._direct)
            self.collector.emit_direct(target, values, anchors, stream="d")
            targets = [target]
        else:
            stream = DEFAULT_STREAM if stream == "d" else stream
            targets = self.collector.emit(values, anchors, stream=stream)
        world.created(tuple_id, roots, targets)

    def _end(self, given: Any) -> None:
        world = self._world
        deeds = ["ack"] * 60 + ["hold"] * 12
        if not world.draining:
            deeds += ["fail", "raise", "failed exception", "ack and raise", "never", "reset"]
        deed = world.random.choice(deeds)
        world.done[deed] += 1
        if deed == "ack":
            self._ack(given)
        elif deed in ("hold", "reset"):
            self.held.append(given)
            if deed == "reset":
                self.collector.reset_timeout(given)
                world.reset(given["id"])
        elif deed == "fail":
            self.collector.fail(given)
            world.failed(given["id"])
        elif deed != "never":
            if deed == "ack and raise":
                self.collector.ack(given)
            world.failed(given["id"])
            raise (FailedException if deed == "failed exception" else ValueError)(deed)

    def _let_go(self, count: int) -> None:
        """End some tuples that were held, from this wave or from earlier ones."""
        world, dice = self._world, self._world.random
        for _ in range(min(count, len(self.held))):
            held = self.held.pop(dice.randrange(len(self.held)))
            if not world.draining and dice.random() < 0.3:
                self._emit(held)
            if not world.draining and dice.random() < 0.1:
                self.collector.fail(held)
                world.failed(held["id"])
                world.done["held, then failed"] += 1
            else:
                self._ack(held)
                world.done["held, then acked"] += 1

    def _ack(self, given: Any) -> None:
        self.collector.ack(given)
        self._world.acked(given["id"], self._task)


def shadow_topology(world: str) -> Topology:
    """Several spouts and tasks, every grouping that matters, a cycle and a loop onto itself."""
    builder = TopologyBuilder()
    builder.set_spout("a", ShadowSpout(world, "first"))
    builder.set_spout("b", ShadowSpout(world), 2)
    first = builder.set_bolt("first", ShadowBolt(world, "third"), 2)
    first.shuffle_grouping("a").direct_grouping("a", "d").fields_grouping("b", "id")
    first.shuffle_grouping("third", "back")
    second = builder.set_bolt("second", ShadowBolt(world), 3)
    second.shuffle_grouping("first").all_grouping("first", "all")
    third = builder.set_bolt("third", ShadowBolt(world), 2)
    third.fields_grouping("second", "id").shuffle_grouping("second").direct_grouping("first", "d")
    join = builder.set_bolt("join", ShadowBolt(world))
    join.global_grouping("third").none_grouping("second", "all").shuffle_grouping("join", "back")
    return builder.create_topology("shadow")


def open_by_root(world: World) -> dict[int, int]:
    """How many tuples of each tree are open; for messages that say what is wrong."""
    counts: dict[int, int] = defaultdict(int)
    for root, emission in world.emissions.items():
        counts[root] += sum(emission.open.values())
    return counts
