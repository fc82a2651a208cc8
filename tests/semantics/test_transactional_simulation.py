"""Thousands of failure schedules of transactional topologies, and mutants to be found out."""

from __future__ import annotations

import logging

import pytest

from tests.semantics.transactional_simulation import (
    SHAPES,
    HalfWriting,
    KeepByTxid,
    KeepInState,
    KeepInTransactionalState,
    KeepOpaquely,
    make_world,
    run_schedule,
)
from waterspout.spouts._emitters import _ByPartition
from waterspout.transactional import TransactionalTopology
from waterspout.transactional import _coordinator as coordinator
from waterspout.transactional import _runtime as runtime
from waterspout.transactional._coordinator import Coordinator
from waterspout.transactional._ledger import Ledger

KINDS = pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def wrong_schedules(count, first=0, **how):
    found = []
    for seed in range(first, first + count):
        world = run_schedule(make_world(seed, **how))
        if world.wrong:
            found.append((seed, world.shape.__name__, world.wrong))
    return found


def is_found_out(count, **how):
    """Whether a mutant leaves a wrong state, or runs into an assertion of ours."""
    for seed in range(count):
        try:
            if run_schedule(make_world(seed, **how)).wrong:
                return True
        except AssertionError:
            return True
    return False


@KINDS
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_state_equals_the_recount_under_every_schedule(opaque, shape):
    assert wrong_schedules(12, opaque=opaque, shape=shape) == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
@KINDS
def test_state_equals_the_recount_under_very_many_schedules(opaque):
    assert wrong_schedules(900, first=12, opaque=opaque) == []


WITH_STATES = pytest.mark.parametrize(
    ("opaque", "committer"),
    [(False, KeepInTransactionalState), (False, KeepInState), (True, KeepInState)],
    ids=["transactional", "opaque state", "opaque"],
)


@WITH_STATES
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_states_of_committers_equal_the_recount_under_every_schedule(opaque, committer, shape):
    assert wrong_schedules(6, opaque=opaque, committer=committer, shape=shape) == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
@WITH_STATES
def test_states_of_committers_equal_the_recount_under_very_many_schedules(opaque, committer):
    assert wrong_schedules(90, first=6, opaque=opaque, committer=committer) == []


def test_a_transactional_state_of_a_committer_over_an_opaque_spout_is_found_wrong():
    assert is_found_out(200, opaque=True, committer=KeepInTransactionalState)


@pytest.mark.soak
def test_committers_without_a_fence_are_found_out(monkeypatch):
    def unfenced(self, stamp, keys, values, read=None):
        self.multi_put(keys, values)

    monkeypatch.setattr(HalfWriting, "fenced_put", unfenced)

    assert is_found_out(400, opaque=True, committer=KeepInState)


@KINDS
def test_faults_really_fire(opaque):
    worlds = [run_schedule(make_world(seed, opaque=opaque)) for seed in range(60)]

    fired = sum((world.dice.fired for world in worlds), start=worlds[0].dice.fired.__class__())
    expected = {"crash", "fail", "error", "death", "lost_result", "half_write"}
    assert {what for what in expected if fired[what] >= 5} == expected
    assert (fired["outage"] > 50) == opaque
    assert {world.pending for world in worlds} >= {1, 2, 3, 4, 5, 6}
    assert {world.shape for world in worlds} == set(SHAPES)


def test_same_seed_gives_the_same_history():
    first, second = (run_schedule(make_world(11, opaque=True)) for _ in range(2))

    assert (first.attempts, first.marks, first.dice.fired) == (
        second.attempts,
        second.marks,
        second.dice.fired,
    )


class Forgetful(KeepByTxid):
    """Counts whatever it is given."""

    def write(self, store, ids):
        for key, new in ids.items():
            _, value = store.records.get(key, (0, []))
            store.records[key] = (self.id.txid, sorted([*value, *new]))


def test_mutant_committer_that_ignores_the_txid_is_found_out():
    assert is_found_out(60, opaque=False, committer=Forgetful)


class Unresolved(KeepOpaquely):
    """The rule as Storm has it: it knows of the batch at hand alone."""

    def resolved(self):
        return {}


def test_mutant_opaque_committer_that_ignores_what_was_resolved_is_found_out():
    assert is_found_out(300, opaque=True, committer=Unresolved)


def test_mutant_ledger_that_resolves_nothing_is_found_out(monkeypatch):
    commit = Ledger.commit

    def careless(self, attempt, *, keep_resolved=True, passed=()):
        return commit(self, attempt, keep_resolved=False)

    monkeypatch.setattr(Ledger, "commit", careless)

    assert is_found_out(300, opaque=True)


def test_a_transactional_committer_with_an_opaque_spout_is_found_wrong():
    assert is_found_out(60, opaque=True, committer=KeepByTxid)


@KINDS
def test_mutant_that_finishes_committers_in_the_processing_phase_is_found_out(monkeypatch, opaque):
    monkeypatch.setattr(TransactionalTopology, "late", property(lambda self: frozenset()))

    assert is_found_out(10, opaque=opaque)


def test_mutant_that_keeps_later_batches_after_a_failure_is_found_out(monkeypatch):
    def only_the_failed_one(self, txid, now):
        batch = self._in_flight.pop(txid, None)
        return [] if batch is None else [coordinator.Cancel(batch.attempt)]

    monkeypatch.setattr(Coordinator, "_cancel_from", only_the_failed_one)

    assert is_found_out(60, opaque=True)


def test_mutant_that_forgets_attempts_at_a_restart_is_found_out(monkeypatch):
    made = Coordinator.__init__

    def forgetful(self, policy, *, current=1, attempts=None):
        made(self, policy, current=current, attempts={})

    monkeypatch.setattr(Coordinator, "__init__", forgetful)

    assert is_found_out(100, opaque=False)


def test_mutant_that_forgets_where_a_partition_without_rows_was_is_found_out(monkeypatch):
    plan = _ByPartition.look

    def forgetful(self, txid, previous):
        return [[start if pinned else None, pinned] for start, pinned in plan(self, txid, previous)]

    monkeypatch.setattr(_ByPartition, "look", forgetful)

    assert is_found_out(60, opaque=True)


def test_mutant_that_begins_the_commit_phase_with_new_bolts_is_found_out(monkeypatch):
    run = runtime._PerAttempt._run_bolt

    def forgetful(self, task, component, frames, half_done):
        run(self, task, component, frames, None)

    monkeypatch.setattr(runtime._PerAttempt, "_run_bolt", forgetful)

    assert is_found_out(10, opaque=False)
