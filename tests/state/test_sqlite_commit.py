"""Batches into SQLite: what a SELECT shows at every moment, undoing, and combining in the store."""

from __future__ import annotations

import math
from datetime import date, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.columns_support import PerColumn
from tests.state_support import (
    OWNER,
    Add,
    Batches,
    committed,
    examples,
    pairs_of,
)
from waterspout.errors import (
    FencedError,
    NumberTooLargeError,
    StaleBatchError,
)
from waterspout.state._base import Combiner, StateKind
from waterspout.state._head import Claim, Head, Stamp, Writer
from waterspout.state._kinds import OpaqueValue, make_map
from waterspout.state._memory import MemoryMap
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import Max, Min, Sum

unused = count()
WORD_COUNT = "SELECT word, count FROM word_counts ORDER BY word"
OPAQUE, TRANSACTIONAL, PLAIN = (
    StateKind.OPAQUE,
    StateKind.TRANSACTIONAL,
    StateKind.NON_TRANSACTIONAL,
)
any_path = pytest.mark.parametrize("combine", [None, Sum()], ids=["folded", "combined"])


@any_path
def test_a_table_shows_committed_batches_and_the_one_being_committed_and_nothing_else(
    make_state, select, combine
):
    batches = Batches(make_state(), combine=combine)
    shown = []

    def look():
        shown.append(dict(select(WORD_COUNT)))

    batches.commit({"x": 1, "y": 1})
    look()
    batches.lose({"x": 100, "new": 100})
    look()
    batches.claim()
    look()
    batches.write({"y": 1})
    look()
    batches.mark()
    batches.settle()
    look()
    batches.commit({"x": 1, "new": 1})
    look()

    assert shown == [
        {"x": 1, "y": 1},
        {"x": 101, "y": 1, "new": 100},
        {"x": 1, "y": 1},
        {"x": 1, "y": 2},
        {"x": 1, "y": 2},
        {"x": 2, "y": 2, "new": 1},
    ]


@any_path
def test_a_zombie_that_wakes_at_any_moment_never_changes_what_select_shows(
    make_state, select, combine
):
    batches = Batches(make_state(), combine=combine)
    batches.commit({"both": 1, "zombies": 1})
    batches.claim()
    zombie = Batches(make_state(), 1, combine, batches.ledger, batches.attempt)

    def wake():
        before = select("SELECT * FROM word_counts")
        with pytest.raises((FencedError, StaleBatchError), match="batch 2"):
            zombie.write({"both": 100, "zombies": 100, "new": 100})
        assert select("SELECT * FROM word_counts") == before

    batches.claim()
    wake()
    batches.write({"both": 1})
    wake()
    batches.mark()
    wake()
    batches.settle()
    wake()
    assert dict(select(WORD_COUNT)) == {"both": 2, "zombies": 1}
    batches.commit({"zombies": 1})
    wake()

    assert dict(select(WORD_COUNT)) == {"both": 2, "zombies": 2}


def test_the_whole_table_is_exactly_right_after_each_of_many_settled_batches(make_state, select):
    batches = Batches(make_state())
    truth = {}
    for n in range(1, 8):
        batches.lose({"a": 50, f"lost {n}": 50})
        batches.commit({"a": n, f"batch {n}": 1})
        truth = {**truth, "a": truth.get("a", 0) + n, f"batch {n}": 1}

        assert dict(select(WORD_COUNT)) == truth


def test_undoing_restores_changed_rows_and_deletes_new_ones(make_state, select):
    batches = Batches(make_state())
    batches.commit({"old": 5, "kept": 1})
    batches.commit({"kept": 1})
    batches.lose({"old": 100, "new": 100})

    batches.claim()

    assert select("SELECT word, count, _prev_count, _txid FROM word_counts ORDER BY 1") == [
        ("kept", 2, 1, 2),
        ("old", 5, None, 0),
    ]


def test_undoing_restores_a_value_that_the_lost_attempt_had_removed(make_state):
    state = make_state()
    batches = Batches(state)
    batches.commit({"a": 5})
    batches.claim()
    state.begin_commit(2, batches.attempt)
    state.multi_put([("a",)], [None])
    state.commit(2)

    batches.claim()

    assert batches.values("a") == [5]
    batches.write({"a": 1})
    batches.mark()
    batches.settle()
    assert batches.values("a") == [6]


