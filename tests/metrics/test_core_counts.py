"""The counters of core topologies, by Storm's rules."""

from __future__ import annotations

import pytest

from tests.waves.driving import Do, Driven, Fails, FakeClock, Pass, Record, forget_all, seen
from waterspout import TopologyBuilder, faults
from waterspout.coordination.events import TuplesCounted
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics import RunStats
from waterspout.testing import FeederSpout
from waterspout.topology import CustomGrouping
from waterspout.waves.counting import InputCounts, TaskCounts


@pytest.fixture(autouse=True)
def _fresh():
    forget_all()
    yield
    faults.install(None)


def driven(build, messages: int = 4, **options) -> tuple[Driven, RunStats]:
    spout, builder = FeederSpout("n", replay=True), TopologyBuilder()
    builder.set_spout("numbers", spout)
    build(builder)
    run = Driven(builder.create_topology("counted"), **options)
    stats = RunStats(clock=run.clock)
    run.loop.events.subscribe(stats)
    for n in range(messages):
        spout.feed([n], msg_id=n)
    return run, stats


def row(stats: RunStats, id: str, **options) -> dict:
    tables = stats.components(**options)
    (found,) = (each for each in [*tables["spouts"], *tables["bolts"]] if each["id"] == id)
    return found


def outputs(stats: RunStats, id: str) -> list[tuple[str, int, int]]:
    return [(e["stream"], e["emitted"], e["transferred"]) for e in row(stats, id)["outputs"]]


class OddOnes(CustomGrouping):
    """Sends every other tuple to two tasks, and the others to none."""

    def prepare(self, context, stream, target_tasks):
        self._tasks = target_tasks

    def choose_tasks(self, task_id, values):
        return self._tasks[:2] if values[0] % 2 else []


def test_emitted_are_calls_and_transferred_are_copies():
    def several(bolt, tuple):
        for stream in ("one", "all", "custom", "nobody"):
            bolt.collector.emit(tuple.values, tuple, stream=stream)
        bolt.collector.ack(tuple)

    def build(builder):
        streams = dict.fromkeys(("one", "all", "custom", "nobody"), ("n",))
        builder.set_bolt("several", Do(several, streams=streams)).shuffle_grouping("numbers")
        last = builder.set_bolt("last", Record("last"), 3)
        last.fields_grouping("several", "n", stream="one")
        last.all_grouping("several", stream="all")
        last.custom_grouping("several", OddOnes(), stream="custom")
        builder.set_bolt("more", Record("more"), 2).all_grouping("several", stream="all")

    run, stats = driven(build)
    run.until_idle()

    assert outputs(stats, "numbers") == [("default", 4, 4)]
    assert outputs(stats, "several") == [
        ("all", 4, 20),
        ("custom", 4, 4),
        ("nobody", 4, 0),
        ("one", 4, 4),
    ]
    found = row(stats, "several")
    assert (found["emitted"], found["transferred"], found["executed"]) == (16, 28, 4)
    last = row(stats, "last")
    assert (last["executed"], last["acked"], last["failed"]) == (20, 20, 0)
    assert {(e["stream"], e["executed"]) for e in last["inputs"]} == {
        ("all", 12),
        ("custom", 4),
        ("one", 4),
    }
    totals = stats.totals()
    assert (totals["emitted"], totals["transferred"], totals["executed"]) == (20, 32, 32)


def test_the_acker_counts_what_it_is_told_and_what_it_tells():
    def build(builder):
        builder.set_bolt("pass", Pass("n"), 2).shuffle_grouping("numbers")
        builder.set_bolt("last", Fails("last", {1: 1})).shuffle_grouping("pass")

    run, stats = driven(build)
    run.until_idle()

    acker = row(stats, "__acker")
    assert acker["system"]
    told = {(e["component"], e["stream"]): e["executed"] for e in acker["inputs"]}
    assert told == {
        ("numbers", "__ack_init"): 5,  # one of them comes again
        ("pass", "__ack_ack"): 5,
        ("last", "__ack_ack"): 4,
        ("last", "__ack_fail"): 1,
    }
    assert (acker["executed"], acker["acked"]) == (15, 15)
    assert outputs(stats, "__acker") == [("__ack_ack", 4, 4), ("__ack_fail", 1, 1)]
    numbers = row(stats, "numbers")
    assert (numbers["acked"], numbers["failed"], numbers["emitted"]) == (4, 1, 5)
    assert row(stats, "last")["failed"] == 1
    assert "ValueError: not 1 yet" in row(stats, "last")["last_error"]


def test_without_ackers_there_is_no_acker():
    run, stats = driven(
        lambda builder: builder.set_bolt("last", Record("last")).shuffle_grouping("numbers"),
        ackers=0,
    )
    run.until_idle()

    bolts = stats.components()["bolts"]
    assert [(bolt["id"], bolt["executed"], bolt["acked"]) for bolt in bolts] == [("last", 4, 4)]


def test_complete_latency_is_from_the_emission_to_the_end_of_the_tree():
    def hold(bolt, tuple):
        if not seen("held"):
            seen("held").append(tuple)
            bolt.collector.emit(["again"])
        else:
            bolt.collector.ack(seen("held")[0])
            bolt.collector.ack(tuple)

    def build(builder):
        hold_bolt = builder.set_bolt("hold", Do(hold, fields=("n",)))
        hold_bolt.shuffle_grouping("numbers")
        hold_bolt.shuffle_grouping("hold")

    run, stats = driven(build, messages=1)
    run.until(lambda: run.counts.emitted == 1, tick=0.0)
    run.clock.pass_by(7.5)
    run.until_idle(tick=0.0)

    numbers = row(stats, "numbers")
    assert (numbers["acked"], numbers["complete_ms"]) == (1, 7500.0)
    found = row(stats, "hold")
    assert (found["executed"], found["acked"]) == (2, 2)


def test_a_wave_that_is_run_again_counts_once():
    faults.install(FaultPlan([Fault("wave.execute", "raise")]))
    run, stats = driven(
        lambda builder: builder.set_bolt("last", Record("last")).shuffle_grouping("numbers")
    )
    run.until_idle()

    last, totals = row(stats, "last"), stats.totals()
    assert (last["executed"], last["acked"]) == (4, 4)
    assert (totals["waves_retried"], totals["emitted"]) == (1, 4)


def test_capacity_is_the_share_of_the_last_ten_minutes_that_the_busiest_task_was_busy():
    clock = FakeClock()
    stats = RunStats(clock=clock)
    clock.pass_by(300)
    tasks = [
        TaskCounts("count", n, inputs={("split", "default"): InputCounts(1000, busy_s, 1000)})
        for n, busy_s in ((4, 240.0), (5, 30.0))
    ]
    stats(TuplesCounted("counted", tuple(tasks)))

    count = row(stats, "count")
    assert count["execute_ms"] == 135.0
    assert [task["capacity"] for task in count["by_task"]] == [0.8, 0.1]
    assert count["capacity"] == 0.8
    clock.pass_by(700)
    assert row(stats, "count")["capacity"] == 0.0
    assert row(stats, "count", window=10_800)["executed"] == 2000
    assert [bolt["id"] for bolt in stats.components(600)["bolts"]] == []
