"""FixedBatchSpout: rows from a list, some per batch."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from waterspout import Config
from waterspout.errors import SourceError, TopologyError
from waterspout.spouts._base import SpoutContext
from waterspout.testing import FixedBatchSpout


def batches(spout, most=10):
    planner = spout.open(SpoutContext(Config(), "s", None, {}, 1))
    found, previous = [], None
    while planner.is_ready(previous) and len(found) < most:
        previous = planner.plan(len(found) + 1, previous)
        found.append([*spout.read(previous).rows])
    return found


def test_rows_come_in_batches_of_the_size_given():
    assert batches(FixedBatchSpout("n", 2, [1, 2, 3, 4, 5])) == [
        [(1,), (2,)],
        [(3,), (4,)],
        [(5,)],
    ]


def test_no_rows_are_no_batch():
    assert batches(FixedBatchSpout("n bigint", 2, [])) == []
    assert batches(FixedBatchSpout("n bigint", 2, [], cycle=True)) == []


def test_a_cycle_starts_over_behind_the_last_row():
    assert batches(FixedBatchSpout("n", 2, [1, 2, 3], cycle=True), most=3) == [
        [(1,), (2,)],
        [(3,), (1,)],
        [(2,), (3,)],
    ]


def test_a_cycle_may_be_shorter_than_a_batch():
    assert batches(FixedBatchSpout("n", 5, [1, 2], cycle=True), most=1) == [
        [(1,), (2,), (1,), (2,), (1,)]
    ]


def test_a_row_of_one_field_may_be_given_bare():
    assert batches(FixedBatchSpout("word", 3, ["a", ("b",), ["c"]])) == [[("a",), ("b",), ("c",)]]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None], "string"),
        ([1, None], "bigint"),
        ([1, 2.5], "double"),
        ([True], "boolean"),
        ([b"x"], "binary"),
        ([dt.date(2024, 1, 1)], "date"),
        ([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], "timestamp"),
        ([Decimal("1.5")], "decimal(38,18)"),
    ],
)
def test_types_of_bare_names_are_taken_from_the_values(values, kind):
    assert FixedBatchSpout("x", 1, [(value,) for value in values]).schema.types == (kind,)


@pytest.mark.parametrize("values", [[], [None], [1, "a"], [True, 1], [[1]], [{"a": 1}]])
def test_a_type_that_the_values_do_not_tell_must_be_written(values):
    with pytest.raises(TopologyError, match=r"FixedBatchSpout does not know .* 'x'; write it as"):
        FixedBatchSpout("x", 1, [(value,) for value in values])


def test_a_written_type_goes_before_the_values():
    assert FixedBatchSpout("x int, y", 1, [(1, 2)]).schema.types == ("int", "bigint")


def test_a_row_of_another_width_is_refused():
    with pytest.raises(TopologyError, match=r"row \(1, 2, 3\) has 3 values; the spout has 2"):
        FixedBatchSpout("a, b", 1, [(1, 2), (1, 2, 3)])


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(TopologyError, match="needs a batch size of at least 1, not 0"):
        FixedBatchSpout("a", 0, [1])


def test_rows_may_be_added_between_runs_but_not_taken_away():
    metadata = {"start": 2, "end": 4}

    assert FixedBatchSpout("n", 2, [1, 2, 3, 4, 5]).read(metadata).rows == [(3,), (4,)]
    with pytest.raises(
        SourceError, match=r"unfinished batch holds rows 2 to 4, but there are 3 rows"
    ):
        FixedBatchSpout("n", 2, [1, 2, 3]).read(metadata)
