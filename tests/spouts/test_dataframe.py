"""How a DataFrameSpout's ranges are chosen and pinned; that they are read is Spark's to show."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.spouts import DataFrameSpout, SpoutKind
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._sources import source_of
from waterspout.testing._tables import read_table


class Table(DataFrameSpout):
    schema = "id bigint"

    def __init__(self, rows):
        self.rows = rows
        self.asked = []
        self.done = []
        self.closed = False

    def next_range(self, txid, previous):
        self.asked.append((txid, previous))
        start = 0 if previous is None else previous[1]
        end = min(start + 2, self.rows)
        return (start, end) if end > start else None

    def read(self, spark, range):
        return (spark, range)

    def succeeded(self, txid, range):
        self.done.append((txid, range))

    def close(self):
        self.closed = True


def opened(spout, known=None, current=1):
    source = source_of(spout, topology="t", spout_id="table")
    return source, source.open(SpoutContext(Config(), "table", None, known or {}, current))


def test_ranges_follow_each_other_and_an_empty_one_keeps_the_place():
    spout = Table(3)
    _, planner = opened(spout)

    first = planner.plan(1, None)
    second = planner.plan(2, first)
    third = planner.plan(3, second)
    assert not planner.is_ready(third)
    spout.rows = 4
    fourth = planner.plan(4, third)

    assert [first, second, third, fourth] == [
        [None, [0, 2]], [[0, 2], [2, 3]], [[2, 3], None], [[2, 3], [3, 4]],
    ]  # fmt: skip


def test_what_was_found_when_asked_is_planned_without_asking_again():
    spout = Table(3)
    _, planner = opened(spout)

    assert planner.is_ready(None)
    assert planner.plan(1, None) == [None, [0, 2]]
    assert spout.asked == [(1, None)]


def test_after_a_restart_the_next_txid_is_asked_for():
    spout = Table(9)
    _, planner = opened(spout, {4: [None, [0, 2]], 5: [[0, 2], [2, 4]]}, current=5)

    assert planner.is_ready([[0, 2], [2, 4]])
    assert spout.asked == [(6, [2, 4])]


def test_the_spout_hears_of_committed_ranges_and_of_the_end():
    spout = Table(3)
    _, planner = opened(spout)

    planner.succeeded(1, [None, [0, 2]])
    planner.close()

    assert spout.done == [(1, [0, 2])]
    assert spout.closed


def test_a_read_is_the_range_and_the_session_it_is_given():
    source, _ = opened(Table(3))

    read = source.read([None, [0, 2]])

    assert read.make("the session") == ("the session", [0, 2])
    assert read.position == "[0, 2]"
    assert source.read([[0, 2], None]).make is None


def test_a_range_that_is_not_json_is_refused():
    spout = DataFrameSpout.of("id bigint", lambda txid, previous: {1, 2}, max)
    _, planner = opened(spout)

    with pytest.raises(TopologyError, match=r"next_range gave .*, which is not JSON"):
        planner.is_ready(None)


def test_it_may_be_opaque():
    spout = DataFrameSpout.of("id bigint", min, max, kind=SpoutKind.OPAQUE)

    assert opened(spout)[0].kind is SpoutKind.OPAQUE


def test_the_in_process_engine_says_that_it_cannot():
    source, _ = opened(Table(3))

    with pytest.raises(TopologyError, match="spout 'table' is read by Spark"):
        read_table(source.read([None, [0, 2]]))
