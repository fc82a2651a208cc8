"""The acker's ledger: one row for each pending tree."""

from __future__ import annotations

import numpy as np
import pytest

from waterspout.acking.tracker import AckLedger, Trees


def ids(*numbers: int):
    return np.array(numbers, np.uint64)


def tasks(*numbers: int):
    return np.array(numbers, np.int32)


def pairs(trees: Trees) -> list[tuple[int, int]]:
    return list(zip(trees.roots.tolist(), trees.tasks.tolist(), strict=True))


@pytest.fixture
def ledger() -> AckLedger:
    made = AckLedger()
    made.open(ids(30, 10, 20), ids(3, 1, 2), tasks(103, 101, 102))
    return made


def test_a_tree_is_complete_when_its_value_is_zero(ledger):
    ledger.change(ids(20), ids(2))

    assert pairs(ledger.take_complete()) == [(20, 102)]
    assert pairs(ledger.take_complete()) == []
    assert len(ledger) == 2


def test_a_tree_that_begins_with_nothing_is_complete_at_once(ledger):
    ledger.open(ids(5), ids(0), tasks(9))

    assert pairs(ledger.take_complete()) == [(5, 9)]


def test_unknown_roots_change_nothing(ledger):
    ledger.change(ids(5, 10, 99), ids(7, 1, 7))

    assert pairs(ledger.take_complete()) == [(10, 101)]


def test_a_root_that_is_taken_is_refused_and_the_older_tree_stays(ledger):
    refused = ledger.open(ids(20, 40), ids(9, 4), tasks(7, 104))

    assert pairs(refused) == [(20, 7)]
    ledger.change(ids(20), ids(2))
    assert pairs(ledger.take_complete()) == [(20, 102)]
    assert len(ledger) == 3


def test_of_two_equal_roots_the_first_is_opened(ledger):
    refused = ledger.open(ids(50, 50, 50), ids(1, 2, 3), tasks(1, 2, 3))

    assert pairs(refused) == [(50, 2), (50, 3)]
    ledger.change(ids(50), ids(1))
    assert pairs(ledger.take_complete()) == [(50, 1)]


def test_failed_trees_are_taken_once(ledger):
    assert pairs(ledger.take(ids(10, 30, 31))) == [(10, 101), (30, 103)]
    assert pairs(ledger.take(ids(10, 30, 31))) == []
    assert len(ledger) == 1


def test_trees_grow_old_one_by_one(ledger):
    assert pairs(ledger.grow_older(2)) == []
    ledger.open(ids(40), ids(4), tasks(104))
    ledger.reset(ids(20, 77))

    assert pairs(ledger.grow_older(2)) == [(10, 101), (30, 103)]
    assert pairs(ledger.grow_older(2)) == [(20, 102), (40, 104)]
    assert len(ledger) == 0


def test_empty_arguments_are_no_trouble():
    ledger = AckLedger()

    ledger.change(ids(), ids())
    ledger.reset(ids())

    assert pairs(ledger.open(ids(), ids(), tasks())) == []
    assert pairs(ledger.take(ids())) == []
    assert pairs(ledger.grow_older(2)) == []


def test_a_million_pending_trees_take_at_most_32_bytes_each():
    random = np.random.default_rng(1)
    ledger = AckLedger()
    for _ in range(10):
        roots = random.integers(1, 2**64, 100_000, np.uint64)
        ledger.open(roots, roots, np.full(100_000, 1, np.int32))

    assert len(ledger) == 1_000_000
    assert ledger.nbytes <= 32 * 1_000_000
    assert ledger.nbytes == 21 * 1_000_000


def test_bytes_are_given_back_when_trees_end(ledger):
    ledger.take(ids(10, 20, 30))

    assert ledger.nbytes == 0
