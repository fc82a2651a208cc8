"""Three ways for one wave's rows, or a batch's: whichever is taken, each gets its own header.

What all waves have in common is described to Spark once. What they do not have in common travels
with the job. The worst that could happen is that a wave runs under the header of another one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException

from tests.waves.driving import Pass
from waterspout import faults
from waterspout.faults import Fault, FaultPlan
from waterspout.spark import supersteps
from waterspout.spark.session import SparkRuntime
from waterspout.spark.supersteps import Stages, collected
from waterspout.spark.templates import TableTemplate
from waterspout.testing import FeederSpout
from waterspout.topology import TopologyBuilder
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.shape import WaveShape, collapsed, spread
from waterspout.waves.shards import DRIVER, LifeCycle, Row, Shard, ShardHeader, ShardInput

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

LARGE = 100_000
"""More bytes than go with a job."""


@dataclass(frozen=True)
class Telling(ShardHeader):
    """Its shards tell the number of the wave, and what came to them."""

    number: int = 0
    note: str = ""

    def life_cycle(self, shard: Shard, worker: Any) -> LifeCycle:
        return _Telling(self, shard)


@dataclass
class _Telling(LifeCycle):
    header: Telling
    shard: Shard
    got: int = 0

    def run_task(self, task: int, frames: list[Frame], given: ShardInput) -> None:
        self.got += sum(map(len, frames))
        faults.point("processing", txid=self.header.number, partition=self.shard.stage)
        self._die_once()

    def _die_once(self) -> None:
        kind, _, path = self.header.note.partition(":")
        if kind == "die" and not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "wait":
            deadline = time.monotonic() + 30
            Path(path, str(self.header.number)).touch()
            while len(list(Path(path).iterdir())) < 2:  # until the other one is here, too
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def rows(self) -> Iterator[Row]:
        header, shard = self.header, self.shard
        for number in range(len(shard.shape.stages) - shard.stage - 1 and 2):
            yield ShardInput().row(shard.stage + 1, number)
        told = (header.number, header.note, shard.stage, shard.number, self.got, os.getppid())
        yield Row(DRIVER, shard.number, self.got, pack(told))


@pytest.fixture(scope="module")
def topology():
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout("n"))
    builder.set_bolt("first", Pass("n"), 2).shuffle_grouping("source")
    builder.set_bolt("second", Pass("n"), 2).fields_grouping("first", "n")
    return builder.create_topology("t")


@pytest.fixture
def stages(spark):
    return Stages(SparkRuntime(spark), "number", "note")


@pytest.fixture
def ways(monkeypatch):
    """Which ways were taken, in order."""
    taken: list[str] = []

    def watched(owner: Any, name: str, way: str) -> None:
        original = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            taken.append(way)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    watched(Stages, "_kept_rdd", "kept")
    watched(TableTemplate, "filled", "filled")
    watched(Stages, "through", "described")
    return taken


def spread_over_two(topology: Any) -> WaveShape:
    return spread(topology, 2)


def rows_for(shape: WaveShape, tuples: int, size: int = 1) -> list[Row]:
    """Rows of the first stage; the first shard's bolt gets so many tuples."""
    inputs = [ShardInput() for _ in range(shape.stages[0].shards)]
    inputs[0].frames.append(Frame(1, "default", 2, [("x" * size,)] * tuples))
    return [given.row(0, shard) for shard, given in enumerate(inputs)]


def header(number: int, note: str = "") -> Telling:
    return Telling(conf={}, components={}, number=number, note=note)


