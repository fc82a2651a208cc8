"""Windowed bolts on Spark: ticks that come by themselves, and workers that die under a window."""

from __future__ import annotations

import pytest

from tests.soaking import soaked
from tests.spark.core_components import Log, logged
from waterspout import Config, TopologyBuilder, faults, submit
from waterspout.faults import Fault, FaultPlan
from waterspout.testing import FeederSpout
from waterspout.topology import Seconds, Tuples, WindowedBolt

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


class Bounds(WindowedBolt):
    """Emits the first and last number and the size of each window."""

    output_fields = ("shown",)

    def execute(self, window):
        numbers = sorted(t["n"] for t in window)
        self.collector.emit([f"{numbers[0]}-{numbers[-1]}x{len(numbers)}"])


def windows(bolt, feeder, folder):
    builder = TopologyBuilder()
    builder.set_spout("numbers", feeder)
    builder.set_bolt("windows", bolt).global_grouping("numbers")
    builder.set_bolt("log", Log(folder), 2).shuffle_grouping("windows")
    return builder.create_topology("windows")


def finish(run):
    try:
        run.process_all_available(timeout=120)
    finally:
        run.stop()


@pytest.mark.parametrize("collapse", [0, soaked(2000)])
def test_a_worker_that_dies_under_a_window_changes_nothing(spark, tmp_path, collapse):
    where = {"component": "windows", "wave": 2}
    kill = Fault("wave.execute", "kill", where=where, token=str(tmp_path / "token"))
    faults.install(FaultPlan([kill]))
    feeder = FeederSpout("n")
    run = submit(
        windows(Bounds().with_tumbling_window(Tuples(10)), feeder, tmp_path),
        spark,
        Config(wave_collapse_tuples=collapse, wave_max_tuples=25, retry_backoff_millis=10),
    )

    for n in range(200):
        feeder.feed([n], msg_id=n)
    finish(run)

    assert (tmp_path / "token").exists()
    assert logged(tmp_path) == {f"{n}-{n + 9}x10": 1 for n in range(0, 200, 10)}
    assert feeder.tracker.acks == dict.fromkeys(range(200), 1)


def test_ticks_execute_the_last_windows_when_nothing_comes_any_more(spark, tmp_path):
    feeder = FeederSpout("n")
    for n in range(50):
        feeder.feed([n], msg_id=n)

    finish(submit(windows(Bounds().with_tumbling_window(Seconds(0.5)), feeder, tmp_path), spark))

    sizes = [int(shown.split("x")[1]) * count for shown, count in logged(tmp_path).items()]
    assert sum(sizes) == 50
    assert feeder.tracker.acks == dict.fromkeys(range(50), 1)
