"""Which fields are carried along behind a Python function: those that somebody reads."""

from __future__ import annotations

import pytest

from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Aggregator, Count, Sum, TridentTopology
from waterspout.trident.plan.nodes import Each


class Lengths(Aggregator):
    """Reads what it likes of the whole tuple."""

    def init(self, batch_id, collector):
        return []

    def aggregate(self, value, tuple, collector):
        value.append(len(tuple["line"]))

    def complete(self, value, collector):
        collector.emit((sum(value),))


@pytest.fixture
def topology():
    return TridentTopology("fields")


@pytest.fixture
def words(topology):
    lines = topology.new_stream("lines", FixedBatchSpout("line string, n bigint", 1, [("a b", 1)]))
    return lines.each("line", lambda line: line.split()[0], out="word string")


def carried(topology):
    """The fields that a batch still has behind the function."""
    plan = topology.plan()
    (function,) = (node for node in plan.nodes if isinstance(node, Each))
    return plan.kept[function].names


def test_a_count_reads_only_what_it_is_grouped_by(topology, words):
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")

    assert carried(topology) == ("word",)


def test_a_count_of_the_whole_batch_leaves_one_field_for_the_rows_to_have_a_length(topology, words):
    words.aggregate(Count(), out="count")

    assert carried(topology) == ("line",)


def test_aggregates_beside_a_count_have_their_fields(topology, words):
    chain = words.group_by("word").chained_agg().aggregate(Count(), out="count")
    chain.aggregate("n", Sum(), out="sum").chain_end()

    assert carried(topology) == ("n", "word")


def test_an_aggregator_of_ones_own_may_read_everything_beside_a_count_too(topology, words):
    chain = words.group_by("word").chained_agg().aggregate(Count(), out="count")
    chain.aggregate(Lengths(), out="length bigint").chain_end()

    assert carried(topology) == ("line", "n", "word")


def test_a_count_that_was_changed_may_read_everything(topology, words):
    class OfLongLines(Count):
        def init(self, tuple):
            return int(len(tuple["line"]) > 3)

    words.group_by("word").persistent_aggregate(MemoryMapState(), OfLongLines(), out="count")

    assert carried(topology) == ("line", "n", "word")


def test_another_reader_of_the_stream_has_its_fields(topology, words):
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    words.aggregate("n", Sum(), out="sum")

    assert carried(topology) == ("n", "word")