def told(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted(unpack(row.data)[:-1] for row in rows if row.stage == DRIVER)


def run(stages: Stages, shape: WaveShape, rows: list[Row], of: Telling) -> list[tuple[Any, ...]]:
    numbers = range(len(shape.stages))
    return told(stages.run(rows, shape, of, numbers, shape.stages[0].shards))


def test_a_small_wave_of_one_stage_is_the_same_rdd_again_and_again(stages, topology, ways):
    shape = collapsed(topology)

    found = [run(stages, shape, rows_for(shape, n), header(n, "x" * n)) for n in range(1, 4)]

    assert found == [[(n, "x" * n, 0, 0, n)] for n in range(1, 4)]
    assert ways == ["kept"] * 3
    assert len(stages._kept) == 1


@pytest.mark.parametrize("partitions", [0, 1])
def test_no_rows_at_all_are_no_error(stages, topology, partitions):
    shape = collapsed(topology)

    assert stages.run([], shape, header(1), [0], partitions) == []


def test_a_large_one_fills_in_a_plan_that_keeps_no_rows(stages, topology, ways):
    shape = collapsed(topology)

    found = [run(stages, shape, rows_for(shape, n, LARGE), header(n)) for n in range(1, 4)]

    assert found == [[(n, "", 0, 0, n)] for n in range(1, 4)]
    assert [way for way in ways if way != "filled"] == []
    (template,) = stages._templates.values()
    assert template._template.leaf.data().size() == 0


def test_one_that_spark_keeps_as_an_rdd_fills_it_in_as_well(stages, topology, ways, spark):
    shape, threshold = collapsed(topology), "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(threshold)
    spark.conf.set(threshold, "1")
    try:
        found = [run(stages, shape, rows_for(shape, n, LARGE), header(n)) for n in range(1, 4)]
    finally:
        spark.conf.set(threshold, before)

    assert found == [[(n, "", 0, 0, n)] for n in range(1, 4)]
    assert [way for way in ways if way != "filled"] == []


def test_several_stages_fill_in_a_plan(stages, topology, ways):
    shape = spread_over_two(topology)
    assert [stage.shards for stage in shape.stages] == [2, 2]

    found = [run(stages, shape, rows_for(shape, n), header(n, f"{n}")) for n in range(1, 4)]

    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found == [
        [(n, f"{n}", *place, n if place == (0, 0) else 0) for place in places] for n in range(1, 4)
    ]
    assert set(ways) == {"filled"}


def test_a_header_too_long_for_a_job_goes_in_the_functions(stages, topology, ways):
    for shape in (collapsed(topology), spread_over_two(topology)):
        found = run(stages, shape, rows_for(shape, 1), header(7, "y" * LARGE))
        assert {(number, len(note)) for number, note, *_ in found} == {(7, LARGE)}

    assert [way for way in ways if way != "filled"] == ["described"] * 2


@pytest.mark.parametrize(
    ("missing", "form", "way"),
    [
        ("threads_have_properties", collapsed, "described"),
        ("threads_have_properties", spread_over_two, "described"),
        ("shows_properties", collapsed, "filled"),  # it would hold the tuples
        ("shows_properties", spread_over_two, "filled"),
    ],
)
def test_where_a_job_is_not_alone_with_its_properties(
    spark, topology, ways, monkeypatch, missing, form, way
):
    monkeypatch.setattr(SparkRuntime, missing, property(lambda _: missing == "shows_properties"))
    stages, shape = Stages(SparkRuntime(spark), "number", "note"), form(topology)

    found = [run(stages, shape, rows_for(shape, n), header(n)) for n in (1, 2)]

    assert [{each[0] for each in wave} for wave in found] == [{1}, {2}]
    assert set(ways) == {way}


def test_all_ways_lead_to_the_same_python_workers(stages, topology, ways):
    """Others would have to be started, and would not find the bolts that live in these."""
    shape, parents = collapsed(topology), set()
    for size in (1, LARGE):
        rows = stages.run(rows_for(shape, 1, size), shape, header(1), [0], 1)
        parents |= {unpack(row.data)[-1] for row in rows if row.stage == DRIVER}

    assert ways == ["kept", "filled"]
    assert len(parents) == 1


def test_where_plans_are_others_than_we_know_each_wave_is_described(
    stages, topology, ways, monkeypatch
):
    def refuse(*_: Any) -> None:
        raise AttributeError("no such class")

    monkeypatch.setattr(TableTemplate, "filled", refuse)
    shape = spread_over_two(topology)

    found = [run(stages, shape, rows_for(shape, n), header(n)) for n in (1, 2)]

    assert [{each[0] for each in wave} for wave in found] == [{1}, {2}]
    assert ways == ["described"] * 2


@pytest.mark.parametrize("form", [collapsed, spread_over_two])
def test_waves_at_the_same_time_have_headers_of_their_own(stages, topology, tmp_path, form):
    """Each waits until the other one runs."""
    shape = form(topology)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(run, stages, shape, rows_for(shape, n), header(n, f"wait:{tmp_path}"))
            for n in (1, 2)
        ]
        found = [future.result(60) for future in running]

    assert [{each[0] for each in wave} for wave in found] == [{1}, {2}]
    assert [sum(each[-1] for each in wave) for wave in found] == [1, 2]


@pytest.mark.parametrize("form", [collapsed, spread_over_two])
def test_a_task_that_is_run_again_has_the_header_of_its_wave(stages, topology, tmp_path, form):
    shape = form(topology)
    run(stages, shape, rows_for(shape, 1), header(1))
    mark = tmp_path / "died"

    found = run(stages, shape, rows_for(shape, 3), header(2, f"die:{mark}"))

    assert mark.exists()
    assert {each[0] for each in found} == {2}
    assert sum(each[-1] for each in found) == 3
    assert {each[0] for each in run(stages, shape, rows_for(shape, 1), header(3))} == {3}


def test_what_fails_leaves_nothing_behind_for_the_next_job_of_its_thread(stages, topology, spark):
    shape = collapsed(topology)
    run(stages, shape, rows_for(shape, 1), header(1))  # the plan is described without kill points
    faults.install(FaultPlan([Fault("processing", action="raise", where={"txid": 2})]))

    with pytest.raises(PythonException, match="injected"):
        run(stages, shape, rows_for(shape, 1), header(2))
    faults.install(None)

    assert spark.sparkContext.getLocalProperty(supersteps._SAID) is None
    assert run(stages, shape, rows_for(shape, 1), header(2)) == [(2, "", 0, 0, 1)]


def test_rows_that_stay_on_executors_are_computed_under_the_header(stages, topology):
    shape = spread_over_two(topology)
    for n in (1, 2):
        with stages.led(rows_for(shape, n), shape, header(n), [0], 2) as frame:
            kept = frame.localCheckpoint(eager=True)
        assert {each[0] for each in told(list(collected(kept)))} == {n}
