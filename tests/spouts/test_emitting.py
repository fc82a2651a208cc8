"""Batch spouts in Storm's shape: when they are asked, and what they may emit."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.trident.spout_kinds import AT_ONCE, Batches, calls, fill, forget, run_to_the_end
from tests.trident.support import capture
from waterspout.errors import EmitError, SourceError
from waterspout.spouts import EmittingSpout
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._sources import source_of
from waterspout.testing import LocalRun
from waterspout.trident import TridentTopology


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()


def topology_of(spout):
    topology = TridentTopology("emitting")
    return topology, capture(topology.new_stream("words", spout))


def test_a_batch_without_tuples_is_not_begun_and_asked_for_again():
    source = fill([])
    topology, kept = topology_of(Batches())
    run = LocalRun(topology, AT_ONCE)
    run.finish(max_steps=100)
    assert run.loop.ledger.current == 1
    assert set(calls("emit_batch")) == {(1,)}

    source.partitions[0] += ["a", "b", "c"]
    run.finish(max_steps=100)
    run.close()

    assert kept.batches == {1: [("a",), ("b",)], 2: [("c",)]}
    assert calls("ack") == [(1,), (2,)]
    assert calls("open") == [("words",)]
    assert calls("close") == [()]


class Longer(Batches):
    """Leaves out short words; a batch may have no others."""

    def emit_batch(self, batch_id, collector):
        super().emit_batch(batch_id, _OnlyLonger(collector))
        return batch_id <= 3


class _OnlyLonger:
    def __init__(self, collector):
        self.collector = collector

    def emit(self, values):
        if len(values[0]) > 1:
            self.collector.emit(values)


def test_a_batch_that_is_one_without_tuples_is_begun_and_the_next_is_asked_for():
    fill(["a", "bb", "c", "d", "ee", "f"])
    topology, kept = topology_of(Longer())

    run = run_to_the_end(topology)

    assert kept.batches == {1: [("bb",)], 3: [("ee",)]}
    assert run.loop.ledger.current == 4
    assert calls("ack") == [(1,), (2,), (3,)]


def test_batches_in_flight_are_asked_for_in_order_once_each():
    fill("abcdef")
    topology, kept = topology_of(Batches())
    run = LocalRun(topology, AT_ONCE.replace(max_spout_pending=3))

    run.loop.step()

    assert sorted(run.loop.ledger.emitted) == [1, 2, 3]
    assert calls("emit_batch") == [(1,), (2,), (3,)]
    run.finish(max_steps=500)
    run.close()
    assert [word for (word,) in kept.rows] == list("abcdef")


class Emits(EmittingSpout):
    output_fields = "word string"
    configuration: ClassVar = {"mine": 7}

    def __init__(self, values):
        self.values = values

    def open(self, conf, context):
        assert conf["mine"] == 7
        assert conf["topology.spout.max.batch.size"] is None
        assert context.component_output_fields("words") == ("word",)

    def emit_batch(self, batch_id, collector):
        if batch_id == 1:
            collector.emit(self.values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "has 1 fields .word. but got 2 values"),
        ("a", "emit takes a list of values"),
        ({"word": 1}, "a list of values, in order"),
    ],
)
def test_what_is_no_tuple_of_the_stream_is_refused(values, message):
    topology, _ = topology_of(Emits(values))

    with pytest.raises(EmitError, match=message):
        run_to_the_end(topology, AT_ONCE.replace(max_retries=0))


def test_a_row_is_known_by_batch_and_number():
    fill("abc")
    source = source_of(Batches(), topology="t", spout_id="words")
    planner = source.open(SpoutContext(AT_ONCE, "words", None, {}, 1))
    planner.plan(1, None)

    read = source.read(planner.plan(2, {"txid": 1}))

    assert read.rows == [("c",)]
    assert read.row_positions() == ["batch 2, row 0"]


def test_it_cannot_be_read_without_a_run():
    fill("abc")
    source = source_of(Batches(), topology="t", spout_id="words")

    with pytest.raises(SourceError, match="is not open"):
        source.read({"txid": 1, "rows": 2, "attempt": "x"})
