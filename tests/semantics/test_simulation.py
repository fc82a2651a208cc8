"""Thousands of failure schedules against the promises, and mutants that must be found out."""

from __future__ import annotations

import logging

import pytest

from tests.semantics.simulation import LateMap, UnreliableMap, make_world, run_schedule
from tests.soaking import repeated
from waterspout._serde import encode_key
from waterspout.coordination.commit_protocol import LedgerKeeper
from waterspout.coordination.loop import BatchLoop
from waterspout.errors import StateMismatchError
from waterspout.spouts._base import SpoutKind
from waterspout.state import CachedMap, OpaqueValue, StateKind
from waterspout.transactional import _coordinator as coordinator
from waterspout.transactional._coordinator import Coordinator

YES = [
    (SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
    (SpoutKind.TRANSACTIONAL, StateKind.OPAQUE),
    (SpoutKind.OPAQUE, StateKind.OPAQUE),
]
NO = [
    (SpoutKind.OPAQUE, StateKind.TRANSACTIONAL),
    (SpoutKind.TRANSACTIONAL, StateKind.NON_TRANSACTIONAL),
    (SpoutKind.OPAQUE, StateKind.NON_TRANSACTIONAL),
]


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def wrong_schedules(count, first=0, **kinds):
    """Return the first schedule that leaves something wrong, with what; nothing if none does."""
    for seed in range(first, first + count):
        world = run_schedule(make_world(seed, **kinds))
        if world.wrong:
            return [(seed, world.wrong)]
    return []


@pytest.mark.parametrize(("spout", "state"), YES)
def test_exactly_once_pairs_are_exact_under_every_schedule(spout, state):
    assert wrong_schedules(20, spout=spout, state=state) == []


@pytest.mark.parametrize(("spout", "state"), YES)
def test_they_are_exact_too_where_a_store_compares_key_by_key(spout, state):
    assert wrong_schedules(20, spout=spout, state=state, map_class=LateMap) == []


@repeated(10, in_soak=60)
@pytest.mark.parametrize("below", [UnreliableMap, LateMap])
@pytest.mark.parametrize(("spout", "state"), YES)
def test_they_are_exact_with_a_cache_in_front(spout, state, below, count):
    def cached(dice):
        return CachedMap(below(dice), 3)

    assert wrong_schedules(count, spout=spout, state=state, map_class=cached) == []


@pytest.mark.parametrize(("spout", "state"), NO)
def test_other_pairs_are_found_wrong(spout, state):
    assert wrong_schedules(60, spout=spout, state=state) != []


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("map_class", [UnreliableMap, LateMap])
@pytest.mark.parametrize(("spout", "state"), YES)
def test_exactly_once_pairs_are_exact_under_very_many_schedules(spout, state, map_class):
    kinds = {"spout": spout, "state": state, "map_class": map_class}
    assert wrong_schedules(250, first=20, **kinds) == []


def test_faults_really_fire():
    worlds = [run_schedule(make_world(seed)) for seed in range(40)]

    assert sum(world.dice.fired for world in worlds) > 300
    assert sum(world.crashes for world in worlds) > 20


def test_same_seed_gives_the_same_history():
    first, second = (run_schedule(make_world(11)) for _ in range(2))

    assert (first.attempts, first.marks, first.dice.fired) == (
        second.attempts,
        second.marks,
        second.dice.fired,
    )


class UnfencedMap(UnreliableMap):
    """Writes whatever comes, as a store without a fence would."""

    def fenced_put(self, stamp, keys, values, read=None):
        head = self._head
        self._head = None if head is None else type(head)(stamp, False, head.resolved)
        try:
            super().fenced_put(stamp, keys, values)
        finally:
            self._head = head


@pytest.mark.soak
def test_mutant_without_a_fence_is_found_out():
    assert wrong_schedules(400, map_class=UnfencedMap) != []


def test_mutant_with_the_documented_opaque_rule_is_found_out(monkeypatch):
    def documented(self, txid, resolved=None, key=None):
        return self.prev if txid == self.txid else self.value

    monkeypatch.setattr(OpaqueValue, "before", documented)

    assert wrong_schedules(200) != []


def test_mutant_that_forgets_attempts_at_a_restart_is_found_out(monkeypatch):
    made = Coordinator.__init__

    def forgetful(self, policy, *, current=1, attempts=None):
        made(self, policy, current=current, attempts={})

    monkeypatch.setattr(Coordinator, "__init__", forgetful)

    with pytest.raises(AssertionError):
        assert wrong_schedules(100) == []


def test_mutant_that_keeps_later_batches_after_a_failure_is_found_out(monkeypatch):
    def only_the_failed_one(self, txid, now):
        batch = self._in_flight.pop(txid, None)
        return [] if batch is None else [coordinator.Cancel(batch.attempt)]

    monkeypatch.setattr(Coordinator, "_cancel_from", only_the_failed_one)

    assert wrong_schedules(60) != []


def test_mutant_that_marks_before_it_writes_is_found_out(monkeypatch):
    begin = BatchLoop._begin_commit

    def eager(self, attempt):
        begin(self, attempt)
        self._commits.mark(attempt)
        self.coordinator.committed(attempt, self._clock())

    monkeypatch.setattr(BatchLoop, "_begin_commit", eager)

    with pytest.raises((AssertionError, KeyError, StateMismatchError)):
        assert wrong_schedules(60) == []


def test_mutant_that_claims_before_it_has_recorded_the_attempt_is_found_out(monkeypatch):
    begin = LedgerKeeper.begin

    def unrecorded(self, attempt):
        durably, self._save_durably = self._save_durably, lambda ledger: None
        claim = begin(self, attempt)
        self._save_durably = durably
        return claim

    monkeypatch.setattr(LedgerKeeper, "begin", unrecorded)

    with pytest.raises(StateMismatchError, match="never began"):
        wrong_schedules(60)


class BlindMap(LateMap):
    """Takes whatever comes, as a store that cannot compare would."""

    def multi_compare_and_put(self, keys, read, values):
        return super().multi_compare_and_put(keys, self._store.multi_get(keys), values)

    def _let_some_arrive(self):
        while self._late and self._dice.random.random() < 0.3:
            keys, _, values = self._late.pop()
            self._store.multi_put(keys, values)


def test_mutant_that_does_not_compare_is_found_out():
    assert wrong_schedules(200, map_class=BlindMap) != []


@pytest.mark.soak
def test_mutant_cache_that_is_filled_before_the_write_is_found_out(monkeypatch):
    def eager(self, keys, values, write):
        self._cache.keep([encode_key(key) for key in keys], values)
        write()

    monkeypatch.setattr(CachedMap, "_write", eager)
    kinds = {"spout": SpoutKind.TRANSACTIONAL, "state": StateKind.TRANSACTIONAL}

    def cached(dice):
        return CachedMap(UnreliableMap(dice), 50)

    assert wrong_schedules(200, map_class=cached, **kinds) != []
