"""Opaque states: exact though a batch comes back with other tuples, or without some key."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import Add, Batches, SpyMap, committed, examples
from waterspout._schema import Schema
from waterspout.errors import ConfigError, StaleBatchError
from waterspout.state._base import ValueUpdater
from waterspout.state._kinds import OpaqueMap, OpaqueValue
from waterspout.state._memory import MemoryMap
from waterspout.state.sqlite import SQLiteState

SEED = OpaqueValue(txid=2, attempt=0, value=4, prev=1)


def test_seed_value_4_prev_1_txid_2_becomes_6_4_3_in_the_next_batch():
    store = SpyMap({("count",): SEED})

    assert committed(OpaqueMap(store), 3, {"count": 2}) == [6]

    assert store.at("count") == OpaqueValue(txid=3, attempt=0, value=6, prev=4)


def test_seed_value_4_prev_1_txid_2_becomes_3_1_2_when_the_batch_is_replayed():
    store = SpyMap({("count",): SEED})

    assert committed(OpaqueMap(store), 2, {"count": 2}, attempt=1) == [3]

    assert store.at("count") == OpaqueValue(txid=2, attempt=1, value=3, prev=1)


def test_a_replay_with_other_tuples_leaves_no_trace_of_the_first_attempt():
    store = SpyMap()
    state = OpaqueMap(store)
    committed(state, 1, {"x": 1})

    committed(state, 2, {"x": 100}, attempt=0)
    committed(state, 2, {"x": 7}, attempt=1)
    committed(state, 2, {"x": 7}, attempt=2)

    assert store.at("x") == OpaqueValue(2, 2, 8, prev=1)


def test_a_task_retried_within_one_attempt_starts_from_the_same_value():
    store = SpyMap()
    state = OpaqueMap(store)

    committed(state, 1, {"x": 5}, attempt=3)
    committed(state, 1, {"x": 5}, attempt=3)

    assert store.at("x") == OpaqueValue(1, 3, 5, prev=None)


@pytest.mark.parametrize(
    ("resolved", "start"),
    [
        ({}, "value"),
        ({5: 1}, "value"),
        ({5: 2}, "prev"),
        ({5: 0}, "prev"),
        ({4: 7, 6: 7}, "value"),
    ],
    ids=["not in the map", "its own attempt", "a later one won", "an earlier one", "other batches"],
)
def test_a_record_of_an_older_batch_counts_unless_another_attempt_committed(resolved, start):
    record = OpaqueValue(txid=5, attempt=1, value="value", prev="prev")

    assert record.before(6, resolved) == start
    assert record.before(900, resolved) == start


@pytest.mark.parametrize("resolved", [{}, {5: 1}, {5: 2}])
def test_a_record_of_this_very_batch_never_counts(resolved):
    assert OpaqueValue(5, 1, "value", "prev").before(5, resolved) == "prev"


def test_a_void_record_becomes_the_prev_of_nothing():
    store = SpyMap({("x",): OpaqueValue(2, 0, value=99, prev=10)})

    committed(OpaqueMap(store), 3, {"x": 1}, resolved={2: 1})

    assert store.at("x") == OpaqueValue(3, 0, value=11, prev=10)


def test_a_void_record_without_prev_starts_from_nothing():
    store = SpyMap({("x",): OpaqueValue(2, 0, value=99, prev=None)})

    committed(OpaqueMap(store), 3, {"x": 1}, resolved={2: 1})

    assert store.at("x") == OpaqueValue(3, 0, value=1, prev=None)


def test_a_batch_behind_the_record_is_refused_and_both_txids_are_named():
    store = SpyMap({("x",): OpaqueValue(900, 0, 50, 49)})
    state = OpaqueMap(store)
    state.begin_commit(3)

    with pytest.raises(StaleBatchError, match=r"batch 3 .*\('x',\).* batch 900") as caught:
        state.multi_update([("x",)], [Add(1)])

    assert (caught.value.txid, caught.value.stored, caught.value.key) == (3, 900, ("x",))
    assert pickle.loads(pickle.dumps(caught.value)).stored == 900
    assert store.puts == []


def test_reading_a_record_of_a_later_batch_within_a_batch_is_refused_too():
    state = OpaqueMap(SpyMap({("x",): OpaqueValue(7, 0, 50, 49)}))
    state.begin_commit(6)

    with pytest.raises(StaleBatchError):
        state.multi_get([("x",)])


@pytest.mark.parametrize("txid", [0, -1])
def test_there_is_no_batch_0(txid):
    with pytest.raises(ConfigError, match=f"txids start at 1, so there is no batch {txid}"):
        OpaqueMap(SpyMap()).begin_commit(txid)


def test_several_updates_of_a_key_in_a_batch_are_read_once_and_put_once():
    store = SpyMap({("a",): OpaqueValue(1, 0, 10)})
    state = OpaqueMap(store)
    state.begin_commit(2)

    first = state.multi_update([("a",), ("b",), ("a",)], [Add(1), Add(5), Add(2)])
    second = state.multi_update([("a",)], [Add(4)])
    state.commit(2)

    assert (first, second) == ([11, 5, 13], [17])
    assert store.gets == [[("a",), ("b",)]]
    assert store.puts == [{("a",): OpaqueValue(2, 0, 17, 10), ("b",): OpaqueValue(2, 0, 5)}]


def test_nothing_is_put_before_commit_nor_by_a_batch_that_never_commits():
    store = SpyMap()
    state = OpaqueMap(store)
    state.begin_commit(1)
    state.multi_update([("a",)], [Add(1)])

    state.begin_commit(2)
    state.multi_update([("b",)], [Add(1)])
    state.commit(2)

    assert store.puts == [{("b",): OpaqueValue(2, 0, 1)}]


def test_a_batch_that_only_reads_puts_nothing():
    store = SpyMap({("a",): OpaqueValue(1, 0, 10)})
    state = OpaqueMap(store)
    state.begin_commit(2)

    assert state.multi_get([("a",), ("b",), ("a",)]) == [10, None, 10]
    state.commit(2)

    assert store.puts == []


def test_reads_in_a_batch_see_its_own_writes_and_not_a_lost_attempts():
    store = SpyMap({("a",): OpaqueValue(2, 0, 99, prev=10), ("b",): OpaqueValue(1, 0, 3)})
    state = OpaqueMap(store)
    state.begin_commit(2, attempt=1)

    assert state.multi_get([("a",), ("b",)]) == [10, 3]
    state.multi_update([("a",)], [Add(1)])

    assert state.multi_get([("a",), ("b",)]) == [11, 3]


def test_multi_put_sets_the_value_and_keeps_the_one_before():
    store = SpyMap({("a",): OpaqueValue(1, 0, 10)})
    state = OpaqueMap(store)
    state.begin_commit(2)

    state.multi_put([("a",), ("b",), ("a",)], [1, 2, None])
    state.commit(2)

    assert store.at("a") == OpaqueValue(2, 0, None, 10)
    assert store.at("b") == OpaqueValue(2, 0, 2, None)


class AppendInPlace(ValueUpdater[list]):
    def update(self, stored):
        stored = [] if stored is None else stored
        stored.append(len(stored))
        return stored


def test_an_updater_that_changes_its_argument_does_not_change_prev():
    store = SpyMap({("a",): OpaqueValue(1, 0, [0])})
    state = OpaqueMap(store)

    for attempt in (0, 1):
        state.begin_commit(2, attempt)
        state.multi_update([("a",)], [AppendInPlace()])
        state.commit(2)

    assert store.at("a") == OpaqueValue(2, 1, [0, 1], prev=[0])


def test_an_updater_that_changes_its_argument_outside_of_a_batch_changes_both_once():
    shared = [0]
    store = SpyMap({("a",): OpaqueValue(1, 0, shared, shared)})

    OpaqueMap(store).multi_update([("a",)], [AppendInPlace()])

    assert (store.at("a").value, store.at("a").prev, shared) == ([0, 1], [0, 1], [0])


def test_without_a_txid_both_value_and_prev_are_amended_at_once():
    store = SpyMap({("x",): OpaqueValue(7, 2, value=10, prev=4)})
    state = OpaqueMap(store)

    state.begin_commit(None)
    assert state.multi_update([("x",)], [Add(1)]) == [11]

    assert store.at("x") == OpaqueValue(7, 2, value=11, prev=5)
    state.commit(None)
    assert len(store.puts) == 1


def test_an_amendment_stays_whether_the_batch_is_replayed_or_followed():
    store = SpyMap({("x",): OpaqueValue(7, 0, value=10, prev=4)})
    OpaqueMap(store).multi_update([("x",)], [Add(100)])
    replayed, followed = SpyMap({("x",): store.at("x")}), SpyMap({("x",): store.at("x")})

    committed(OpaqueMap(replayed), 7, {"x": 6}, attempt=1)
    committed(OpaqueMap(followed), 8, {"x": 1})

    assert replayed.at("x") == OpaqueValue(7, 1, value=110, prev=104)
    assert followed.at("x") == OpaqueValue(8, 0, value=111, prev=110)


def test_without_a_txid_a_new_key_belongs_to_no_batch():
    store = SpyMap()
    state = OpaqueMap(store)

    state.multi_update([("x",), ("x",)], [Add(1), Add(2)])
    committed(state, 1, {"x": 10})

    assert [(r.txid, r.value) for put in store.puts for r in put.values()] == [(0, 3), (1, 13)]
    assert store.at("x").prev == 3


def test_without_a_txid_multi_put_sets_both_values():
    store = SpyMap({("x",): OpaqueValue(7, 0, value=10, prev=4)})

    OpaqueMap(store).multi_put([("x",)], [1])

    assert store.at("x") == OpaqueValue(7, 0, value=1, prev=1)


def test_a_reader_outside_gets_prev_while_a_batch_is_begun_and_value_once_it_settled():
    backing = MemoryMap()
    batches = Batches(OpaqueMap(backing))
    reader = OpaqueMap(backing)
    batches.commit({"x": 1})

    batches.claim()
    assert reader.multi_get([("x",), ("new",)]) == [1, None]
    batches.write({"x": 2, "new": 5})
    assert reader.multi_get([("x",), ("new",)]) == [1, None]
    batches.mark()
    assert reader.multi_get([("x",), ("new",)]) == [1, None]
    batches.settle()
    assert reader.multi_get([("x",), ("new",)]) == [3, 5]


def test_a_reader_outside_never_gets_what_a_lost_attempt_wrote():
    backing = MemoryMap()
    batches, reader = Batches(OpaqueMap(backing)), OpaqueMap(backing)
    batches.commit({"x": 1})
    seen = []

    def look():
        seen.extend(reader.multi_get([("x",), ("y",)]))

    batches.lose({"x": 100, "y": 100})
    look()
    batches.claim()
    look()
    batches.mark()
    batches.settle()
    look()
    batches.commit({"other": 1})
    look()

    assert backing.multi_get([("x",)]) == [OpaqueValue(2, 0, 101, prev=1)]
    assert seen == [1, None] * 4


def test_a_reader_outside_gets_amendments_at_once_in_every_phase():
    backing = MemoryMap()
    batches, reader = Batches(OpaqueMap(backing)), OpaqueMap(backing)
    batches.lose({"x": 1})

    reader.multi_update([("x",), ("y",)], [Add(10), Add(20)])
    assert reader.multi_get([("x",), ("y",)]) == [10, 20]
    batches.mark()
    batches.settle()

    assert reader.multi_get([("x",), ("y",)]) == [11, 20]


def test_keys_1_and_text_1_and_1_point_0_and_true_are_four_keys():
    keys = [(1,), ("1",), (1.0,), (True,)]
    store = SpyMap()
    state = OpaqueMap(store)
    state.begin_commit(1)

    state.multi_update(keys, [Add(n) for n in (1, 2, 3, 4)])
    state.commit(1)

    assert state.multi_get(keys) == [1, 2, 3, 4]
    assert len(store.records) == 4


def test_the_empty_key_and_a_key_of_none_and_an_empty_text_are_three_keys():
    keys = [(), (None,), ("",)]
    state = OpaqueMap(SpyMap())
    state.begin_commit(1)

    state.multi_update(keys, [Add(n) for n in (1, 2, 3)])
    state.commit(1)

    assert state.multi_get(keys) == [1, 2, 3]


def test_a_key_is_the_same_as_a_list_and_as_a_tuple():
    store = SpyMap()
    state = OpaqueMap(store)
    state.begin_commit(1)

    assert state.multi_update([["a", 1], ("a", 1)], [Add(1), Add(1)]) == [1, 2]
    state.commit(1)

    assert state.multi_get([["a", 1]]) == [2]


def test_as_many_updaters_as_keys_are_needed():
    state = OpaqueMap(SpyMap())
    state.begin_commit(1)

    with pytest.raises(ValueError, match="zip"):
        state.multi_update([("a",), ("b",)], [Add(1)])


class DocumentedRule:
    """Trident's opaque rule to the letter: it looks at the keys of the batch at hand alone."""

    def __init__(self):
        self.rows = {}

    def update(self, txid, partials):
        for key, partial in partials.items():
            value, prev, stored = self.rows.get(key, (0, 0, 0))
            start = prev if stored == txid else value
            self.rows[key] = (start + partial, start, txid)

    def value(self, key):
        return self.rows[key][0]


