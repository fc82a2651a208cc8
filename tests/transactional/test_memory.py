"""The in-memory spouts: ranges, partitions that are switched off, and what they refuse."""

from __future__ import annotations

import pytest

from waterspout.errors import TopologyError
from waterspout.testing import check_emitter
from waterspout.transactional import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

KINDS = pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


@KINDS
def test_a_batch_has_at_most_so_many_of_each_partition(kind):
    spout = kind({0: ["a", "b", "c"], 1: ["d"], 2: []}, "word", 2)

    assert check_emitter(spout) == [[("a",), ("b",), ("d",)], [("c",)]]


@KINDS
def test_rows_may_have_several_fields(kind):
    spout = kind([[("a", 1), ["b", 2]]], ("word", "n"), 5)

    assert spout.output_fields == ("tx", "word", "n")
    assert check_emitter(spout) == [[("a", 1), ("b", 2)]]


@KINDS
@pytest.mark.parametrize(
    ("partitions", "fields", "take", "why"),
    [
        ({1: ["a"]}, "word", 1, "partitions are numbered 0, 1, 2"),
        ({0: [], 2: []}, "word", 1, "partitions are numbered 0, 1, 2"),
        ([["a"]], "word", 0, "take is how many rows"),
        ([["a"]], "word", 1.5, "take is how many rows"),
        ([[("a", 1)]], "word", 1, "has 2 values"),
        ([["a"]], ("word", "n"), 1, "has 1 values"),
    ],
)
def test_what_makes_no_sense_is_refused(kind, partitions, fields, take, why):
    with pytest.raises(TopologyError, match=why):
        kind(partitions, fields, take)


def metadata(spout, last=None):
    emitter = spout.get_emitter({}, None)
    return [emitter.next_metadata(1, p, last) for p in range(len(spout.rows))]


def test_a_disabled_partition_has_nothing_until_it_is_enabled():
    spout = OpaqueMemoryTransactionalSpout([["a"], ["b"]], "word", 1)

    spout.set_disabled(1)
    assert metadata(spout) == [[0, 1], None]
    spout.set_disabled(1, False)
    assert metadata(spout) == [[0, 1], [0, 1]]
    spout.set_disabled(0)
    spout.set_disabled(0, False)
    assert metadata(spout) == [[0, 1], [0, 1]]


@KINDS
def test_there_is_nothing_after_the_last_row(kind):
    assert metadata(kind([["a", "b"]], "word", 5), last=[0, 2]) == [None]
