"""What bolts remember: how much of it a wave moves, and that no worker's end changes any of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.waves.driving import COLLAPSED, SPREAD, Driven, Record, seen
from waterspout.errors import WorkerLostError
from waterspout.testing import FeederSpout
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import BasicBolt, TopologyBuilder
from waterspout.waves import bolts, large, memory
from waterspout.waves.bolts import Worker
from waterspout.waves.engine import Wave, WaveDone, WaveFailed
from waterspout.waves.frames import pack
from waterspout.waves.memory import Memories, StateStep, TaskState, Whole, steps_since

ENTRIES = 500


@pytest.fixture(autouse=True)
def _little_is_large(monkeypatch):
    for module in (large, bolts):
        monkeypatch.setattr(module, "LARGE", 400)
    monkeypatch.setattr(memory, "_SMALL_BYTES", 5_000)


def key(number: int) -> str:
    return f"{number:020}"


class Workers(InProcessWaves):
    """Runs each wave on one of several workers, as `plan` says; notes what it moves.

    `plan` gives the number of the worker and what happens: "kill" it before, "lose" the result
    after, "copy" the wave on the next worker before.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__(2)
        self._plan = plan
        self._all = [Worker() for _ in range(3)]
        self.moved: list[int] = []
        self.missed = 0

    def start(self, wave: Wave) -> None:
        super().start(wave)
        self.moved.append(sum(len(row.data) for row in wave.rows()))

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        if self._wave is None:
            return None
        number, fate = (0, "") if self._wave.header.closing else self._plan(self._wave.header)
        if "kill" in fate:
            self._all[number] = Worker()
        if "copy" in fate:  # as Spark may do: another try of the task, which nobody listens to
            wave, self._worker = self._wave, replace(self._all[number + 1], token="copy")
            super().poll(wait_s)
            self._wave = wave
        self._worker = self._all[number]
        ended = super().poll(wait_s)
        if not isinstance(ended, WaveDone):
            return ended
        self.moved[-1] += sum(len(pack(result)) for result in ended.results)
        self.missed += sum(len(result.missed) for result in ended.results)
        if "lose" in fate:
            return WaveFailed(WorkerLostError("a worker died"))
        return ended


class Remember(BasicBolt):
    """Does to its containers what tuples say."""

    def prepare(self, conf, context):
        self.counts = dict.fromkeys(map(key, range(ENTRIES)), 0)
        self.others = {"seen": set(map(key, range(ENTRIES))), "few": []}

    def execute(self, tuple, collector):
        seen("executed").append(tuple["n"])
        act(self, tuple["n"])

    def cleanup(self):
        seen("left").append((list(self.counts.items()), self.others))


def act(bolt: Any, n: int) -> None:
    """Change what a bolt holds, in one of several ways; the same for the same number."""
    dice = random.Random(n)
    chosen = key(dice.randrange(ENTRIES + 100))
    match dice.choice(["count"] * 20 + ["delete", "add", "discard", "last", "few", "odd", "anew"]):
        case "count":
            bolt.counts[chosen] = n
        case "delete":
            bolt.counts.pop(chosen, None)
        case "add":
            bolt.others["seen"].add(chosen)
        case "discard":
            bolt.others["seen"].discard(chosen)
        case "last":
            bolt.counts.popitem()
        case "few":
            bolt.others["few"].append(n)
        case "odd":
            bolt.counts[chosen] = [n] if dice.random() < 0.2 else n
        case "anew" if dice.random() < 0.3:
            bolt.counts = Counter(bolt.counts) if dice.random() < 0.5 else dict(bolt.counts)


def started(plan: Any, bolt: Any = None, **options: Any) -> tuple[Driven, FeederSpout, Workers]:
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt or Remember()).global_grouping("source")
    builder.set_bolt("out", Record("out")).shuffle_grouping("source")
    engine = Workers(plan)
    return Driven(builder.create_topology("t"), engine=engine, **options), feeder, engine