# Batch 2 holds one x and one y; x's broker goes down before the second attempt at it, and x's
# tuple comes in batch 3.
FIRST, LOST, REPLAYED, LATER = {"x": 1, "y": 1}, {"x": 1, "y": 1}, {"y": 1}, {"x": 1}
TRUTH = {"x": 2, "y": 2}


def test_the_documented_rule_counts_x_twice_in_the_opaque_hole():
    rule = DocumentedRule()
    for txid, partials in ((1, FIRST), (2, LOST), (2, REPLAYED), (3, LATER)):
        rule.update(txid, partials)

    assert {key: rule.value(key) for key in TRUTH} == {"x": 3, "y": 2} != TRUTH


def test_the_opaque_map_closes_the_hole_by_the_resolved_attempts():
    store = SpyMap()
    state = OpaqueMap(store)
    committed(state, 1, FIRST)
    committed(state, 2, LOST, attempt=0)
    committed(state, 2, REPLAYED, attempt=1)

    assert store.at("x") == OpaqueValue(2, 0, value=2, prev=1)
    committed(state, 3, LATER, resolved={2: 1})

    assert {key: store.at(key).value for key in TRUTH} == TRUTH


@pytest.fixture(params=["memory", "sqlite", "sqlite columns"])
def batches(request, tmp_path):
    if request.param == "memory":
        yield Batches(OpaqueMap(MemoryMap()))
        return
    factory = SQLiteState.opaque(tmp_path / "counts.db", "counts")
    if request.param == "sqlite columns":
        factory = factory.bind(Schema.parse("word string"), Schema.parse("count bigint"))
    state = factory.make_state(None, 0, 1)
    yield Batches(state)
    state.close()


