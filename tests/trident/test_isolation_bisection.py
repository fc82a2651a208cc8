"""Bisection: exactly the rows that fail alone, for few calls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import FailedException
from waterspout.trident.isolation.running import bisect


class Calls:
    """Fails where a range holds a bad row; counts how often it was called."""

    def __init__(self, bad):
        self.bad = set(bad)
        self.count = 0

    def __call__(self, start, stop):
        self.count += 1
        for row in range(start, stop):
            if row in self.bad:
                raise ValueError(f"row {row}")
        return list(range(start, stop))


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_the_rows_that_fail_alone_are_found(case):
    rows, bad = case
    call = Calls(bad)

    results, found = bisect(call, rows)

    assert [row for part in results for row in part] == [r for r in range(rows) if r not in bad]
    assert [(row, str(error)) for row, error in found] == [(r, f"row {r}") for r in sorted(bad)]


@given(
    st.integers(1, 1000).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=20))
    )
)
def test_few_bad_rows_cost_few_calls(case):
    rows, bad = case
    call = Calls(bad)

    bisect(call, rows)

    depth = math.ceil(math.log2(rows)) if rows > 1 else 0
    assert call.count <= min(1 + 2 * len(bad) * depth, 2 * rows - 1)


def test_rows_that_fail_only_together_are_all_good():
    def call(start, stop):
        if stop - start > 2:
            raise OverflowError("too many at once")
        return list(range(start, stop))

    results, found = bisect(call, 9)

    assert [row for part in results for row in part] == list(range(9))
    assert found == []


@pytest.mark.parametrize("error", [FailedException("again"), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_rows_fault_goes_on(error):
    def call(start, stop):
        raise error

    with pytest.raises(type(error)):
        bisect(call, 5)


def test_no_rows_are_one_call_whose_error_is_nobodys():
    assert bisect(Calls([]), 0) == ([[]], [])
    with pytest.raises(ZeroDivisionError):
        bisect(lambda start, stop: 1 / 0, 0)
