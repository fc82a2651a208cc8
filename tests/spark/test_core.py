"""Core topologies on Spark: exact where nothing fails, at least once where something does."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.soaking import soaked
from tests.spark.core_components import (
    Count,
    CountMany,
    Join,
    Log,
    Numbers,
    SlowAtFirst,
    Split,
    append,
    counted,
    logged,
)
from waterspout import BasicBolt, Config, Spout, TopologyBuilder, faults, submit
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.errors import LeaseHeldError, RunFailedError
from waterspout.faults import Fault, FaultPlan
from waterspout.testing import FeederSpout

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store",
    "to be or not to be",
    "four score and seven years ago",
]
COUNTS = dict(Counter(word for sentence in SENTENCES * 25 for word in sentence.split()))

SPREAD = Config(wave_collapse_tuples=0, retry_backoff_millis=10)


def word_count(folder, feeder, name="words"):
    builder = TopologyBuilder()
    builder.set_spout("sentences", feeder)
    builder.set_bolt("split", Split(), 3).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(folder), 5).fields_grouping("split", "word")
    return builder.create_topology(name)


def fed():
    feeder = FeederSpout("sentence")
    for number in range(100):
        feeder.feed([SENTENCES[number % 4]], msg_id=number)
    return feeder


def finish(run, timeout=120):
    try:
        run.process_all_available(timeout=timeout)
    finally:
        run.stop()
    return run


@pytest.mark.parametrize("config", [SPREAD, Config()], ids=["spread", "collapsed"])
def test_the_word_count_is_exact_and_every_message_acked_once(spark, tmp_path, config):
    feeder = fed()

    run = finish(submit(word_count(tmp_path, feeder), spark, config))

    assert counted(tmp_path) == COUNTS
    assert feeder.tracker.acks == dict.fromkeys(range(100), 1)
    assert feeder.tracker.fails == {}
    assert run.status == "stopped"


def test_counts_go_on_over_waves(spark, tmp_path):
    feeder = fed()
    run = submit(word_count(tmp_path, feeder), spark, SPREAD)
    run.process_all_available(timeout=60)
    for number in range(100, 200):
        feeder.feed([SENTENCES[number % 4]], msg_id=number)

    finish(run)

    assert counted(tmp_path) == {word: 2 * n for word, n in COUNTS.items()}
    assert feeder.tracker.acks == dict.fromkeys(range(200), 1)


@pytest.mark.parametrize("component", [soaked("split"), "count"])
def test_a_worker_killed_in_any_superstep_changes_nothing(spark, tmp_path, component):
    token = str(tmp_path / "token")
    where = {"component": component}
    faults.install(FaultPlan([Fault("wave.execute", "kill", where=where, token=token)]))
    feeder = fed()

    finish(submit(word_count(tmp_path, feeder), spark, SPREAD))

    assert (tmp_path / "token").exists()
    assert counted(tmp_path) == COUNTS
    assert feeder.tracker.acks == dict.fromkeys(range(100), 1)


def test_of_a_large_memory_waves_move_what_changes_and_a_killed_worker_changes_nothing(
    spark, tmp_path
):
    feeder = FeederSpout("word")
    builder = TopologyBuilder()
    builder.set_spout("words", feeder)
    builder.set_bolt("count", CountMany(tmp_path)).fields_grouping("words", "word")
    where = {"component": "count", "wave": 6}
    kill = Fault("wave.execute", "kill", where=where, token=str(tmp_path / "token"))
    faults.install(FaultPlan([kill]))
    run = submit(builder.create_topology("large"), spark, Config(retry_backoff_millis=10))
    for wave in range(12):
        for n in range(wave * 10, (wave + 1) * 10):
            feeder.feed([f"word number {n}"], msg_id=n)
        run.process_all_available(timeout=60)
    finish(run)

    assert (tmp_path / "token").exists()
    once = {f"word number {n}": 1 for n in range(CountMany.words)}
    assert counted(tmp_path) == once | {f"word number {n}": 2 for n in range(120)}
    assert feeder.tracker.acks == dict.fromkeys(range(120), 1)
    # All of it while it is new to a worker; then what ten tuples change, for each worker.
    moved = [progress["state_moved_bytes"] for progress in run.recent_progress]
    assert max(moved) > 400_000
    assert sorted(moved)[len(moved) // 2] < 20_000


def test_a_wave_that_fails_as_a_whole_is_run_again(spark, tmp_path):
    # More often than Spark retries a task: the job fails, and with it the wave.
    plan = [Fault("wave.execute", "raise", token=str(tmp_path / f"t{n}")) for n in range(6)]
    faults.install(FaultPlan(plan))
    feeder = fed()

    finish(submit(word_count(tmp_path, feeder), spark, Config(retry_backoff_millis=10)))

    assert counted(tmp_path) == COUNTS
    assert feeder.tracker.acks == dict.fromkeys(range(100), 1)


@pytest.mark.parametrize(
    "config",
    [
        Config(max_retries=0, max_replays=0, retry_backoff_millis=1),
        soaked(Config(), id="default"),
    ],
)
def test_tuples_that_kill_every_worker_end_among_the_dead_letters(spark, tmp_path, home, config):
    builder = TopologyBuilder()
    feeder = FeederSpout("n", replay=True)
    builder.set_spout("numbers", feeder)
    builder.set_bolt("log", Log(tmp_path, dies_on=[1, 2]), 2).shuffle_grouping("numbers")
    for number in range(4):
        feeder.feed([number], msg_id=number)

    run = finish(submit(builder.create_topology("deadly"), spark, config), timeout=200)

    letters = DeadLetters(home / "deadly").all()
    failures = 1 + config.max_replays
    assert sorted((e.values, e.failures) for e in letters) == [((1,), failures), ((2,), failures)]
    assert all("worker died" in letter.error for letter in letters)
    assert set(logged(tmp_path)) == {"0", "3"}
    assert feeder.tracker.acks == dict.fromkeys(range(4), 1)
    assert feeder.tracker.fails == dict.fromkeys([1, 2] if config.max_replays else [], failures - 1)
    assert run.exception() is None


class Reads(BasicBolt):
    """Passes points on; has no use for two of them."""

    output_fields = ("x", "point")

    def execute(self, tuple, collector):
        x = tuple["point"].x
        if x == 5:
            sys.exit("five is enough")
        collector.emit([x, threading.Lock() if x == 7 else tuple["point"]])


class Doubles(Log):
    def execute(self, tuple, collector):
        assert type(tuple["point"]).__name__ == "Point"
        append(Path(self._folder, f"{os.getpid()}.log"), tuple["point"].doubled())


def test_objects_of_the_script_travel_and_what_cannot_be_sent_fails_alone(
    spark, tmp_path, monkeypatch
):
    # As if this were the user's script: its workers cannot import the class.
    point = type("Point", (), {"__module__": "__main__", "doubled": lambda self: 2 * self.x})
    monkeypatch.setattr(sys.modules["__main__"], "Point", point, raising=False)
    feeder = FeederSpout("point", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("points", feeder)
    builder.set_bolt("reads", Reads(), 2).shuffle_grouping("points")
    builder.set_bolt("doubles", Doubles(tmp_path), 2).fields_grouping("reads", "x")
    config = Config(wave_collapse_tuples=3, max_replays=0)
    run = submit(builder.create_topology("points"), spark, config)
    for wave in (range(2), range(2, 20)):  # small, and spread
        for x in wave:
            value = point()
            value.x = x
            feeder.feed([threading.Lock() if x == 3 else value], msg_id=x)
        run.process_all_available(timeout=60)
    finish(run)

    good = [x for x in range(20) if x not in (3, 5, 7)]
    assert logged(tmp_path) == Counter(str(2 * x) for x in good)
    letters = sorted(run.dead_letters(), key=lambda letter: letter.message_id)
    assert [(e.message_id, e.failed_in, e.error.split(",")[0]) for e in letters] == [
        (
            "3",
            "points",
            "EmitError: 'points' emitted a value for field 'point' of stream 'default' "
            "that cannot be sent to another process",
        ),
        ("5", "reads", "SystemExit: five is enough"),
        (
            "7",
            "reads",
            "EmitError: 'reads' emitted a value for field 'point' of stream 'default' "
            "that cannot be sent to another process",
        ),
    ]
    assert feeder.tracker.acks == dict.fromkeys(range(20), 1)


def test_one_bad_record_is_set_aside_and_nothing_else_is_repeated(spark, tmp_path, home):
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(20_000), 2)
    builder.set_bolt("log", Log(tmp_path, raises_on=[12_345]), 2).shuffle_grouping("numbers")

    run = finish(submit(builder.create_topology("one-bad"), spark, Config(wave_secs=5)))

    (letter,) = run.dead_letters()
    assert (letter.spout, letter.failed_in, letter.values) == ("numbers", "log", (12_345,))
    assert letter.error == "ValueError: cannot do 12345"
    assert letter.failures == 4
    assert logged(tmp_path) == Counter({str(n): 1 for n in range(20_000) if n != 12_345})
    (error,) = run.errors
    assert (error["component"], error["count"]) == ("log", 4)
    assert "raise ValueError" in error["traceback"]
    assert sum(entry["acked"] for entry in run.recent_progress) == 19_999


def test_positions_are_stored_and_the_next_run_goes_on(spark, tmp_path):
    def topology(total):
        builder = TopologyBuilder()
        builder.set_spout("numbers", Numbers(total), 2)
        builder.set_bolt("log", Log(tmp_path), 2).shuffle_grouping("numbers")
        return builder.create_topology("positions")

    finish(submit(topology(1_000), spark))
    finish(submit(topology(1_500), spark))

    assert logged(tmp_path) == Counter({str(n): 1 for n in range(1_500)})


@pytest.mark.parametrize("config", [SPREAD, Config()], ids=["spread", "collapsed"])
def test_tuples_held_over_waves_are_joined_and_acked(spark, config):
    ages, names = FeederSpout(["id", "age"]), FeederSpout(["id", "name"])
    builder = TopologyBuilder()
    builder.set_spout("ages", ages)
    builder.set_spout("names", names)
    join = builder.set_bolt("join", Join(), 3)
    join.fields_grouping("ages", "id").fields_grouping("names", "id")
    run = submit(builder.create_topology("join"), spark, config)
    for n in range(30):
        ages.feed([n, 20 + n], msg_id=n)
    while not run.recent_progress or run.recent_progress[-1]["pending"] != 30:
        assert run.exception() is None
        run.await_termination(0.05)

    for n in range(30):
        names.feed([n, f"name {n}"], msg_id=n)
    finish(run)

    assert ages.tracker.acks == names.tracker.acks == dict.fromkeys(range(30), 1)
    assert ages.tracker.fails == names.tracker.fails == {}


@pytest.mark.soak
@pytest.mark.parametrize("ackers", [1, soaked(0)])
def test_a_slow_bolt_makes_the_spouts_wait_until_it_has_caught_up(spark, ackers):
    feeder = FeederSpout("n")
    for n in range(3_000):
        feeder.feed([n], msg_id=n)
    builder = TopologyBuilder()
    builder.set_spout("numbers", feeder)
    builder.set_bolt("slow", SlowAtFirst(60, 0.05)).shuffle_grouping("numbers")
    config = Config(ackers=ackers, wave_secs=0.5, wave_budget_secs=0.5)

    run = finish(submit(builder.create_topology("slow"), spark, config))

    progress = run.recent_progress
    throttled = [entry["throttled"] for entry in progress]
    assert True in throttled
    assert throttled[-1] is False
    assert max(entry["backlog"] for entry in progress) <= 3_000
    assert sum(entry["executed"].get("slow", 0) for entry in progress) == 3_000
    assert feeder.tracker.acks == dict.fromkeys(range(3_000), 1)


def test_failures_are_counted_on_in_the_next_run(spark, tmp_path):
    letters = []
    for _ in range(2):
        feeder = FeederSpout("n")  # it does not emit again what has failed
        feeder.feed([5], msg_id="five")
        builder = TopologyBuilder()
        builder.set_spout("numbers", feeder)
        builder.set_bolt("log", Log(tmp_path, raises_on=[5])).shuffle_grouping("numbers")
        run = finish(submit(builder.create_topology("again"), spark, Config(max_replays=1)))
        letters.append([(letter.values, letter.failures) for letter in run.dead_letters()])

    assert letters == [[], [((5,), 2)]]


class Dozes(Spout):
    """Emits a number each time it is asked, after a nap, as many of Storm's spouts do."""

    output_fields = ("n",)

    def open(self, conf, context, collector):
        self._collector, self._n = collector, 0

    def next_tuple(self):
        time.sleep(0.05)
        if self._n < 10:
            self._collector.emit([self._n], msg_id=self._n)
            self._n += 1


