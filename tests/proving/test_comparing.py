"""Whether two states hold the same."""

from __future__ import annotations

import math

from waterspout.proving.comparing import Discrepancy, bag_of, compare


def test_equal_contents_have_no_difference():
    assert compare({("a",): 1, ("b",): (1, None)}, {("b",): [1, None], ("a",): 1}) == []


def test_a_key_that_is_missing_too_much_or_other_is_a_difference_in_a_fixed_order():
    found = compare({("b",): 2, ("c",): 3}, {("a",): 1, ("b",): 1})

    assert found == [
        Discrepancy(("a",), None, 1),
        Discrepancy(("b",), 2, 1),
        Discrepancy(("c",), 3, None),
    ]


def test_sums_may_differ_in_their_last_digits_and_no_further():
    assert compare({(): 0.1 + 0.2}, {(): 0.3}) == []
    assert compare({(): (1, 0.1 + 0.2)}, {(): (1, 0.3)}) == []
    assert compare({(): math.nan}, {(): math.nan}) == []
    assert compare({(): 0.3001}, {(): 0.3}) != []
    assert compare({(): {"a": 1.0}}, {(): {"a": 1.1}}) != []


def test_whole_numbers_are_compared_to_the_last_digit():
    assert compare({(): 10**12 + 1}, {(): 10**12}) != []


def test_rows_are_a_bag():
    assert compare(bag_of([("a", 1), ("b", 2)]), bag_of([("b", 2), ("a", 1)])) == []
    assert compare(bag_of([("a", 1), ("a", 1)]), bag_of([("a", 1)])) == [
        Discrepancy(("a", 1), 2, 1)
    ]


def test_a_row_may_hold_lists_maps_and_sums():
    one = bag_of([([1, 2], {"b": 1, "a": 0.1 + 0.2}, math.nan)])
    other = bag_of([([1, 2], {"a": 0.3, "b": 1}, math.nan)])

    assert compare(one, other) == []
    assert compare(one, bag_of([([2, 1], {"a": 0.3, "b": 1}, math.nan)])) != []
