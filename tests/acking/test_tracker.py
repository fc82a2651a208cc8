"""All ackers together: shards, settling, time; and the whole of it against a naive model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from waterspout.acking.tracker import AckTracker, TreeReport, Trees


def ids(*numbers: int):
    return np.array(numbers, np.uint64)


def tasks(*numbers: int):
    return np.array(numbers, np.int32)


def pairs(trees: Trees) -> list[tuple[int, int]]:
    return sorted(zip(trees.roots.tolist(), trees.tasks.tolist(), strict=True))


def opened(tracker: AckTracker, *roots: int) -> None:
    """Open trees whose value is their root."""
    tracker.open(ids(*roots), ids(*roots), np.ones(len(roots), np.int32))


@pytest.mark.parametrize("ackers", [1, 2, 3, 7])
def test_trees_go_to_the_acker_of_their_root_modulo_ackers(ackers):
    tracker = AckTracker(ackers, None, 0.0)
    opened(tracker, *range(1, 22))

    held = [ledger.take(ids(*range(1, 22))).roots.tolist() for ledger in tracker._ledgers]
    assert held == [[r for r in range(1, 22) if r % ackers == acker] for acker in range(ackers)]


@pytest.mark.parametrize("ackers", [1, 3])
def test_a_report_acks_what_is_complete_and_fails_the_rest(ackers):
    tracker = AckTracker(ackers, None, 0.0)
    tracker.open(ids(4, 5, 6), ids(40, 50, 60), tasks(1, 2, 3))

    settled = tracker.apply(TreeReport(ids(4, 5), ids(40, 1), failed=ids(5, 9)))

    assert (pairs(settled.acked), pairs(settled.failed)) == ([(4, 1)], [(5, 2)])
    assert len(tracker) == 1


def test_a_tree_that_is_complete_is_acked_even_if_it_failed_too():
    tracker = AckTracker(1, None, 0.0)
    opened(tracker, 4)

    settled = tracker.apply(TreeReport(ids(4), ids(4), failed=ids(4)))

    assert (pairs(settled.acked), pairs(settled.failed)) == ([(4, 1)], [])


@pytest.mark.parametrize("ackers", [1, 3])
def test_taken_roots_are_refused_whatever_their_acker(ackers):
    tracker = AckTracker(ackers, None, 0.0)
    opened(tracker, 4, 5, 6)

    refused = tracker.open(ids(5, 7, 6, 7), ids(1, 1, 1, 1), tasks(11, 12, 13, 14))

    assert pairs(refused) == [(5, 11), (6, 13), (7, 14)]
    assert len(tracker) == 4


def test_there_is_no_tracker_without_ackers():
    with pytest.raises(ValueError, match="without ackers nothing is tracked"):
        AckTracker(0, 30, 0.0)


def test_a_million_pending_trees_take_at_most_32_bytes_each_over_all_ackers():
    tracker = AckTracker(4, 30, 0.0)
    random = np.random.default_rng(3)
    roots = random.integers(1, 2**64, 1_000_000, np.uint64)
    tracker.open(roots, roots, np.ones(1_000_000, np.int32))

    assert len(tracker) == 1_000_000
    assert tracker.nbytes <= 32_000_000


@pytest.mark.parametrize(("begun", "ends"), [(0.0, 60), (29.9, 60), (30.1, 90), (59.9, 90)])
def test_a_tree_times_out_after_one_to_two_periods(begun, ends):
    tracker = AckTracker(2, 30, 0.0)
    expired: dict[float, list[tuple[int, int]]] = {}
    now = 0.0
    while now < 120:
        if now <= begun < now + 0.1:
            opened(tracker, 5)
        found = tracker.expire(now)
        if len(found):
            expired[round(now)] = pairs(found)
        now = round(now + 0.1, 1)

    assert expired == {ends: [(5, 1)]}
    assert 30 <= ends - begun <= 60


def test_a_reset_begins_the_time_anew():
    tracker = AckTracker(3, 30, 0.0)
    opened(tracker, 5, 6)
    tracker.expire(30)

    tracker.apply(TreeReport(reset=ids(6, 7)))

    assert pairs(tracker.expire(60)) == [(5, 1)]
    assert pairs(tracker.expire(90)) == [(6, 1)]


def test_nothing_times_out_where_that_is_disabled():
    tracker = AckTracker(1, None, 0.0)
    opened(tracker, 5)

    assert [len(tracker.expire(now)) for now in (0, 1e3, 1e6, 1e9)] == [0, 0, 0, 0]
    assert len(tracker) == 1


def test_a_driver_that_was_paused_has_given_its_trees_no_time():
    tracker = AckTracker(1, 30, 0.0)
    opened(tracker, 5)

    assert len(tracker.expire(10_000)) == 0
    assert len(tracker.expire(10_001)) == 0
    assert pairs(tracker.expire(10_030)) == [(5, 1)]


def test_asking_often_makes_nothing_older():
    tracker = AckTracker(1, 30, 0.0)
    opened(tracker, 5)

    assert sum(len(tracker.expire(n * 0.01)) for n in range(5_000)) == 0


def test_an_ack_after_the_timeout_is_ignored():
    tracker = AckTracker(1, 30, 0.0)
    opened(tracker, 5)
    tracker.expire(30)
    tracker.expire(60)

    settled = tracker.apply(TreeReport(ids(5), ids(5), failed=ids(5)))

    assert (len(settled.acked), len(settled.failed)) == (0, 0)


SMALL = st.integers(1, 12)
VALUES = st.integers(0, 3)
TIMEOUT = 10.0


class TrackerModel(RuleBasedStateMachine):
    """A tracker beside a dict of root to [value, task, age]."""

    @initialize(ackers=st.integers(1, 4), times_out=st.booleans())
    def begin(self, ackers, times_out):
        self.now = self.rotated = 0.0
        self.times_out = times_out
        self.tracker = AckTracker(ackers, TIMEOUT if times_out else None, self.now)
        self.model: dict[int, list[int]] = {}

    @rule(given=st.lists(st.tuples(SMALL, VALUES, st.integers(1, 3)), max_size=6))
    def open(self, given):
        refused = []
        for root, value, task in given:
            if root in self.model:
                refused.append((root, task))
            else:
                self.model[root] = [value, task, 0]

        found = self.tracker.open(
            ids(*(g[0] for g in given)), ids(*(g[1] for g in given)), tasks(*(g[2] for g in given))
        )

        assert pairs(found) == sorted(refused)

    @rule(
        changes=st.dictionaries(SMALL, VALUES),
        failed=st.sets(SMALL, max_size=3),
        reset=st.sets(SMALL, max_size=3),
    )
    def apply(self, changes, failed, reset):
        for root in reset & self.model.keys():
            self.model[root][2] = 0
        for root in changes.keys() & self.model.keys():
            self.model[root][0] ^= changes[root]
        acked = self._taken(lambda root, row: row[0] == 0)
        lost = self._taken(lambda root, row: root in failed)

        roots = sorted(changes)
        report = TreeReport(
            ids(*roots),
            ids(*(changes[root] for root in roots)),
            ids(*sorted(failed)),
            ids(*sorted(reset)),
        )
        settled = self.tracker.apply(report)

        assert pairs(settled.acked) == acked
        assert pairs(settled.failed) == lost

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.5, 10.0, 25.0, 1000.0]))
    def expire(self, seconds):
        self.now += seconds
        expected: list[tuple[int, int]] = []
        if self.times_out and self.now - self.rotated >= TIMEOUT:
            self.rotated = self.now
            for row in self.model.values():
                row[2] += 1
            expected = self._taken(lambda root, row: row[2] >= 2)

        assert pairs(self.tracker.expire(self.now)) == expected

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def complete(self, data):
        root = data.draw(st.sampled_from(sorted(self.model)))
        self.apply({root: self.model[root][0]}, set(), set())

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "model"):
            assert len(self.tracker) == len(self.model)
            assert self.tracker.nbytes == 21 * len(self.model)

    def _taken(self, chosen):
        found = [(root, row[1]) for root, row in self.model.items() if chosen(root, row)]
        for root, _ in found:
            del self.model[root]
        return sorted(found)


TestTrackerModel = TrackerModel.TestCase
TestTrackerModel.settings = settings(max_examples=60, stateful_step_count=25)