def run_through(driven: Driven, feeder: FeederSpout, waves: int, size: int = 10) -> None:
    for wave in range(waves):
        for n in range(wave * size, (wave + 1) * size):
            feeder.feed([n], msg_id=n)
        driven.until_idle()


def expected(tuples: int) -> tuple[Any, Any]:
    model = Remember()
    model.prepare({}, None)
    for n in range(tuples):
        act(model, n)
    return list(model.counts.items()), model.others


@pytest.mark.parametrize(("seed", "shape"), [(1, SPREAD), (2, COLLAPSED), (3, COLLAPSED)])
def test_whichever_workers_live_and_die_a_bolt_holds_what_its_tuples_made_of_it(seed, shape):
    dice = random.Random(seed)
    fates = ["", "", "", "kill", "lose", "kill lose"]

    def plan(header):
        return dice.randrange(3), dice.choice(fates) if header.attempt < 2 else ""

    driven, feeder, engine = started(plan, wave_collapse_tuples=shape)

    run_through(driven, feeder, 30)
    driven.loop.close()

    assert seen("left") == [expected(300)]
    assert feeder.tracker.acks == dict.fromkeys(range(300), 1)
    assert engine.missed > 0, "no worker ever lacked anything: nothing was shown"


class Counting(BasicBolt):
    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries

    def prepare(self, conf, context):
        self.counts = Counter(dict.fromkeys(map(key, range(self._entries)), 1))

    def execute(self, tuple, collector):
        self.counts[key(tuple["n"] % ENTRIES)] += 1

    def cleanup(self):
        seen("left").append(self.counts)


class CountingByLambda(Counting):
    """Has an attribute that only cloudpickle can send."""

    def prepare(self, conf, context):
        super().prepare(conf, context)
        self.key = lambda n: key(n % ENTRIES)

    def execute(self, tuple, collector):
        self.counts[self.key(tuple["n"])] += 1


@pytest.mark.parametrize("bolt", [Counting, CountingByLambda])
def test_what_a_wave_moves_does_not_grow_with_what_its_bolt_holds(bolt):
    def moved(entries: int) -> list[int]:
        turns = iter(range(1000))
        driven, feeder, engine = started(lambda _: (next(turns) % 3, ""), bolt(entries))
        run_through(driven, feeder, 20)
        assert engine.missed <= 3, "each worker lacks it once"
        return engine.moved[-10:]

    few, many = moved(ENTRIES), moved(4 * ENTRIES)

    assert max(many) < 1.1 * max(few)
    assert max(many) < ENTRIES * len(key(0))


def test_what_is_kept_stays_near_to_what_is_held_however_much_changes():
    driven, feeder, engine = started(lambda _: (0, ""), Counting())

    run_through(driven, feeder, 30, size=100)
    held = ENTRIES * (len(key(0)) + 10)
    kept = max(progress["state_bytes"] for progress in driven.heard.waves)
    driven.loop.close()

    assert kept < 3 * held
    assert seen("left")[0].total() == ENTRIES + 3_000
    assert engine.missed == 0


def test_a_worker_without_the_memory_executes_nothing_and_the_next_wave_brings_it():
    turns = iter([0, 0, 1, 1, 1])
    driven, feeder, engine = started(lambda _: (next(turns, 1), ""))
    run_through(driven, feeder, 2)
    before = driven.loop.waves

    run_through(driven, feeder, 1)

    assert seen("executed")[20:] == list(range(10)), "each once, in order"
    assert (engine.missed, driven.loop.waves - before) == (1, 2)


def test_a_wave_that_is_run_again_is_given_whole_memories():
    fates = iter([(0, ""), (0, ""), (0, "lose"), (1, "")])
    driven, feeder, engine = started(lambda _: next(fates, (1, "")), retry_backoff_millis=0)

    run_through(driven, feeder, 3)
    driven.loop.close()

    assert engine.missed == 0
    assert seen("left") == [expected(30)]