def test_the_opaque_hole_is_closed_with_a_real_head_and_ledger(batches):
    batches.commit(FIRST)
    batches.lose(LOST)
    batches.commit(REPLAYED)
    after_replay = batches.values("x", "y")
    batches.commit(LATER)

    assert after_replay == [1, 2]
    assert dict(zip(TRUTH, batches.values(*TRUTH), strict=True)) == TRUTH


def test_the_seeds_own_batches_1_to_50_then_1_to_40_then_41_to_90_count_each_tuple_once(batches):
    def tuples(first, last):
        return {f"tuple {n}": 1 for n in range(first, last + 1)}

    batches.lose(tuples(1, 50))
    batches.commit(tuples(1, 40))
    batches.commit(tuples(41, 90))

    assert batches.values(*tuples(1, 90)) == [1] * 90


def test_the_ledger_keeps_resolved_attempts_only_for_stores_that_do_not_undo(batches):
    batches.commit(FIRST)
    batches.lose(LOST)
    batches.commit(REPLAYED)

    undoes = batches.state.undoes_lost_attempts
    assert batches.ledger.resolved == ({} if undoes else {2: 1})


partials = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), max_size=4)


@examples()
@given(
    st.lists(st.tuples(st.lists(partials, max_size=2), partials), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_sum_is_exact_whatever_attempts_were_lost_before_each_commit(history, settling):
    backing = MemoryMap()
    batches = Batches(OpaqueMap(backing))
    truth = dict.fromkeys("abcd", 0)

    for lost, last in history:
        for updates in lost:
            batches.lose(updates)
        batches.lose(last)
        batches.mark()
        if settling:
            batches.settle()
        for key, amount in last.items():
            truth[key] += amount
    batches.settle()

    assert [value or 0 for value in batches.values(*"abcd")] == list(truth.values())


def test_a_reader_who_came_before_the_first_claim_sees_nothing_of_the_first_batch(monkeypatch):
    backing = MemoryMap()
    batches, reader = Batches(OpaqueMap(backing)), OpaqueMap(backing)
    real = backing.read_head

    def read_and_let_the_first_batch_write():
        found = real()
        monkeypatch.undo()
        batches.lose({"a": 1_000_000})
        return found

    monkeypatch.setattr(backing, "read_head", read_and_let_the_first_batch_write)

    assert reader.multi_get([("a",)]) == [None]
