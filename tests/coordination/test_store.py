"""The store of topologies that live and die with this process."""

from __future__ import annotations

import pytest

from waterspout.coordination.store import (
    MemoryCoordinationStore,
    SharedMemory,
    refuse_changed_graph,
)
from waterspout.errors import ForeignStoreError, LeaseLostError
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import EmittedBatch, Ledger

FINGERPRINT = {"spouts": {"s": "opaque"}, "states": {"counts": "memory"}}
FIRST = TransactionAttempt(1, 0)


def test_the_first_run_finds_a_fresh_ledger():
    store = MemoryCoordinationStore("t")

    assert store.peek() is None
    assert store.acquire(FINGERPRINT) == 1
    assert store.load() == store.peek() == Ledger("t", FINGERPRINT, store.load().history)
    assert store.load().history


def test_load_gives_what_was_saved_last():
    store = MemoryCoordinationStore("t")
    store.acquire(FINGERPRINT)
    ledger = store.load().emit(FIRST, {"s": [0, 1]})

    store.save(ledger)

    assert store.load() == ledger


def test_the_ledger_is_kept_as_text_and_shares_nothing_with_the_caller():
    store = MemoryCoordinationStore("t")
    store.acquire(FINGERPRINT)
    metadata = {"s": [(0, 1)]}
    store.save(store.load().emit(FIRST, metadata))

    metadata["s"].append((2, 3))

    assert store.load().emitted == {1: EmittedBatch(0, {"s": [[0, 1]]})}


def test_a_later_run_goes_on_with_a_higher_epoch_and_the_same_ledger():
    shared = SharedMemory()
    first = MemoryCoordinationStore("t", shared)
    first.acquire(FINGERPRINT)
    ledger = first.load().emit(FIRST, {"s": 1})
    first.save(ledger)
    first.release()

    second = MemoryCoordinationStore("t", shared)

    assert second.peek() == ledger
    assert second.acquire(FINGERPRINT) == 2
    assert second.load() == ledger


def test_the_earlier_holder_can_no_longer_write_and_changes_nothing():
    shared = SharedMemory()
    first, second = (MemoryCoordinationStore("t", shared) for _ in range(2))
    first.acquire(FINGERPRINT)
    second.acquire(FINGERPRINT)
    ledger = second.load().emit(FIRST, {"s": "second"})
    second.save(ledger)

    with pytest.raises(LeaseLostError, match=r"epoch 2, ours was 1"):
        first.save(first.load().emit(TransactionAttempt(1, 1), {"s": "first"}))
    with pytest.raises(LeaseLostError, match=r"epoch 2, ours was 1"):
        first.renew()
    first.release()
    second.renew()

    assert second.load() == ledger


def test_a_store_that_was_not_acquired_cannot_save():
    shared = SharedMemory()
    MemoryCoordinationStore("t", shared).acquire(FINGERPRINT)

    with pytest.raises(LeaseLostError):
        MemoryCoordinationStore("t", shared).save(Ledger("t"))


def test_two_stores_without_shared_memory_know_nothing_of_each_other():
    first, second = MemoryCoordinationStore("t"), MemoryCoordinationStore("t")
    first.acquire(FINGERPRINT)

    assert second.peek() is None
    assert second.acquire({}) == 1
    first.renew()


def test_a_changed_graph_is_refused_and_the_holder_keeps_the_lease():
    shared = SharedMemory()
    first = MemoryCoordinationStore("t", shared)
    first.acquire(FINGERPRINT)

    with pytest.raises(ForeignStoreError, match="States had counts memory and has none now"):
        MemoryCoordinationStore("t", shared).acquire({**FINGERPRINT, "states": {}})

    first.renew()


def test_a_graph_is_compared_as_it_reads_back_from_json():
    shared = SharedMemory()
    MemoryCoordinationStore("t", shared).acquire({"keys": ("word", "day"), "n": {1: "a"}})

    assert MemoryCoordinationStore("t", shared).acquire({"keys": ["word", "day"], "n": {"1": "a"}})


def test_a_refusal_names_each_change_and_nothing_else():
    stored = {"spouts": "files", "states": "a", "gone": 1}
    given = {"spouts": "files", "states": "b", "new": 2}

    with pytest.raises(ForeignStoreError) as refusal:
        refuse_changed_graph(Ledger("word-count", stored), given)

    assert str(refusal.value) == (
        "topology 'word-count' has changed since its last run, and cannot go on so. States was "
        "'a', and is 'b' now. New was not there, and is 2 now. Gone is not in the topology any "
        "more. If that is meant, say so: waterspout run --retire gone, or Config(retire=['gone']). "
        "If it was renamed or moved, change it back. Nothing was written. All changes at once: "
        "waterspout check --against-stored. A topology of another name begins anew, with states of "
        "its own."
    )


def test_an_equal_graph_is_not_refused():
    assert refuse_changed_graph(Ledger("t", {"a": {"b": [1]}}), {"a": {"b": [1]}}).changes == ()