class Unlike(Counting):
    """Holds something else each time that it executes a tuple, also the same one."""

    def execute(self, tuple, collector):
        seen("before").append(self.counts["x"])
        seen("times").append(None)
        self.counts["x"] = len(seen("times"))


def test_nobody_goes_on_with_a_copy_of_a_task_that_was_not_taken():
    fates = iter([(0, ""), (1, ""), (0, "copy"), (1, ""), (0, "")])
    driven, feeder, _ = started(lambda _: next(fates), Unlike())

    for n in range(4):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    # The tuple that runs twice does so from the same memory; what counts is its second end, 3.
    assert seen("before") == [0, 1, 1, 3, 4]


def state(version: int, *, whole: bool = False, size: int = 10_000) -> TaskState:
    """The state of a task after a wave that has changed something."""
    steps = (StateStep(str(version - 1), str(version), b"step"),) if version > 1 else ()
    return TaskState(
        str(version), b"attributes", steps, Whole(str(version), bytes(size)) if whole else None
    )


def versions(given: TaskState) -> list[str]:
    return [step.after for step in given.steps]


def test_a_wave_is_given_the_steps_that_workers_met_lately_lack():
    memories = Memories()
    memories.take_in({7: state(1, whole=True)}, (), "a")
    for version in (2, 3, 4):
        memories.take_in({7: state(version)}, (), "b")

    given = memories.given()[7]

    assert (given.version, versions(given), given.whole, given.partial) == (
        *("4", ["2", "3", "4"]),
        *(None, True),
    )
    assert [step.after for step in steps_since("2", given) or ()] == ["3", "4"]
    assert list(steps_since("4", given)) == []
    assert steps_since("0", given) is None


def test_a_worker_that_was_not_met_for_long_is_forgotten():
    memories = Memories()
    memories.take_in({7: state(1, whole=True)}, (), "a")
    for version in range(2, 20):
        memories.take_in({7: state(version)}, (), "b")

    assert versions(memories.given()[7]) == []
    assert versions(memories.given(complete=True)[7]) == [str(n) for n in range(2, 20)]


def test_a_new_whole_takes_the_place_of_the_steps_before_it():
    memories = Memories()
    memories.take_in({7: state(1, whole=True)}, (), "a")
    for version in range(2, 10):
        memories.take_in({7: state(version, whole=version == 8)}, (), "a")

    given = memories.given(complete=True)[7]

    assert (given.whole.version, versions(given)) == ("8", ["9"])


def test_a_task_that_was_missed_and_a_small_one_are_given_whole():
    memories = Memories()
    memories.take_in({7: state(1, whole=True), 8: state(1, whole=True, size=10)}, (), "a")
    partial = memories.given()
    memories.take_in({}, [7], "b")
    missed = memories.given()
    memories.take_in({7: state(2)}, (), "b")

    assert (partial[7].partial, partial[8].partial) == (True, False)
    assert (missed[7].partial, missed[7].whole.version) == (False, "1")
    assert memories.given()[7].partial


def test_all_is_given_until_the_worker_that_had_nothing_is_met():
    memories = Memories()
    memories.take_in({7: state(1, whole=True)}, (), "a")
    memories.take_in({}, [7], "b")
    memories.take_in({7: state(2)}, (), "a")
    waiting = memories.given()[7]
    memories.take_in({7: state(3)}, (), "b")
    met = memories.given()[7]
    memories.take_in({}, [7], "c")
    for version in range(4, 40):
        memories.take_in({7: state(version)}, (), "a")

    assert (waiting.partial, met.partial) == (False, True)
    assert memories.given()[7].partial, "it is not waited for for ever"


def test_a_task_that_holds_nothing_large_any_more_is_as_any_other():
    memories = Memories()
    memories.take_in({7: state(1, whole=True)}, (), "a")
    memories.take_in({7: TaskState("2", b"attributes")}, (), "a")

    assert memories.given()[7] == TaskState("2", b"attributes")
    assert memories.size == len(b"attributes")
