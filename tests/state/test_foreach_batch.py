"""What is done with a batch of a query that Spark has numbered: every case of the head."""

from __future__ import annotations

import pytest

from waterspout.errors import ForeignStoreError, StateMismatchError
from waterspout.state._foreach_batch import QueryIdentity, beginnings, decide
from waterspout.state._head import Claim, Head, Stamp, Writer, claimed, settled
from waterspout.transactional._attempt import TransactionAttempt

ME = QueryIdentity("sink counts", "query-1")


def at(
    txid, attempt=0, *, committed=False, owner="sink counts", query="query-1", resolved=None,
    starts_at=None,
):  # fmt: skip
    stamp = Stamp(Writer(owner, 1, query), txid, attempt)
    return Head(stamp, committed, resolved or {}, starts_at=starts_at)


def claim(txid, attempt=0, committed_attempt=None, resolved=None, starts_at=0):
    attempt = TransactionAttempt(txid, attempt)
    return Claim(attempt, committed_attempt, resolved or {}, starts_at=starts_at)


def decided(head, batch_id, who=ME):
    return decide(head, batch_id, who, state="table 'counts'")


def test_the_first_batch_goes_into_an_empty_state():
    assert decided(None, 0) == claim(1)


def test_the_next_batch_follows_a_committed_one():
    assert decided(at(3, committed=True), 3) == claim(4, committed_attempt=0)


def test_a_batch_that_the_state_has_is_skipped():
    assert decided(at(4, 2, committed=True), 3) is None


def test_a_batch_that_was_left_half_way_gets_the_next_attempt():
    assert decided(at(4, 2, resolved={1: 1}), 3) == claim(4, 3, None, {1: 1})


@pytest.mark.parametrize("attempt", [1, 2])
def test_attempts_that_were_lost_are_remembered_as_resolved(attempt):
    head = at(3, attempt, committed=True, resolved={1: 5})

    assert decided(head, 3) == claim(4, committed_attempt=attempt, resolved={1: 5, 3: attempt})


@pytest.mark.parametrize(
    ("head", "batch_id", "reason"),
    [
        (at(9, committed=True), 3, "holds batch 8 of the query, but the query is at batch 3"),
        (at(9), 3, "the checkpoint is younger than the state"),
        (at(2, committed=True), 3, "restored from an older copy"),
        (at(3), 3, "holds batch 2 in part, but the query has gone on to batch 3"),
        (None, 3, r"is empty, but the query is at batch 3.*starting_at\(3\)"),
        (at(3, committed=True, query="query-2"), 3, "query-2, and this is query-1"),
    ],
)
def test_a_batch_that_cannot_follow_is_refused(head, batch_id, reason):
    with pytest.raises(StateMismatchError, match=reason):
        decided(head, batch_id)


def test_a_state_of_somebody_else_is_refused():
    with pytest.raises(ForeignStoreError, match="belongs to 'word-count'"):
        decided(at(3, committed=True, owner="word-count"), 3)


def test_a_query_that_cannot_be_asked_for_its_id_is_let_through():
    assert decided(at(3, committed=True), 3, QueryIdentity("sink counts")) is not None
    assert decided(at(3, committed=True, query=""), 3) is not None


def test_a_state_may_begin_with_a_later_batch():
    late = QueryIdentity("sink counts", "query-1", starts_at=100)

    assert decided(None, 100, late) == claim(1, starts_at=100)
    assert decided(at(1, committed=True), 101, late) == claim(2, committed_attempt=0, starts_at=100)
    with pytest.raises(
        StateMismatchError, match=r"begins with batch 100.*batch 7.*starting_at\(7\)"
    ):
        decided(None, 7, late)


@pytest.mark.parametrize("said", [4, 6, 7, 0], ids=lambda n: f"starting_at({n})")
def test_another_first_batch_than_the_state_has_noted_is_refused(said):
    # Batches 5 to 9 are there. Counted from batch 6, batch 10 would be taken for one of them.
    head = at(5, committed=True, starts_at=5)

    with pytest.raises(StateMismatchError, match=rf"begins with batch 5 .*starting_at\({said}\)"):
        decided(head, 10, QueryIdentity("sink counts", "query-1", said))


@pytest.mark.parametrize(
    ("noted", "said", "each"),
    [
        ([0, "empty"], 7, [None, 7]),
        ([0, 7], 7, [None, 7]),
        ([0, 7], 9, [9, 9]),
        ([0, 7], None, [None, None]),
        (["empty", "empty"], 7, [7, 7]),
    ],
)
def test_a_first_batch_that_a_sink_says_is_meant_for_the_state_that_is_new(noted, said, each):
    heads = [None if n == "empty" else at(3, committed=True, starts_at=n) for n in noted]

    assert beginnings(heads, said) == each


@pytest.mark.parametrize("said", [5, None], ids=["said again", "not said"])
def test_the_state_knows_its_first_batch(said):
    who = QueryIdentity("sink counts", "query-1", said)
    head = at(5, committed=True, starts_at=5)

    assert decided(head, 9, who) is None
    assert decided(head, 10, who) == claim(6, committed_attempt=0, starts_at=5)


def test_a_state_that_begins_with_batch_0_notes_that_too():
    late = QueryIdentity("sink counts", "query-1", starts_at=1)

    with pytest.raises(StateMismatchError, match="begins with batch 0 "):
        decided(at(5, committed=True, starts_at=0), 5, late)


def test_the_first_batch_of_a_state_survives_claim_settling_and_store():
    writer = Writer("sink counts", 1, "query-1")
    stamp = Stamp(writer, 1, 0)
    head = settled(
        claimed(None, stamp, claim(1, starts_at=100), state="t"), Stamp(writer, 1, 0), state="t"
    )

    assert Head.from_text(head.to_text()) == Head(stamp, True, {}, starts_at=100)
    assert "starts_at" not in at(1).to_text()


@pytest.mark.parametrize("committed", [True, False], ids=["whole", "in part"])
@pytest.mark.parametrize(
    ("wrote", "query"),
    [("query-1", None), ("", None), ("", "query-1"), ("query-1", "")],
    ids=["unknown now", "never known", "unknown then", "by hand now"],
)
def test_batch_0_of_a_query_that_may_be_another_is_not_taken_for_the_one_that_is_there(
    wrote, query, committed
):
    head = at(1, committed=committed, query=wrote)

    with pytest.raises(StateMismatchError, match="new checkpoint cannot be told"):
        decided(head, 0, QueryIdentity("sink counts", query))


def test_batch_0_again_of_the_query_that_wrote_it_is_skipped_also_one_called_by_hand():
    assert decided(at(1, committed=True), 0) is None
    assert decided(at(1, committed=True, query=""), 0, QueryIdentity("sink counts")) is None


def test_a_later_batch_needs_no_id_because_a_new_checkpoint_would_be_younger():
    nobody = QueryIdentity("sink counts", None)

    assert decided(at(2, committed=True), 1, nobody) is None
    with pytest.raises(StateMismatchError, match="younger"):
        decided(at(2, committed=True), 0, nobody)
