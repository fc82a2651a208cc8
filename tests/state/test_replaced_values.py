"""A batch that has read its records sends new values only; what was before, SQL keeps by itself."""

from __future__ import annotations

import gc

import pytest

from tests.state_support import Add, Batches
from waterspout.state import ValueUpdater
from waterspout.state._base import StateKind

RECORDS = "SELECT word, count, _txid, _attempt, _prev_count FROM word_counts ORDER BY word"


def test_what_a_batch_started_from_is_kept_beside_each_value(make_state, select):
    batches = Batches(make_state())
    batches.commit({"b": 2, "a": 1, "c": 3})

    batches.commit({"c": 30, "new": 4, "a": 10})

    assert select(RECORDS) == [
        ("a", 11, 2, 0, 1),
        ("b", 2, 1, 0, None),
        ("c", 33, 2, 0, 3),
        ("new", 4, 2, 0, None),
    ]


def test_a_second_attempt_starts_from_where_the_first_one_did(make_state, select):
    batches = Batches(make_state())
    batches.commit({"a": 1, "b": 2})
    batches.lose({"a": 100, "lost": 100})

    batches.commit({"a": 10})

    assert select(RECORDS) == [("a", 11, 2, 1, 1), ("b", 2, 1, 0, None)]


def test_what_a_lost_attempt_has_left_is_not_taken_for_what_was_before(make_state, select):
    """SQL stores take lost attempts back; if one is there all the same, the record is judged."""
    state = make_state()
    batches = Batches(state)
    batches.commit({"x": 1, "y": 1})
    batches.commit({"x": 6, "y": 6})
    batches.claim()

    state.begin_commit(batches.txid, batches.attempt, {2: 1})  # attempt 0 did not commit batch 2
    state.multi_update([("y",), ("x",)], [Add(20), Add(10)])
    state.commit(batches.txid)

    assert select(RECORDS) == [("x", 11, 3, 0, 1), ("y", 21, 3, 0, 1)]


def test_an_attempt_that_writes_again_starts_from_where_it_did_at_first(make_state, select):
    batches = Batches(make_state())
    batches.commit({"a": 1, "b": 2})
    batches.claim()
    batches.write({"a": 10})

    batches.write({"b": 20, "a": 10})

    assert select(RECORDS) == [("a", 11, 2, 0, 1), ("b", 22, 2, 0, 2)]


@pytest.mark.parametrize("word", ['"', "\\", "\x01", "a\nb", "naïve ☃ 𝄞", "null", "\0"])
def test_words_that_do_not_stand_in_json_as_they_are(make_state, word):
    batches = Batches(make_state())
    batches.commit({word: 1, "plain": 2})

    batches.commit({"plain": 20, word: 10})

    assert batches.values("plain", word) == [22, 11]


@pytest.mark.parametrize("kind", list(StateKind))
@pytest.mark.parametrize("amounts", [(2**62, -(2**62)), (2**53, 1), (0, -1)])
def test_numbers_of_any_size_come_back(make_state, kind, amounts):
    batches = Batches(make_state(kind=kind))
    first, second = amounts
    batches.commit({"b": first, "a": second})

    batches.commit({"a": first, "b": second})

    assert batches.values("a", "b") == [first + second, first + second]


def test_nobody_looks_for_garbage_while_a_batch_is_updated(make_state):
    seen = []

    class Looks(ValueUpdater):
        def update(self, stored):
            seen.append(gc.isenabled())
            if stored is not None:
                raise ArithmeticError("of the user's")
            return 1

    state = make_state()
    batches = Batches(state)
    batches.claim()
    state.begin_commit(1, 0)

    state.multi_update([("a",)], [Looks()])
    after = gc.isenabled()
    with pytest.raises(ArithmeticError):
        state.multi_update([("a",)], [Looks()])

    assert (seen, after, gc.isenabled()) == ([False, False], True, True)
