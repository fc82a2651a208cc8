"""What the tests of operations share: one topology per file, run once, looked at by many tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.trident.support import Capture, capture, finish
from waterspout import Config
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import Function, Stream, TridentTopology


class Look:
    """Keeps what streams give, each under a name: `look("doubled", stream)`.

    A topology is built once for Spark and once for the engine without it, which has one
    partition and no Spark expressions: those streams are for `if look.on_spark` only.
    """

    def __init__(self, *, on_spark: bool) -> None:
        self.on_spark = on_spark
        self.kept: dict[str, Capture] = {}

    def __call__(self, name: str, stream: Stream, *fields: str) -> None:
        self.kept[name] = capture(stream, *fields)


@dataclass(frozen=True)
class Ran:
    """What came out: `ran["doubled"]` are its rows on Spark."""

    spark: dict[str, Capture]
    here: dict[str, Capture]

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        return self.spark[name].rows

    def batches(self, name: str) -> dict[int, list[tuple[Any, ...]]]:
        """The rows of each batch that had some."""
        return self.spark[name].batches

    @property
    def differences(self) -> dict[str, Any]:
        """Where the engine without Spark gave other rows: those of both."""
        return {
            name: (self.batches(name), kept.batches)
            for name, kept in self.here.items()
            if self.batches(name) != kept.batches
        }


Build = Callable[[Look], TridentTopology]


def run_both(build: Build, spark: Any, home: Any) -> Ran:
    """Run a topology on Spark, and again without it."""
    there, here = Look(on_spark=True), Look(on_spark=False)
    config = Config(home=str(home), retry_backoff_millis=1)
    finish(build(there), spark, config, timeout=200)
    run_in_process(build(here), Config(home=str(home / "here")))
    return Ran(there.kept, here.kept)


def ran_once(build: Build) -> Any:
    """Make a fixture of a topology: it runs once for all tests of a file."""

    @pytest.fixture(scope="module")
    def ran(spark, tmp_path_factory):
        return run_both(build, spark, tmp_path_factory.mktemp("home"))

    return ran


def stream_of(fields: str, rows: Any, size: int = 10_000) -> tuple[TridentTopology, Stream]:
    """Return a topology and its first stream."""
    topology = TridentTopology("operations")
    return topology, topology.new_stream("rows", FixedBatchSpout(fields, size, list(rows)))


class Where(Function):
    """Appends the partition that a tuple is on, and how many there are."""

    def prepare(self, conf, context):
        self._place = (context.partition_index, context.num_partitions)

    def execute(self, tuple, collector):
        collector.emit(self._place)

    def output_types(self, inputs):
        return ["int", "int"]


def placed(stream: Stream) -> Stream:
    """Return a stream with the fields `at` and `of`: the partition of each tuple, of how many."""
    return stream.each(Where(), out="at, of")
