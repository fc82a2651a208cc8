"""Tuple objects that are used again: only those that nobody has kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.waves.driving import Driven, Record, seen
from waterspout.testing import FeederSpout, run_in_process
from waterspout.topology import BasicBolt, Bolt, TopologyBuilder
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)


def driven(bolt: Any, count: int) -> FeederSpout:
    """Run a bolt over so many numbers, all in one wave."""
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt).shuffle_grouping("source")
    builder.set_bolt("out", Record("out")).shuffle_grouping("bolt")
    run = Driven(builder.create_topology("t"))
    for n in range(count):
        feeder.feed([n], msg_id=n)
    run.until_idle()
    return feeder


class KeepsEverySecond(Bolt):
    """Emits a kept tuple with the one after it, anchored to both, and acks both."""

    output_fields = ("first", "second")

    def prepare(self, conf, context, collector):
        self.collector = collector
        self.kept: Any = None

    def execute(self, tuple):
        if self.kept is None:
            self.kept = tuple
            return
        kept, self.kept = self.kept, None
        seen("objects").append(kept is tuple)
        self.collector.emit([kept["n"], tuple["n"]], anchors=[kept, tuple])
        self.collector.ack(kept)
        self.collector.ack(tuple)


def test_a_tuple_that_a_bolt_keeps_is_not_used_again():
    feeder = driven(KeepsEverySecond(), 6)

    assert [values for _, values in seen("out")] == [(0, 1), (2, 3), (4, 5)]
    assert seen("objects") == [False] * 3
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)


class KeepsInAnError(BasicBolt):
    """Keeps no tuple but an exception, whose traceback does."""

    output_fields = ("n",)

    def prepare(self, conf, context):
        self.errors: list[Any] = []

    transient = ("errors",)

    def execute(self, tuple, collector):
        try:
            raise ValueError
        except ValueError as error:
            self.errors.append(error)
        collector.emit([len({id(e.__traceback__.tb_frame.f_locals["tuple"]) for e in self.errors})])


def test_a_tuple_that_only_a_traceback_holds_is_not_used_again():
    driven(KeepsInAnError(), 4)

    assert [values for _, values in seen("out")] == [(1,), (2,), (3,), (4,)]


class Identities(Bolt):
    output_fields = ("n",)

    def execute(self, tuple):
        seen("ids").append(id(tuple))
        self.collector.emit([tuple["n"]], tuple)
        self.collector.ack(tuple)


class BasicIdentities(BasicBolt):
    output_fields = ("n",)

    def execute(self, tuple, collector):
        seen("ids").append(id(tuple))
        collector.emit([tuple["n"]])


@pytest.mark.parametrize("bolt", [Identities, BasicIdentities])
def test_one_object_is_enough_for_a_bolt_that_keeps_none(bolt):
    driven(bolt(), 50)

    assert len(seen("ids")) == 50
    assert len(set(seen("ids"))) == 1
    assert [values for _, values in seen("out")] == [(n,) for n in range(50)]


class KeepsAll(BatchBolt):
    output_fields = ("tx", "numbers")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.kept: list[Any] = []

    def execute(self, tuple):
        self.kept.append(tuple)

    def finish_batch(self):
        self.collector.emit([self.id, [each["n"] for each in self.kept]])


def test_a_batch_bolt_may_keep_all_tuples_of_its_batch():
    builder = TransactionalTopologyBuilder(
        "t", "numbers", MemoryTransactionalSpout([[1, 2, 3, 4]], "n", 4)
    )
    builder.set_bolt("keeps", KeepsAll()).global_grouping("numbers")

    run = run_in_process(builder.build_topology())

    assert [sorted(values[1]) for values in run.emitted("keeps")] == [[1, 2, 3, 4]]