def test_a_spout_that_sleeps_does_not_hold_up_the_first_wave(spark, tmp_path):
    builder = TopologyBuilder()
    builder.set_spout("numbers", Dozes())
    builder.set_bolt("log", Log(tmp_path)).shuffle_grouping("numbers")

    run = finish(submit(builder.create_topology("dozes"), spark))

    assert run.recent_progress[0]["tuples"] == 1
    assert logged(tmp_path) == Counter(map(str, range(10)))


class CrashesOnce(Log):
    """Cannot do 50 when it is asked for the first time."""

    def execute(self, tuple, collector):
        crashed = Path(self._folder, "crashed")
        if tuple[0] == 50 and not crashed.exists():
            crashed.touch()
            raise ValueError("cannot do 50")


def test_crash_is_a_policy_that_a_second_try_of_the_task_does_not_hide(spark, tmp_path):
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(100))
    builder.set_bolt("log", CrashesOnce(tmp_path)).shuffle_grouping("numbers")
    run = submit(builder.create_topology("crash"), spark, Config(bolt_errors="crash"))

    with pytest.raises(RunFailedError, match="bolt 'log' raised ValueError: cannot do 50"):
        run.process_all_available(timeout=60)


def test_a_second_run_of_one_name_is_refused(spark, tmp_path):
    first = submit(word_count(tmp_path, FeederSpout("sentence")), spark)
    try:
        with pytest.raises(LeaseHeldError, match="'words' is taken"):
            submit(word_count(tmp_path, FeederSpout("sentence")), spark)
    finally:
        first.stop()


def test_an_attribute_that_cannot_travel_is_named_in_the_error(spark):
    class Locked(Log):
        def execute(self, tuple, collector):
            import threading

            self.lock = threading.Lock()

    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(10))
    builder.set_bolt("locked", Locked("/tmp")).shuffle_grouping("numbers")
    run = submit(builder.create_topology("locked"), spark, Config(max_retries=0))

    with pytest.raises(RunFailedError, match=r"transient = \('lock',\)"):
        run.process_all_available(timeout=60)