def test_undoing_keeps_what_was_written_without_a_txid(make_state):
    state = make_state()
    batches = Batches(state)
    batches.commit({"old": 1})
    batches.lose({"old": 10, "lost": 10})
    state.multi_update([("old",), ("lost",), ("own",)], [Add(100)] * 3)

    batches.claim()

    assert batches.values("old", "lost", "own") == [101, 100, 100]


def test_undoing_spares_rows_of_other_batches_that_hold_no_value(make_state, select):
    state = make_state()
    batches = Batches(state)
    batches.claim()
    state.begin_commit(1)
    state.multi_put([("none",), ("amended",)], [None, 1])
    state.commit(1)
    batches.finish()
    batches.lose({"a": 1})
    state.multi_put([("amended",)], [None])

    batches.claim()

    assert dict(pairs_of(state._backing)) == {("amended",): OpaqueValue(1, 0, None)}


def test_a_removed_row_is_deleted_with_the_claim_of_the_next_batch_and_not_before(
    make_state, select
):
    state = make_state()
    batches = Batches(state)
    batches.commit({"a": 1, "b": 1})
    batches.claim()
    state.begin_commit(2)
    state.multi_remove([("a",)])
    state.commit(2)
    batches.finish()
    before = select("SELECT word, count, _prev_count FROM word_counts ORDER BY word")
    batches.claim()

    assert before == [("a", None, 1), ("b", 1, None)]
    assert select("SELECT word, count FROM word_counts") == [("b", 1)]
    assert select("SELECT name FROM _waterspout_heads") == [("word_counts",)]


def test_undoing_restores_each_of_several_columns_and_deletes_only_empty_rows(make_state, select):
    state = make_state("word string", "n bigint, mean double")
    batches = Batches(state)
    batches.claim()
    state.begin_commit(1)
    state.multi_put([("full",), ("half",)], [(1, 1.5), (None, 2.5)])
    state.commit(1)
    batches.mark()
    batches.settle()
    batches.claim()
    state.begin_commit(2)
    state.multi_put([("full",), ("half",), ("new",)], [(7, 7.0)] * 3)
    state.commit(2)

    batches.claim()

    assert select("SELECT word, n, mean FROM word_counts ORDER BY 1") == [
        ("full", 1, 1.5),
        ("half", None, 2.5),
    ]


def test_claiming_again_with_the_same_stamp_undoes_nothing(make_state, select):
    batches = Batches(make_state())
    batches.lose({"a": 1})

    batches.state.claim(Claim(TransactionAttempt(1, 0)))

    assert dict(select(WORD_COUNT)) == {"a": 1}


def test_a_claim_that_is_refused_undoes_nothing(make_state, select):
    batches = Batches(make_state())
    batches.lose({"a": 1})
    stale = Head(Stamp(Writer(OWNER, 1), 1, 7))

    with pytest.raises(FencedError, match="another driver has moved the head"):
        batches.state._backing.move_head(stale, Head(Stamp(Writer(OWNER, 2), 1, 8)))

    assert dict(select(WORD_COUNT)) == {"a": 1}


@pytest.mark.parametrize("kind", [TRANSACTIONAL, PLAIN])
def test_kinds_without_a_previous_value_have_nothing_to_undo(make_state, select, kind):
    state = make_state(kind=kind)
    batches = Batches(state)
    batches.lose({"a": 1})

    batches.claim()

    assert state.undoes_lost_attempts
    assert dict(select(WORD_COUNT)) == {"a": 1}


class Concatenate(Combiner):
    def combine(self, left, right):
        return left + right


@pytest.mark.parametrize(
    ("values", "combiner", "can"),
    [
        ("v bigint", Sum(), True),
        ("v int", Sum(), False),
        ("v double", Sum(), True),
        ("v bigint", Min(), True),
        ("v date", Max(), True),
        ("v double", Min(), False),
        ("v string", Max(), False),
        ("v string", Sum(), False),
        ("v decimal(10,2)", Sum(), False),
        ("v bigint, w bigint", Sum(), False),
        ("v bigint, w date", PerColumn(("sum", "max")), True),
        ("v bigint, w string", PerColumn(("sum", "max")), False),
        ("v bigint", Concatenate(), False),
    ],
)
def test_only_what_sqlite_computes_as_python_does_is_left_to_it(make_state, values, combiner, can):
    assert make_state("k string", values)._backing.can_combine(combiner) is can


