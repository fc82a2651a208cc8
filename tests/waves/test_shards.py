"""Shards and rows of a wave, and the bolts that stay alive between two waves."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.waves.driving import Do, Driven, Pass, Record, seen
from waterspout import Config
from waterspout.testing import FeederSpout
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import Topology, TopologyBuilder
from waterspout.topology._pickling import dumps
from waterspout.waves.bolts import LiveTasks, Worker
from waterspout.waves.engine import Wave, WaveDone, WaveFailed, assemble
from waterspout.waves.frames import Frame, unpack
from waterspout.waves.over_waves import WaveHeader, results_of
from waterspout.waves.shape import spread
from waterspout.waves.shards import DRIVER, Row, run_stage


def topology() -> Topology:
    """Source 1; first 2 and 3; second 4 and 5, by fields; a cycle back to first."""
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("n"))
    first = builder.set_bolt("first", Pass("n"), 2)
    first.shuffle_grouping("source")
    builder.set_bolt("second", Pass("n"), 2).fields_grouping("first", "n")
    first.shuffle_grouping("second")
    return builder.create_topology("t")


def header(of: Topology, **changes: Any) -> WaveHeader:
    given: dict[str, Any] = {
        "run": "r",
        "number": 1,
        "attempt": 0,
        "seed": 5,
        "budget_s": 60.0,
        "crash_on_error": False,
        "conf": Config().to_dict(),
        "components": {spec.id: dumps(spec.component) for spec in of.components.values()},
    }
    return WaveHeader(**{**given, **changes})


def frame(target: int, *numbers: int, source: int = 1) -> Frame:
    return Frame(source, "default", target, [(n,) for n in numbers])


def run_wave(wave: Wave) -> list[Any]:
    rows: list[Row] = wave.rows()
    for stage in range(len(wave.shape.stages)):
        rows = list(run_stage(wave.shape, wave.header, stage, rows, Worker()))
    assert {row.stage for row in rows} <= {DRIVER}
    return results_of(rows)


def test_a_wave_goes_through_all_stages_and_what_goes_back_waits():
    made = topology()
    shape = spread(made, 2)
    results = run_wave(
        Wave(shape, header(made), assemble(shape, [frame(2, 1, 2), frame(3, 3)], {}))
    )

    waiting = [row[0] for result in results for each in result.waiting for row in each.values]
    assert sorted(waiting) == [1, 2, 3]
    executed: dict[str, int] = {}
    for result in results:
        for component, count in result.executed.items():
            executed[component] = executed.get(component, 0) + count
    assert executed == {"first": 3, "second": 3}
    assert sum(result.undone for result in results) == 0


def test_what_is_meant_for_a_later_stage_rides_along():
    made = topology()
    shape = spread(made, 2)
    inputs = assemble(shape, [frame(5, 7, source=2)], {})

    assert list(inputs) == [0]
    assert [(row.stage, row.shard, row.count) for row in inputs[0].passengers] == [(1, 1, 1)]
    results = run_wave(Wave(shape, header(made), inputs))
    assert [row for r in results for f in r.waiting for row in f.values] == [(7,)]


@pytest.mark.parametrize("brings", [list, reversed], ids=["in order", "reversed"])
def test_what_waited_comes_before_what_is_emitted_whatever_a_shuffle_brings_first(brings):
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("n"))
    builder.set_bolt("first", Pass("n"), 2).shuffle_grouping("source")
    builder.set_bolt("second", Record("order")).global_grouping("first")
    made = builder.create_topology("t")
    shape = spread(made, 2)
    frames = [frame(2, 3, 4), frame(3, 5), frame(4, 1, 2, source=2)]
    wave = Wave(shape, header(made), assemble(shape, frames, {}))
    rows = list(run_stage(shape, wave.header, 0, wave.rows(), Worker()))

    list(run_stage(shape, wave.header, 1, brings(rows), Worker()))

    got = [values[0] for _, values in seen("order")]
    assert [n for n in got if n != 5] == [1, 2, 3, 4]


def test_rows_of_other_stages_pass_through():
    made = topology()
    shape = spread(made, 2)
    other = Row(1, 0, 1, b"not for us")

    assert list(run_stage(shape, header(made), 0, [other], Worker())) == [other]


def test_a_task_that_is_retried_draws_the_same_ids():
    made = topology()
    shape = spread(made, 2)
    tracked = Frame(1, "default", 2, [(1,)], np.array([9], np.uint64), np.array([5], np.uint64))
    wave = Wave(shape, header(made), assemble(shape, [tracked], {}))

    reports = [
        [(r.report.roots.tolist(), r.report.values.tolist()) for r in run_wave(wave)]
        for _ in range(2)
    ]

    assert reports[0] == reports[1]


def test_the_garbage_collector_is_on_again_after_an_error():
    made = topology()
    shape = spread(made, 2)
    broken = header(made, components={})

    with pytest.raises(KeyError):
        list(
            run_stage(
                shape,
                broken,
                0,
                Wave(shape, broken, assemble(shape, [frame(2, 1)], {})).rows(),
                Worker(),
            )
        )
    assert gc.isenabled()


class Stub:
    """Stands for a bolt task."""


def test_a_bolt_is_taken_out_while_it_works():
    live, bolt = LiveTasks(), Stub()
    live.put("run", 2, bolt)

    assert live.take("run", 2) is bolt
    assert live.take("run", 2) is None


def test_runs_and_tasks_do_not_meet():
    live, one, two = LiveTasks(), Stub(), Stub()
    live.put("run", 2, one)
    live.put("other", 2, two)

    assert live.take("run", 3) is None
    assert live.take("other", 2) is two
    assert live.take("run", 2) is one
    assert live.take("nobody", 2) is None


def test_only_the_newest_runs_stay_alive():
    live = LiveTasks()
    for n in range(20):
        live.put(f"run {n}", 2, Stub())

    assert [n for n in range(20) if live.take(f"run {n}", 2) is not None] == list(range(12, 20))


class LosesResults(InProcessWaves):
    """Runs waves to their end and loses the result of those in `lose`."""

    def __init__(self, lose: set[int]) -> None:
        super().__init__(2)
        self._lose, self._count = lose, 0

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        ended = super().poll(wait_s)
        if isinstance(ended, WaveDone):
            self._count += 1
            if self._count in self._lose:
                return WaveFailed(RuntimeError("result lost"))
        return ended


def count_up(bolt, tuple):
    bolt.count = getattr(bolt, "count", 0) + 1
    seen("counts").append((tuple["n"], bolt.count))
    bolt.collector.ack(tuple)


def test_a_bolt_whose_wave_was_lost_goes_on_from_before_it():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Do(count_up)).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), engine=LosesResults({2, 3}))
    for n in range(4):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    assert seen("counts") == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3), (3, 4)]
    assert feeder.tracker.acks == {0: 1, 1: 1, 2: 1, 3: 1}


def test_bolts_that_live_are_not_made_anew():
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Do(note_identity)).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"))
    for n in range(3):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    assert len(set(seen("identity"))) == 1


def note_identity(bolt, tuple):
    seen("identity").append(id(bolt))
    seen("kept").append(bolt)
    bolt.collector.ack(tuple)


def test_packed_results_are_read_back():
    made = topology()
    shape = spread(made, 2)
    wave = Wave(shape, header(made), assemble(shape, [frame(2, 1)], {}))
    (row,) = wave.rows()

    given = unpack(row.data)

    assert (row.stage, row.shard, row.count) == (0, 0, 1)
    assert [each.values for each in given.frames] == [[(1,)]]
