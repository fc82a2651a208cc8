"""The head: it moves only by compare-and-set, and every write of a batch is checked against it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.errors import FencedError, ForeignStoreError, SerdeError, StateMismatchError
from waterspout.state._base import StateKind
from waterspout.state._head import Claim, Head, Stamp, Writer
from waterspout.testing._batches import OWNER
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    StoreHooks,
    at,
    each_exact_kind,
    each_kind,
    record,
)
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

__all__ = ["HeadSuite"]

A, B = ("a",), ("b",)


def _like_now(txid: int = 2, **other: Any) -> Head:
    fields = {"history": "home", "lease": "lease", "resolved": {1: 1}, "name": "words"}
    return at(txid, **{**fields, **other})


NOW = _like_now()
OTHERS = {
    "none": None,
    "an older batch": _like_now(txid=1),
    "another attempt": _like_now(attempt=1),
    "committed": _like_now(committed=True),
    "another epoch": _like_now(epoch=2),
    "another owner": _like_now(owner="x"),
    "another home": _like_now(history="x"),
    "another lease": _like_now(lease="x"),
    "other resolved": _like_now(resolved={1: 0}),
    "none resolved": _like_now(resolved=None),
    "another name": _like_now(name="lines"),
    "no name": _like_now(name=""),
}


class HeadSuite(StoreHooks):
    """Compare-and-set of the head, and writes that only the head's attempt may make."""

    @each_kind
    def test_a_new_store_has_no_head_and_looking_gives_it_none(self, kind: StateKind) -> None:
        fence = self.fenced(kind)

        assert [fence.read_head(), fence.read_head()] == [None, None]

    @each_kind
    def test_the_head_moves_from_what_is_expected_with_all_its_fields(
        self, kind: StateKind
    ) -> None:
        fence = self.fenced(kind)
        steps = [
            None,
            at(1),
            at(1, committed=True),
            at(2, 3, epoch=2, resolved={1: 0, 7: 9}),
            at(2, 4, epoch=2, history="a home", lease="é\n'", owner="ø", resolved={2**40: 1}),
            at(2, 5, epoch=2, history="a home", lease="é\n'", owner="ø", name="wörter 1"),
            at(2**40, 2**31, epoch=2**31, resolved={n: n % 3 for n in range(1, 500)}),
        ]

        for expected, new in pairwise(steps):
            assert new is not None
            fence.move_head(expected, new)
            assert fence.read_head() == new
        fence.close()
        other = self.client(fence).fence
        assert other is not None
        assert other.read_head() == steps[-1]

    @pytest.mark.parametrize("expected", OTHERS.values(), ids=OTHERS)
    def test_the_head_does_not_move_from_anything_else(self, expected: Head | None) -> None:
        fence = self.fenced(OPAQUE)
        fence.move_head(None, NOW)

        with pytest.raises(FencedError):
            fence.move_head(expected, at(3))

        assert fence.read_head() == NOW

    def test_a_head_is_not_moved_where_there_is_none_to_expect(self) -> None:
        fence = self.fenced(OPAQUE)

        with pytest.raises(FencedError):
            fence.move_head(at(1), at(2))

        assert fence.read_head() is None

    @each_kind
    def test_moving_the_head_on_leaves_the_records_alone(self, kind: StateKind) -> None:
        fence = self.fenced(kind)
        fence.move_head(None, at(1))
        fence.fenced_put(at(1).stamp, [A], [record(kind, 1, txid=1)])

        fence.move_head(at(1), at(1, committed=True))
        fence.move_head(at(1, committed=True), at(2))

        assert fence.multi_get([A]) == [record(kind, 1, txid=1)]

    @each_kind
    def test_the_head_is_no_record(self, kind: StateKind) -> None:
        fence = self.fenced(kind)
        fence.multi_put([A], [record(kind, 1)])
        assert fence.read_head() is None
        fence.move_head(None, at(1))

        names = ("head", "_head", "__head__", "waterspout", "_waterspout_heads", "")
        assert fence.multi_get([(name,) for name in names]) == [None] * len(names)

    @each_kind
    def test_a_put_with_the_heads_stamp_is_accepted_as_often_as_it_comes(
        self, kind: StateKind
    ) -> None:
        fence = self.fenced(kind)
        fence.move_head(None, at(1))

        fence.fenced_put(at(1).stamp, [A, B], [record(kind, 1), record(kind, 2)])
        fence.fenced_put(at(1).stamp, [A, B], [record(kind, 1), record(kind, 2)])
        fence.fenced_put(at(1).stamp, [A], [record(kind, 3)])
        fence.fenced_put(at(1).stamp, [], [])

        assert fence.multi_get([A, B]) == [record(kind, 3), record(kind, 2)]

    @pytest.mark.parametrize(
        "stamp",
        [
            at(2, 1).stamp,
            at(2, 3).stamp,
            at(1, 2).stamp,
            at(3, 2).stamp,
            at(2, 2, epoch=2).stamp,
            at(2, 2, owner="another topology").stamp,
            at(2, 2, lease="another").stamp,
            at(2, 2, history="another").stamp,
        ],
        ids=repr,
    )
    @each_exact_kind
    def test_a_put_with_any_other_stamp_is_refused_and_changes_nothing(
        self, kind: StateKind, stamp: Stamp
    ) -> None:
        fence = self.fenced(kind)
        fence.move_head(None, at(2, 2))
        fence.fenced_put(at(2, 2).stamp, [A], [record(kind, 1, 2, 2)])

        with pytest.raises(FencedError):
            fence.fenced_put(stamp, [A, B], [record(kind, 666, 9)] * 2)

        assert fence.multi_get([A, B]) == [record(kind, 1, 2, 2), None]

    @each_kind
    def test_a_put_is_refused_once_the_batch_has_settled_and_where_nobody_claimed(
        self, kind: StateKind
    ) -> None:
        fence = self.fenced(kind)
        with pytest.raises(FencedError):
            fence.fenced_put(at(1).stamp, [A], [record(kind, 1)])
        fence.move_head(None, at(1))
        fence.move_head(at(1), at(1, committed=True))

        with pytest.raises(FencedError):
            fence.fenced_put(at(1).stamp, [A], [record(kind, 1)])

        assert fence.multi_get([A]) == [None]

    @each_kind
    def test_a_put_with_a_key_that_is_none_stores_nothing_at_all(self, kind: StateKind) -> None:
        fence = self.fenced(kind)
        fence.move_head(None, at(1))

        with pytest.raises(SerdeError, match="cannot be in a key"):
            fence.fenced_put(at(1).stamp, [A, (set(),)], [record(kind, 1), record(kind, 2)])

        assert fence.multi_get([A]) == [None]

    @each_kind
    def test_a_put_with_a_value_that_has_no_encoding_stores_nothing_at_all(
        self, kind: StateKind
    ) -> None:
        fence = self.fenced(kind)
        fence.move_head(None, at(1))

        try:
            fence.fenced_put(at(1).stamp, [A, B], [record(kind, 1), record(kind, object())])
        except SerdeError:
            assert fence.multi_get([A, B]) == [None, None]
        else:  # a store of objects, as memory is
            assert fence.multi_get([A]) == [record(kind, 1)]

    @each_exact_kind
    def test_a_new_driver_goes_on_and_the_old_one_is_fenced(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        old = self.batches(kind, backing)
        old.commit({"x": 1})
        old.lose({"x": 2})
        new = old.restarted(self.state(kind, self.client(backing)))

        new.claim()
        with pytest.raises(FencedError):
            old.write({"y": 10, "z": 10})
        with pytest.raises(FencedError):
            old.claim()
        new.write({"x": 2})
        new.mark()
        with pytest.raises(FencedError):
            old.state.settle(2, 0)
        new.settle()

        assert new.values("x", "y", "z") == [3, None, None]

    @each_kind
    def test_another_topology_is_told_whose_store_it_is(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})
        state = self.state(kind, self.client(backing))

        with pytest.raises(ForeignStoreError, match="belongs to topology 'word-count'"):
            self.batches(kind, backing, owner="another").claim()

        assert state.multi_get([("x",)]) == [1]

    @each_kind
    def test_two_states_of_a_topology_are_not_kept_in_one_place(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        places = {"words": backing, "lines": self.client(backing)}
        states = {name: self.state(kind, place) for name, place in places.items()}
        keeper = LedgerKeeper(Ledger(OWNER), lambda ledger: None)
        commits = CommitProtocol(states, keeper)
        commits.enroll(Writer(OWNER, 1, lease="mine"))
        first, written = TransactionAttempt(1, 0), list[Claim]()
        keeper.emit(first, {})

        with pytest.raises(ForeignStoreError, match=r"where 'words' of .* so 'lines' may not"):
            commits.commit(first, written.append)

        assert written == []
        with pytest.raises(ForeignStoreError, match=r"where 'words' of .* so 'lines' may not"):
            commits.verify()  # as the next run does before it takes the lease

    @each_kind
    def test_a_twin_of_the_driver_is_refused(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing, lease="mine")
        batches.commit({"x": 1})
        twin = self.batches(kind, self.client(backing), lease="a copy", ledger=batches.ledger)

        with pytest.raises(FencedError, match="from another home"):
            twin.claim()

        batches.commit({"x": 1})
        assert batches.values("x") == [2]

    @each_kind
    def test_a_driver_of_another_home_is_refused(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        self.batches(kind, backing, home="here").commit({"x": 1})
        there = self.batches(kind, backing, home="there", epoch=2)

        with pytest.raises(StateMismatchError):
            there.claim()

    @each_kind
    def test_an_emptied_store_is_noticed(self, kind: StateKind) -> None:
        batches = self.batches(kind, self.fenced(kind))
        batches.commit({"x": 1})

        with pytest.raises(StateMismatchError, match="is empty, but 1 batches were committed"):
            batches.restarted(self.state(kind, self.new(kind))).claim()

    @each_kind
    def test_a_driver_that_lost_its_ledger_is_stopped_before_it_writes(
        self, kind: StateKind
    ) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})

        with pytest.raises(StateMismatchError, match="holds batch 1"):
            self.batches(kind, backing, epoch=2).commit({"x": 1})

        assert batches.values("x") == [1]

    @each_exact_kind
    def test_a_crash_between_the_claim_and_the_first_write_loses_nothing(
        self, kind: StateKind
    ) -> None:
        batches = self.batches(kind, self.fenced(kind))
        batches.commit({"x": 1})
        batches.claim()
        batches.claim()

        batches.commit({"x": 2})

        assert batches.values("x") == [3]

    def test_a_crash_between_the_mark_and_the_settling_is_made_good_by_the_next_claim(
        self,
    ) -> None:
        batches = self.batches(OPAQUE, self.fenced(OPAQUE))
        batches.lose({"x": 1})
        batches.mark()
        assert batches.values("x") == [None]

        batches.claim()
        assert batches.values("x") == [1]
        batches.write({"x": 2})
        batches.finish()

        assert batches.values("x") == [3]

    @each_kind
    def test_claiming_again_with_the_same_stamp_undoes_nothing(self, kind: StateKind) -> None:
        batches = self.batches(kind, self.fenced(kind))
        batches.lose({"a": 1})
        batches.state.claim(Claim(TransactionAttempt(1, 0)))
        batches.finish()

        assert batches.values("a") == [1]