parts = st.tuples(
    st.none() | st.integers(-20, 20), st.none() | st.integers(-20, 20), st.none() | st.dates()
)
several = st.lists(
    st.dictionaries(st.sampled_from("abc"), parts, max_size=3), min_size=1, max_size=3
)


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
@examples(15)
@given(st.lists(several, min_size=1, max_size=4))
def test_several_columns_are_combined_in_the_store_as_they_are_in_python(make_state, kind, history):
    combiner, values = PerColumn(("sum", "max", "min")), "n bigint, top int, since date"
    in_store = make_state("word string", values, kind=kind, table=f"t{next(unused)}")
    assert in_store._backing.can_combine(combiner)
    in_python = make_map(kind, MemoryMap(), name="the model")
    for state in (in_store, in_python):
        batches = Batches(state, combine=combiner)
        for lost_and_last in history:
            for n, updates in enumerate(lost_and_last):
                if kind is TRANSACTIONAL:  # comes back the same, perhaps in part
                    updates = {k: v for k, v in lost_and_last[-1].items() if k in updates}
                batches.claim()
                batches.write(updates)
                if n == len(lost_and_last) - 1:
                    batches.mark()
                    batches.settle()

    keys = [("a",), ("b",), ("c",)]
    model = [None if v == (None, None, None) else v for v in in_python.multi_get(keys)]
    assert in_store.multi_get(keys) == model


def test_nothing_for_one_column_keeps_what_is_there(make_state, select):
    batches = Batches(
        make_state("word string", "n bigint, top int"), combine=PerColumn(("sum", "max"))
    )
    batches.commit({"a": (1, None)})
    batches.commit({"a": (None, 7), "b": (None, 1)})
    batches.commit({"a": (2, 3)})

    assert select("SELECT word, n, top FROM word_counts ORDER BY 1") == [
        ("a", 3, 7),
        ("b", None, 1),
    ]


def partial_dates(n):
    return date(2024, 1, 1) + timedelta(days=n)


def doubles(n):
    return [0.1 * n, math.inf, -math.inf, math.nan, -0.0, 1e308][n % 6]


COMBINABLE = [
    ("bigint", Sum(), int),
    ("double", Sum(), doubles),
    ("bigint", Min(), int),
    ("bigint", Max(), int),
    ("date", Min(), partial_dates),
    ("date", Max(), partial_dates),
]
attempts = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(-20, 20), max_size=3),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
@examples(12)
@given(st.sampled_from(COMBINABLE), st.lists(attempts, min_size=1, max_size=4))
def test_combining_in_the_store_equals_combining_in_python(make_state, kind, column, history):
    sql_type, combiner, partial = column
    table = f"t{next(unused)}"
    in_store = make_state("word string", f"count {sql_type}", kind=kind, table=table)
    in_python = make_map(kind, MemoryMap(), name="the model")
    for state in (in_store, in_python):
        batches = Batches(state, combine=combiner)
        for lost_and_last in history:
            # A transactional batch comes back the same; it may have been written in part.
            whole = lost_and_last[-1]
            for n, updates in enumerate(lost_and_last):
                if kind is TRANSACTIONAL:
                    updates = {k: v for k, v in whole.items() if k in updates}
                batches.claim()
                batches.write({key: partial(number) for key, number in updates.items()})
                if n == len(lost_and_last) - 1:
                    batches.mark()
                    batches.settle()

    keys = [("a",), ("b",), ("c",)]
    assert repr(in_store.multi_get(keys)) == repr(in_python.multi_get(keys))


@pytest.mark.parametrize(("kind", "count"), [(OPAQUE, 3), (TRANSACTIONAL, 3), (PLAIN, 5)])
def test_a_task_retried_within_one_attempt_combines_from_the_same_value(
    make_state, select, kind, count
):
    batches = Batches(make_state(kind=kind), combine=Sum())
    batches.commit({"a": 1})
    batches.claim()

    batches.write({"a": 2, "b": 2})
    batches.write({"a": 2, "b": 2})

    assert dict(select(WORD_COUNT)) == {"a": count, "b": count - 1}


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        (math.inf, -math.inf, math.nan),
        (math.nan, 1.0, math.nan),
        (1.0, math.nan, math.nan),
        (-math.inf, 1.0, -math.inf),
        (1e308, 1e308, math.inf),
        (-0.0, -0.0, -0.0),
        (1, 2, 3.0),
    ],
)
def test_doubles_without_end_add_up_as_they_do_in_python(make_state, kind, first, second, total):
    batches = Batches(make_state("word string", "sum double", kind=kind), combine=Sum())

    batches.commit({"a": first})
    batches.commit({"a": second})

    assert repr(batches.values("a")) == repr([total])


