"""Coordinators and emitters of any class, with no more than Storm's own methods."""

from __future__ import annotations

import pytest

from tests.transactional.test_emitters import Opaque, Partitioned, Source, batches, broker, local
from tests.trident.support import capture
from waterspout.errors import TopologyError
from waterspout.testing import LocalRun, check_emitter
from waterspout.transactional import TransactionalSpout
from waterspout.trident import TridentTopology

TOLD: list[tuple] = []


@pytest.fixture(autouse=True)
def _nothing_told():
    TOLD.clear()


class Counts:
    """All that a coordinator of partitions needs."""

    def __init__(self, source):
        self.source = source

    def num_partitions(self):
        return len(self.source.partitions)


class Ready(Counts):
    """As Trident's: it is asked for a batch, and told of it."""

    def is_ready(self, txid):
        TOLD.append(("ready", txid))
        return True

    def success(self, txid):
        TOLD.append(("success", txid))

    def close(self):
        TOLD.append(("close",))


class Emits:
    """As in Storm: two methods."""

    def __init__(self, source):
        self.source = source

    def emit_partition_batch_new(self, attempt, collector, partition, last):
        found = self.source.after(partition, last)
        self.emit_partition_batch(attempt, collector, partition, found)
        return found

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for n in self.source.partitions[partition][metadata[0] : metadata[1]]:
            collector.emit([attempt, n])


class EmitsAnything(Counts):
    """As in Storm: what an opaque emitter needs."""

    def emit_partition_batch(self, attempt, collector, partition, last):
        found = self.source.after(partition, last)
        for n in self.source.partitions[partition][found[0] : found[1]]:
            collector.emit([attempt, n])
        return found


def given(spout, emitter, coordinator):
    """Return a spout of this kind, whose emitter and coordinator are of these classes."""
    from tests.transactional.test_emitters import BROKERS

    class Given(spout):
        def get_coordinator(self, conf, context):
            return coordinator and coordinator(BROKERS[self.broker])

        def get_emitter(self, conf, context):
            return emitter(BROKERS[self.broker])

    return Given("b", None)


PAIRS = [
    pytest.param(Partitioned, Emits, Counts, id="transactional"),
    pytest.param(Partitioned, Emits, Ready, id="transactional, of Trident"),
    pytest.param(Opaque, EmitsAnything, None, id="opaque, nothing coordinates"),
    pytest.param(Opaque, EmitsAnything, Ready, id="opaque, of Trident"),
]


@pytest.mark.parametrize(("spout", "emitter", "coordinator"), PAIRS)
def test_no_base_class_is_needed_in_a_transactional_topology(spout, emitter, coordinator):
    broker([1, 2, 3], [4])

    run = local(given(spout, emitter, coordinator))
    run.finish()
    run.close()

    assert batches(run) == [("1:0", [1, 2, 4]), ("2:0", [3])]
    if coordinator is Ready:
        assert [told for told in TOLD if told[0] != "ready"] == [
            ("success", 1),
            ("success", 2),
            ("close",),
        ]
        assert {txid for what, *txid in TOLD if what == "ready" for txid in txid} == {1, 2, 3}


@pytest.mark.parametrize(("spout", "emitter", "coordinator"), PAIRS)
def test_no_base_class_is_needed_in_a_stream(spout, emitter, coordinator):
    broker([1, 2, 3], [4])
    topology = TridentTopology("t")
    kept = capture(
        topology.new_stream("numbers", given(spout, emitter, coordinator), out="n bigint")
    )

    LocalRun(topology).finish()

    assert sorted(kept.rows) == [(1,), (2,), (3,), (4,)]


class Tens(TransactionalSpout):
    """Its coordinator is Trident's, with the metadata of a batch that is initialized again."""

    output_fields = ("tx", "n")

    def get_coordinator(self, conf, context):
        return self

    def get_emitter(self, conf, context):
        return self

    def initialize_transaction(self, txid, previous, current):
        assert current is None
        return txid * 10

    def is_ready(self, txid):
        return txid < 3

    def emit_batch(self, attempt, metadata, collector):
        collector.emit([attempt, metadata])


def test_a_coordinator_with_trident_s_arguments_makes_the_metadata():
    assert check_emitter(Tens(), tasks=1) == [[(10,)], [(20,)]]


class Empty:
    pass


@pytest.mark.parametrize(
    ("spout", "emitter", "coordinator", "said"),
    [
        (Partitioned, Empty, Counts, "its emitter, a Empty, has no method emit_partition_batch;"),
        (Partitioned, Emits, Empty, "its coordinator, a Empty, has no method num_partitions;"),
        (Partitioned, EmitsAnything, Counts, "no method next_metadata or emit_partition_batch_new"),
        (Opaque, Emits, Empty, "a Emits, has no method num_partitions"),
    ],
)
def test_what_is_missing_is_named_before_the_first_batch(spout, emitter, coordinator, said):
    broker([1])
    lacking = Empty

    class Made(given(spout, emitter, coordinator).__class__):
        def get_coordinator(self, conf, context):
            return lacking() if coordinator is lacking else super().get_coordinator(conf, context)

        def get_emitter(self, conf, context):
            return lacking() if emitter is lacking else super().get_emitter(conf, context)

    with pytest.raises(TopologyError, match=said):
        local(Made("b", None))


def test_the_sources_of_these_tests_are_of_no_base_class():
    # Else the tests above would show nothing.
    assert [base for c in (Counts, Ready, Emits, EmitsAnything) for base in c.__mro__[1:-1]] == [
        Counts,
        Counts,
    ]
    assert Source.__mro__[1:] == (object,)
