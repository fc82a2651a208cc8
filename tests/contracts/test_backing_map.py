"""What every backing map must do, and what every fenced one must refuse."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import OWNER, Add, Batches, examples, fence_of
from waterspout import faults
from waterspout.errors import FencedError, SerdeError, StateMismatchError, StoreError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.state.cache import CachedMap
from waterspout.state.head import Head, Stamp, Writer
from waterspout.state.memory import MemoryMap
from waterspout.state.opaque import OpaqueMap, OpaqueValue
from waterspout.state.sqlite import SQLiteState

A, B, C = ("a",), ("b",), ("c",)
WRITER = Writer(OWNER, 1)


def record(value, txid=1, attempt=0, prev=None):
    return OpaqueValue(txid, attempt, value, prev)


@pytest.fixture(params=["memory", "sqlite", "cached memory", "cached sqlite"])
def make_map(request, tmp_path):
    """Make a new, empty backing map each time it is called."""
    opened = []

    def make():
        if request.param.endswith("memory"):
            below = MemoryMap()
        else:
            below = SQLiteState.opaque(tmp_path / "states.db", f"state{len(opened)}").backing()
            opened.append(below)
        return CachedMap(below, 50) if request.param.startswith("cached") else below

    yield make
    for below in opened:
        below.close()


@pytest.fixture
def backing(make_map):
    return make_map()


# --- get and put ----------------------------------------------------------------------------


def test_what_was_never_put_is_none(backing):
    assert backing.multi_get([A, B]) == [None, None]


def test_what_was_put_is_got(backing):
    backing.multi_put([A, B], [record(1), record(2, prev=1)])

    assert backing.multi_get([A, B]) == [record(1), record(2, prev=1)]


def test_answers_come_in_the_order_of_the_keys_one_for_each(backing):
    backing.multi_put([A, B], [record(1), record(2)])

    assert backing.multi_get([B, C, A, B, B]) == [
        record(2),
        None,
        record(1),
        record(2),
        record(2),
    ]


def test_a_put_replaces_and_leaves_other_keys_alone(backing):
    backing.multi_put([A, B], [record(1), record(2)])
    backing.multi_put([A], [record(9, txid=2, prev=1)])

    assert backing.multi_get([A, B]) == [record(9, txid=2, prev=1), record(2)]


def test_the_same_put_twice_is_as_good_as_once(backing):
    for _ in range(2):
        backing.multi_put([A, B], [record(1), record(2)])

    assert backing.multi_get([A, B]) == [record(1), record(2)]


def test_of_a_key_that_is_put_twice_in_one_call_the_last_record_stays(backing):
    backing.multi_put([A, A], [record(1), record(2)])

    assert backing.multi_get([A]) == [record(2)]


def test_no_keys_are_no_trouble(backing):
    backing.multi_put([], [])

    assert backing.multi_get([]) == []


def test_a_record_of_none_is_not_the_same_as_no_record(backing):
    backing.multi_put([A], [record(None)])

    assert backing.multi_get([A, B]) == [record(None), None]


@pytest.mark.parametrize("value", [0, -(2**70), 1.5, -0.0, "", "é\0'", True, b"\x00", [1, [2]]])
def test_a_value_comes_back_as_it_was_and_of_its_type(backing, value):
    backing.multi_put([A], [record(value, prev=value)])

    (found,) = backing.multi_get([A])
    assert repr(found) == repr(record(value, prev=value))


@pytest.mark.parametrize("make_map", ["memory", "sqlite"], indirect=True)
def test_a_hundred_thousand_keys_go_in_one_call(backing):
    words = [f"word {n}" for n in range(100_000)]
    backing.multi_put([(word,) for word in words], [record(word) for word in words])

    found = backing.multi_get([(word,) for word in reversed(words)])

    assert [r.value for r in found] == words[::-1]


# --- odd keys -------------------------------------------------------------------------------

ODD_KEYS = [
    (),
    (None,),
    ("",),
    ("", ""),
    (None, None),
    ("x" * 1_000_000,),
    ("x" * 1_000_000 + "y",),
    ("naïve ☃ 𝄞",),
    ("nai\u0308ve ☃ 𝄞",),
    ("a\0b",),
    ("a\0c",),
    ("a",),
    ("a:b",),
    ("a/b",),
    ("a\nb",),
    ("a", "b"),
    ("a,b",),
    ('a","b',),
    ("\ud800",),
    (1,),
    ("1",),
    (1.0,),
    (True,),
    (b"1",),
    (10**30,),
    ((1, 2), 3),
    (1, (2, 3)),
    ((1, 2, 3),),
    ((),),
    (math.nan,),
    ("NaN",),
    (math.inf,),
    (-math.inf,),
    ("a'; DROP TABLE state0; --",),
]


def test_no_two_odd_keys_are_confused(backing):
    backing.multi_put(ODD_KEYS, [record(n) for n in range(len(ODD_KEYS))])

    found = backing.multi_get(list(reversed(ODD_KEYS)))

    assert [r.value for r in reversed(found)] == list(range(len(ODD_KEYS)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", 1), ["a", 1]),
        ((0.0,), (-0.0,)),
        ((math.nan,), (float("nan"),)),
        (((1, [2]),), ([1, (2,)],)),
        ((b"x",), (bytearray(b"x"),)),
    ],
)
def test_equal_keys_are_one_key(backing, one, other):
    backing.multi_put([one], [record(1)])

    assert backing.multi_get([other]) == [record(1)]


parts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=4,
)


@examples(30)
@given(st.lists(st.lists(parts, max_size=3).map(tuple), min_size=1, max_size=10, unique_by=repr))
def test_any_keys_come_back_each_with_its_own_record(make_map, keys):
    backing = make_map()
    keys = [key for key in keys if "-0.0" not in repr(key)]
    backing.multi_put(keys, [record(repr(key)) for key in keys])

    assert [r.value for r in backing.multi_get(keys)] == [repr(key) for key in keys]


# --- the head -------------------------------------------------------------------------------


def at(txid, attempt=0, *, committed=False, epoch=1, resolved=None):
    return Head(Stamp(Writer(OWNER, epoch), txid, attempt), committed, resolved or {})


def test_a_new_store_has_no_head_and_looking_gives_it_none(backing):
    fence = fence_of(backing)

    assert [fence.read_head(), fence.read_head()] == [None, None]


def test_the_head_moves_from_what_is_expected(backing):
    fence = fence_of(backing)
    steps = [None, at(1), at(1, committed=True), at(2, 3, epoch=2, resolved={1: 0, 7: 9})]

    for expected, new in pairwise(steps):
        fence.move_head(expected, new)
        assert fence.read_head() == new


@pytest.mark.parametrize(
    "expected",
    [
        None,
        at(1),
        at(2, 1),
        at(2, committed=True),
        at(2, epoch=2),
        at(2, resolved={1: 1}),
    ],
    ids=["none", "older", "another attempt", "committed", "another epoch", "other resolved"],
)
def test_the_head_does_not_move_from_anything_else(backing, expected):
    fence = fence_of(backing)
    fence.move_head(None, at(2))

    with pytest.raises(FencedError):
        fence.move_head(expected, at(3))

    assert fence.read_head() == at(2)


def test_moving_the_head_on_leaves_the_records_alone(backing):
    fence = fence_of(backing)
    fence.move_head(None, at(1))
    fence.fenced_put(at(1).stamp, [A], [record(1, txid=1)])

    fence.move_head(at(1), at(1, committed=True))
    fence.move_head(at(1, committed=True), at(2))

    assert backing.multi_get([A]) == [record(1, txid=1)]


def test_a_put_with_the_heads_stamp_is_accepted_as_often_as_it_comes(backing):
    fence = fence_of(backing)
    fence.move_head(None, at(1))

    fence.fenced_put(at(1).stamp, [A, B], [record(1), record(2)])
    fence.fenced_put(at(1).stamp, [A], [record(3)])

    assert backing.multi_get([A, B]) == [record(3), record(2)]


@pytest.mark.parametrize(
    "stamp",
    [
        at(2, 1).stamp,
        at(2, 3).stamp,
        at(1, 2).stamp,
        at(3, 2).stamp,
        at(2, 2, epoch=2).stamp,
        Stamp(Writer("another topology", 1), 2, 2),
    ],
    ids=str,
)
def test_a_put_with_any_other_stamp_is_refused_and_changes_nothing(backing, stamp):
    fence = fence_of(backing)
    fence.move_head(None, at(2, 2))
    fence.fenced_put(at(2, 2).stamp, [A], [record(1, 2, 2)])

    with pytest.raises(FencedError):
        fence.fenced_put(stamp, [A, B], [record(666, 9), record(666, 9)])

    assert backing.multi_get([A, B]) == [record(1, 2, 2), None]


def test_a_put_is_refused_once_the_batch_has_settled_and_where_nobody_claimed(backing):
    fence = fence_of(backing)
    with pytest.raises(FencedError):
        fence.fenced_put(at(1).stamp, [A], [record(1)])
    fence.move_head(None, at(1))
    fence.move_head(at(1), at(1, committed=True))

    with pytest.raises(FencedError):
        fence.fenced_put(at(1).stamp, [A], [record(1)])

    assert backing.multi_get([A]) == [None]


def test_a_put_that_fails_half_way_stores_none_of_its_pairs(backing):
    fence = fence_of(backing)
    fence.move_head(None, at(1))

    with pytest.raises(SerdeError, match="set cannot be part of a key"):
        fence.fenced_put(at(1).stamp, [A, (set(),)], [record(1), record(2)])

    assert backing.multi_get([A]) == [None]


# --- writes outside of a batch --------------------------------------------------------------


def test_compare_and_put_stores_where_every_record_is_the_one_that_was_read(backing):
    fence = fence_of(backing)
    backing.multi_put([A], [record(math.nan, prev=1)])

    read = backing.multi_get([A, B])
    assert fence.multi_compare_and_put([A, B], read, [record(5), record(6)])

    assert backing.multi_get([A, B]) == [record(5), record(6)]


@pytest.mark.parametrize(
    "read",
    [
        [None, None],
        [record(1), record(2)],
        [record(1, attempt=1), None],
        [record(1, prev=0), None],
        [record(2), None],
    ],
    ids=["was absent", "was there", "another attempt", "another prev", "another value"],
)
def test_compare_and_put_stores_nothing_where_one_record_is_another(backing, read):
    backing.multi_put([A], [record(1)])

    assert not fence_of(backing).multi_compare_and_put([A, B], read, [record(5), record(6)])

    assert backing.multi_get([A, B]) == [record(1), None]


def test_a_batch_that_commits_while_a_key_is_amended_is_not_lost(backing, monkeypatch):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"x": 1})
    real, outside = backing.multi_get, OpaqueMap(backing)

    def read_and_let_a_batch_commit(keys):
        found = real(keys)
        monkeypatch.undo()
        batches.commit({"x": 10})
        return found

    monkeypatch.setattr(backing, "multi_get", read_and_let_a_batch_commit)
    new = outside.multi_update([("x",)], [Add(100)])

    assert new == [111]
    assert batches.values("x") == [111]


def test_a_replay_while_a_key_is_amended_does_not_bring_the_lost_attempt_back(backing, monkeypatch):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"x": 1})
    batches.lose({"x": 1000})
    real, outside = backing.multi_get, OpaqueMap(backing)

    def read_and_let_the_next_attempt_commit(keys):
        found = real(keys)
        monkeypatch.undo()
        batches.commit({"x": 10})
        return found

    monkeypatch.setattr(backing, "multi_get", read_and_let_the_next_attempt_commit)
    outside.multi_update([("x",)], [Add(100)])

    assert batches.values("x") == [111]
    batches.commit({"x": 1})
    assert batches.values("x") == [112]


def test_an_amendment_returns_what_a_reader_would_see(backing):
    batches, outside = Batches(OpaqueMap(backing)), OpaqueMap(backing)
    batches.commit({"x": 1})
    batches.lose({"x": 1000})

    assert outside.multi_update([("x",), ("y",)], [Add(100), Add(5)]) == [101, 5]
    assert outside.multi_get([("x",), ("y",)]) == [101, 5]


def test_keys_that_always_change_are_given_up_on(backing, monkeypatch):
    monkeypatch.setattr(backing, "multi_compare_and_put", lambda keys, read, values: False)

    with pytest.raises(StoreError, match="change faster than they can be updated"):
        OpaqueMap(backing).multi_update([("x",)], [Add(1)])


# --- crashes and zombies --------------------------------------------------------------------


@pytest.mark.parametrize("point", ["write.before", "write.after"])
def test_a_crash_around_a_write_is_repaired_by_the_next_attempt(backing, point):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"x": 1, "y": 1})
    faults.install(FaultPlan([Fault(point, "raise", where={"txid": 2})]))
    with pytest.raises(InjectedError):
        batches.lose({"x": 10, "z": 10})
    faults.install(None)
    assert batches.values("x", "y", "z") == [1, 1, None]

    batches.commit({"y": 5})

    assert batches.values("x", "y", "z") == [1, 6, None]
    batches.commit({"x": 10, "z": 10})
    assert batches.values("x", "y", "z") == [11, 6, 10]


def test_a_crash_between_the_claim_and_the_first_write_loses_nothing(backing):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"x": 1})
    batches.claim()
    batches.claim()

    batches.commit({"x": 2})

    assert batches.values("x") == [3]


def test_a_crash_between_the_mark_and_the_settling_is_made_good_by_the_next_claim(backing):
    batches = Batches(OpaqueMap(backing))
    batches.lose({"x": 1})
    batches.mark()
    assert batches.values("x") == [None]

    batches.claim()
    assert batches.values("x") == [1]
    batches.write({"x": 2})
    batches.mark()
    batches.settle()

    assert batches.values("x") == [3]


def test_a_new_driver_goes_on_from_the_old_ones_ledger_and_the_old_one_is_fenced(backing):
    old = Batches(OpaqueMap(backing), epoch=1)
    old.commit({"x": 1})
    old.lose({"x": 10, "z": 10})
    new = Batches(OpaqueMap(backing), epoch=2, ledger=old.ledger, attempt=old.attempt)

    new.claim()
    with pytest.raises(FencedError):
        old.write({"x": 10, "z": 10})
    with pytest.raises(FencedError):
        old.claim()
    new.write({"x": 2})
    new.mark()
    with pytest.raises(FencedError):
        old.state.settle(2, 0)
    new.settle()

    assert new.values("x", "z") == [3, None]


def test_a_driver_that_lost_its_ledger_is_stopped_before_it_writes(backing):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"x": 1})

    with pytest.raises(StateMismatchError, match="holds batch 1"):
        Batches(OpaqueMap(backing), epoch=2).commit({"x": 1})

    assert batches.values("x") == [1]


@pytest.mark.parametrize("wakes", ["after the next claim", "after the next commit"])
def test_a_zombie_changes_neither_a_key_of_the_next_attempt_nor_one_of_its_own(backing, wakes):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"both": 1, "zombies": 1})
    batches.claim()
    zombie = OpaqueMap(backing)
    zombie.enroll(WRITER)
    zombie.begin_commit(2, batches.attempt)
    zombie.multi_update([("both",), ("zombies",), ("new",)], [Add(100), Add(100), Add(100)])

    batches.claim()
    batches.write({"both": 1})
    if wakes == "after the next commit":
        batches.mark()
        batches.settle()
    keys = [("both",), ("zombies",), ("new",)]
    before = backing.multi_get(keys)
    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* batch 2 attempt 1"):
        zombie.commit(2)

    assert backing.multi_get(keys) == before
    if wakes == "after the next claim":
        batches.mark()
        batches.settle()
    assert batches.values("both", "zombies", "new") == [2, 1, None]


def test_a_zombie_that_wrote_before_the_next_claim_leaves_nothing_that_counts(backing):
    batches = Batches(OpaqueMap(backing))
    batches.commit({"both": 1, "zombies": 1})
    batches.lose({"both": 100, "zombies": 100, "new": 100})

    batches.commit({"both": 1})
    batches.commit({"zombies": 1, "new": 1})

    assert batches.values("both", "zombies", "new") == [2, 2, 1]


# --- any history ----------------------------------------------------------------------------

partials = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3)
batch = st.tuples(st.lists(partials, max_size=2), partials, st.booleans(), st.booleans())


@examples(25)
@given(st.lists(batch, min_size=1, max_size=4))
def test_sums_are_exact_whatever_was_lost_restarted_or_left_unsettled(make_map, history):
    backing = make_map()
    batches = Batches(OpaqueMap(backing))
    truth = dict.fromkeys("abc", 0)

    for lost, last, settles, restarts in history:
        for updates in lost:
            batches.lose(updates)
        assert [value or 0 for value in batches.values(*"abc")] == list(truth.values())
        if restarts:
            batches = Batches(
                OpaqueMap(backing), batches.epoch + 1, None, batches.ledger, batches.attempt
            )
        batches.lose(last)
        batches.mark()
        if settles:
            batches.settle()
        for key, amount in last.items():
            truth[key] += amount
        if not settles:
            batches.claim()
        assert [value or 0 for value in batches.values(*"abc")] == list(truth.values())