@pytest.mark.parametrize("combiner", [Sum(), Min(), Max()], ids=lambda c: c.merge)
@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
def test_a_row_without_a_value_is_combined_like_a_row_that_is_not_there(make_state, kind, combiner):
    state = make_state(kind=kind)
    state.multi_put([("a",)], [None])
    batches = Batches(state, combine=combiner)

    batches.commit({"a": 5})

    assert batches.values("a") == [5]


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
def test_combining_returns_the_new_values_if_they_are_wanted(make_state, kind):
    state = make_state(kind=kind)
    batches = Batches(state)
    batches.commit({"a": 1})
    batches.claim()
    state.begin_commit(2, batches.attempt)

    new = state.multi_combine([("b",), ("a",)], [5, 6], Sum(), want_new=True)
    state.commit(2)

    assert new == [5, 7]


def test_combining_a_batch_behind_a_row_is_refused_and_names_both_txids(make_state, select):
    state = make_state(kind=TRANSACTIONAL)
    batches = Batches(state, combine=Sum())
    batches.commit({"a": 1, "b": 1})
    with_newer = make_state(kind=TRANSACTIONAL)
    committed(with_newer, 9, {"b": 1})
    batches.claim()

    with pytest.raises(StaleBatchError, match=r"batch 2 .*\('b',\).* batch 9"):
        batches.write({"a": 1, "b": 1})

    assert dict(select(WORD_COUNT)) == {"a": 1, "b": 2}


def test_a_partial_result_of_none_is_left_to_the_combiner(make_state, select):
    class SkipNone(Sum):
        def combine(self, left, right):
            return left if right is None else left + right

    batches = Batches(make_state(), combine=SkipNone())
    batches.commit({"a": 1, "b": None})
    batches.commit({"a": None, "b": 2})

    assert dict(select(WORD_COUNT)) == {"a": 1, "b": 2}


def test_a_batch_cannot_go_on_updating_after_it_combined(make_state):
    state = make_state()
    batches = Batches(state)
    batches.claim()

    for go_on in (
        lambda: state.multi_update([("a",)], [Add(1)]),
        lambda: state.multi_get([("a",)]),
        lambda: state.multi_combine([("a",)], [1], Sum(), want_new=False),
    ):
        state.begin_commit(1)
        state.multi_combine([("a",)], [1], Sum(), want_new=False)
        with pytest.raises(AssertionError, match="a batch combines once"):
            go_on()


def test_combining_after_an_update_of_the_same_batch_folds_them_together(make_state):
    state = make_state()
    batches = Batches(state)
    batches.claim()
    state.begin_commit(1)

    state.multi_update([("a",)], [Add(1)])
    new = state.multi_combine([("a",), ("b",)], [10, 20], Sum(), want_new=True)
    state.commit(1)
    batches.mark()
    batches.settle()

    assert new == [11, 20]
    assert batches.values("a", "b") == [11, 20]


def test_combining_without_a_writer_goes_the_general_way(make_state):
    state = make_state()
    state.begin_commit(1)

    state.multi_combine([("a",)], [2], Sum(), want_new=False)
    state.commit(1)

    assert state.multi_get([("a",)]) == [2]


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize(("start", "more"), [(2**63 - 1, 1), (-(2**63), -1), (2**62, 2**62)])
@any_path
def test_a_sum_beyond_64_bits_is_refused_and_nothing_changes(
    make_state, select, kind, start, more, combine
):
    batches = Batches(make_state(kind=kind), combine=combine)
    batches.commit({"a": start, "b": 1})
    batches.claim()

    with pytest.raises(NumberTooLargeError, match=r"key \('a',\): column 'count' cannot hold"):
        batches.write({"b": 1, "a": more})

    assert dict(select(WORD_COUNT)) == {"a": start, "b": 1}


def test_null_and_nan_keys_are_combined_like_any_other(make_state):
    batches = Batches(make_state("a string, b double"), combine=Sum())
    keys = [(None, math.nan), ("", 0.0), (None, 0.0)]

    for _ in range(2):
        batches.commit({key: n for n, key in enumerate(keys, 1)})

    assert batches.values(*keys) == [2, 4, 6]
