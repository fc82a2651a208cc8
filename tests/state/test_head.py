"""The head: who may write to a state. Case by case, and for every sequence of writers."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import OWNER, examples
from waterspout.errors import ConfigError, FencedError, ForeignStoreError, StateMismatchError
from waterspout.state._head import (
    Claim,
    Head,
    Stamp,
    Writer,
    check_stamp,
    claimed,
    settled,
    verify,
)
from waterspout.state._memory import MemoryMap
from waterspout.transactional._attempt import TransactionAttempt

STATE = "the counts"


def stamp(
    txid: int, attempt: int = 0, *, epoch: int = 1, owner: str = OWNER, history: str = ""
) -> Stamp:
    return Stamp(Writer(owner, epoch, history), txid, attempt)


def begun(txid: int, attempt: int = 0, **who) -> Head:
    return Head(stamp(txid, attempt, **who))


def done(txid: int, attempt: int = 0, **who) -> Head:
    return Head(stamp(txid, attempt, **who), committed=True)


def claim(head, by, *, before=0, resolved=None, attempts=(), name=""):
    claim = Claim(TransactionAttempt(by.txid, by.attempt), before, resolved or {}, attempts)
    return claimed(head, by, claim, state=STATE, name=name)


def test_the_first_batch_claims_a_store_that_has_no_head():
    assert claim(None, stamp(1), before=None) == begun(1)


def test_the_next_batch_follows_a_settled_one():
    assert claim(done(4, 2), stamp(5), before=2) == begun(5)


def test_the_next_batch_follows_one_that_was_marked_but_never_settled():
    assert claim(begun(4, 2), stamp(5), before=2) == begun(5)


def test_a_later_attempt_takes_over_from_an_earlier_one():
    assert claim(begun(4, 0), stamp(4, 1), before=0) == begun(4, 1)


def test_attempts_that_never_claimed_leave_a_gap_that_is_no_matter():
    assert claim(begun(4, 0), stamp(4, 7), before=0) == begun(4, 7)


def test_claiming_twice_with_one_stamp_is_allowed():
    assert claim(begun(4, 1), stamp(4, 1), before=0) == begun(4, 1)


def test_a_later_driver_takes_over_with_a_later_attempt():
    assert claim(begun(4, 0), stamp(4, 1, epoch=2), before=0) == begun(4, 1, epoch=2)


def test_a_claim_brings_the_resolved_attempts_along_and_keeps_a_copy():
    resolved = {2: 1}
    head = claim(done(4), stamp(5), before=0, resolved=resolved)
    resolved[3] = 9

    assert head.resolved == {2: 1}


@pytest.mark.parametrize(
    ("head", "by"),
    [
        (begun(4, epoch=3), stamp(4, 1, epoch=2)),
        (begun(4, epoch=3), stamp(5, epoch=2)),
        (done(4, epoch=3), stamp(5, epoch=2)),
    ],
)
def test_a_driver_of_a_lower_epoch_is_fenced_whatever_it_brings(head, by):
    with pytest.raises(FencedError, match=r"the counts: .*epoch 2.* refused.*epoch 3"):
        claim(head, by)


def test_an_earlier_attempt_of_the_same_batch_is_fenced():
    with pytest.raises(FencedError, match=r"batch 4 attempt 1 .* batch 4 attempt 2"):
        claim(begun(4, 2), stamp(4, 1))


def test_a_later_driver_needs_a_later_attempt():
    with pytest.raises(FencedError, match=r"batch 4 attempt 2 .* batch 4 attempt 2"):
        claim(begun(4, 2), stamp(4, 2, epoch=2))


def test_a_batch_that_has_settled_cannot_be_claimed_again():
    with pytest.raises(StateMismatchError, match=r"holds batch 4, .* about to commit batch 4"):
        claim(done(4, 0), stamp(4, 1))


def test_a_batch_that_was_rolled_back_after_it_was_settled_is_claimed_by_the_next_attempt():
    assert claim(done(4, 1), stamp(4, 2), attempts=(1, 2)) == begun(4, 2)


def test_that_an_attempt_has_begun_itself_is_no_leave_to_claim_over_a_settled_one():
    # As a driver does that has lost its ledger, and counts from 1:0 again.
    with pytest.raises(StateMismatchError, match="holds batch 4"):
        claim(done(4, 1), stamp(4, 1, epoch=2), attempts=(1,))


def test_an_earlier_batch_cannot_be_claimed():
    with pytest.raises(StateMismatchError, match=r"holds batch 7, .* about to commit batch 6"):
        claim(begun(7), stamp(6))


def test_there_is_no_batch_0_to_claim():
    with pytest.raises(ConfigError, match="txids start at 1"):
        claim(None, stamp(0), before=None)


@pytest.mark.parametrize("epoch", [1, 5, 9])
def test_another_topology_is_a_foreigner_whatever_its_epoch_and_attempt(epoch):
    with pytest.raises(ForeignStoreError, match=r"topology 'theirs'; topology 'word-count'"):
        claim(begun(4, 3, owner="theirs", epoch=5), stamp(4, 1, epoch=epoch))


def compare(head, *, current, before=0, begun_attempts=(), owner=OWNER):
    verify(
        head,
        state=STATE,
        owner=owner,
        current=current,
        committed_attempt=before,
        begun=begun_attempts,
    )


@pytest.mark.parametrize(
    ("head", "ledger"),
    [
        (None, {"current": 1, "before": None}),
        (begun(1, 0), {"current": 1, "before": None, "begun_attempts": (0,)}),
        (begun(5, 1), {"current": 5, "begun_attempts": (0, 1, 2)}),
        (begun(4, 3), {"current": 5, "before": 3}),
        (done(4, 3), {"current": 5, "before": 3}),
        (done(4, 3), {"current": 5, "before": 3, "begun_attempts": (0, 1)}),
    ],
    ids=[
        "nothing yet",
        "the first batch is being written",
        "an attempt that was begun, not the last",
        "marked, not settled",
        "settled",
        "begun, no state knows of it yet",
    ],
)
def test_a_state_that_tells_the_ledgers_history_is_accepted(head, ledger):
    compare(head, **ledger)


@pytest.mark.parametrize(
    ("head", "ledger", "words"),
    [
        (None, {"current": 5}, "is empty, but 4 batches were committed"),
        (done(5), {"current": 5}, "holds batch 5, .* about to commit batch 5"),
        (begun(9), {"current": 5}, "holds batch 9, .* about to commit batch 5"),
        (done(1), {"current": 1, "before": None}, "holds batch 1, .* about to commit batch 1"),
        (begun(5, 2), {"current": 5, "begun_attempts": (0, 1)}, "attempt 2 of batch 5.*never"),
        (begun(5, 0), {"current": 5}, "attempt 0 of batch 5.*never began"),
        (done(4, 1), {"current": 5, "before": 0}, "attempt 1 of batch 4, but attempt 0"),
        (begun(4, 0), {"current": 5, "before": 2}, "attempt 0 of batch 4, but attempt 2"),
        (done(3), {"current": 5}, "holds batch 3, but batch 4 was committed"),
        (begun(1), {"current": 900}, "holds batch 1, but batch 899 was committed"),
    ],
    ids=[
        "wiped",
        "ahead by one",
        "far ahead",
        "the ledger was reset",
        "an attempt the ledger never began",
        "no attempt was begun",
        "another attempt committed",
        "another attempt committed, unsettled",
        "behind by one: an older copy",
        "far behind",
    ],
)
def test_a_state_that_tells_another_history_stops_the_run(head, ledger, words):
    with pytest.raises(StateMismatchError, match=words):
        compare(head, **ledger)


def test_a_state_of_another_topology_stops_the_run_before_its_numbers_are_compared():
    with pytest.raises(ForeignStoreError, match=r"'word-count'; topology 'mine'"):
        compare(done(4), current=5, owner="mine")


def test_settling_marks_the_head_and_keeps_the_resolved_attempts():
    head = Head(stamp(4, 1), resolved={2: 1})

    assert settled(head, stamp(4, 1), state=STATE) == Head(
        stamp(4, 1), committed=True, resolved={2: 1}
    )


def test_settling_twice_changes_nothing():
    assert settled(done(4, 1), stamp(4, 1), state=STATE) == done(4, 1)


def test_a_later_driver_settles_what_an_earlier_one_wrote_and_owns_it_then():
    assert settled(begun(4, 1), stamp(4, 1, epoch=2), state=STATE) == done(4, 1, epoch=2)


@pytest.mark.parametrize(
    ("head", "by"),
    [
        (None, stamp(1)),
        (begun(4, 1), stamp(4, 0)),
        (begun(4, 1), stamp(4, 2)),
        (begun(4, 1), stamp(3, 1)),
        (begun(5, 0), stamp(4, 0)),
        (begun(4, 1, epoch=2), stamp(4, 1, epoch=1)),
        (done(4, 1, epoch=2), stamp(4, 1, epoch=1)),
        (begun(4, 1, history="ours"), stamp(4, 1, epoch=2, history="theirs")),
    ],
    ids=[
        "no head",
        "earlier attempt",
        "later attempt",
        "earlier batch",
        "overtaken",
        "old driver",
        "old driver, after the new one settled",
        "another home",
    ],
)
def test_settling_any_other_attempt_is_fenced(head, by):
    with pytest.raises(FencedError, match="refused"):
        settled(head, by, state=STATE)


def test_another_topology_cannot_settle():
    with pytest.raises(ForeignStoreError):
        settled(begun(4), stamp(4, owner="theirs"), state=STATE)


def test_a_write_with_the_heads_stamp_is_let_through():
    check_stamp(begun(4, 1), stamp(4, 1), state=STATE)


@pytest.mark.parametrize(
    ("head", "by"),
    [
        (None, stamp(1)),
        (begun(4, 1), stamp(4, 0)),
        (begun(4, 1), stamp(4, 2)),
        (begun(4, 1), stamp(3, 1)),
        (begun(4, 1), stamp(5, 1)),
        (begun(4, 1), stamp(4, 1, epoch=2)),
        (begun(4, 1, epoch=2), stamp(4, 1, epoch=1)),
        (begun(4, 1), stamp(4, 1, owner="theirs")),
        (done(4, 1), stamp(4, 1)),
    ],
    ids=[
        "nobody claimed",
        "earlier attempt",
        "later attempt",
        "earlier batch",
        "later batch",
        "later driver",
        "earlier driver",
        "another topology",
        "its batch has committed",
    ],
)
def test_every_other_write_is_fenced(head, by):
    with pytest.raises(FencedError, match=r"the counts: a write of batch \d .* was refused"):
        check_stamp(head, by, state=STATE)


def test_a_refused_write_names_itself_and_who_has_taken_over():
    with pytest.raises(FencedError) as caught:
        check_stamp(done(5, 2, epoch=3), stamp(4, 1), state=STATE)

    assert str(caught.value) == (
        "the counts: a write of batch 4 attempt 1 (epoch 1) was refused; the state is at batch 5 "
        "attempt 2 (epoch 3), committed. A newer attempt or driver has taken over; this one must "
        "not write any more."
    )


@pytest.mark.parametrize(
    ("head", "txid", "attempt", "counts"),
    [
        (begun(5, 1), 5, 1, False),
        (done(5, 1), 5, 1, True),
        (done(5, 1), 5, 0, False),
        (done(5, 1), 6, 0, False),
        (begun(5, 1), 4, 0, True),
        (Head(stamp(5), resolved={4: 1}), 4, 0, False),
        (Head(stamp(5), resolved={4: 1}), 4, 1, True),
        (Head(stamp(5), resolved={4: 1}), 3, 0, True),
    ],
)
def test_a_reader_outside_counts_a_record_once_its_own_attempt_committed(
    head, txid, attempt, counts
):
    assert head.holds(txid, attempt) is counts


def test_the_first_claim_gives_the_head_its_name_and_the_settling_keeps_it():
    first = claim(None, stamp(1), before=None, name="words")

    assert first == Head(stamp(1), name="words")
    assert settled(first, stamp(1), state=STATE) == Head(stamp(1), committed=True, name="words")


def test_a_head_of_an_older_version_gets_its_name_with_the_next_claim():
    old = Head.from_text(done(4).to_text())

    assert "name" not in done(4).to_text()
    assert claim(old, stamp(5), name="words").name == "words"


@pytest.mark.parametrize("head", [begun(5), begun(4), done(4)])
def test_what_this_writer_has_claimed_under_another_name_is_refused(head):
    with pytest.raises(ForeignStoreError) as error:
        claim(replace(head, name="words"), stamp(5), name="lines")

    assert str(error.value) == (
        "the counts is where 'words' of 'word-count' is kept, so 'lines' may not be kept there as "
        "well: each would take the other's batches for its own. If two addresses lead to one "
        "table, use two tables; if the order of the states has changed, change it back."
    )


def test_a_later_writer_may_call_a_state_otherwise_if_nobody_verifies_the_name():
    before = replace(done(4), name="state1")

    assert claim(before, stamp(5, epoch=2), name="state2").name == "state2"


@pytest.mark.parametrize(("stored", "name"), [("words", "words"), ("", "words"), ("words", "")])
def test_a_name_is_verified_where_both_are_known(stored, name):
    verify_named(replace(done(4), name=stored), name)


@pytest.mark.parametrize("head", [done(4), begun(4), begun(5)])
def test_a_state_of_another_name_is_refused_before_the_run(head):
    with pytest.raises(ForeignStoreError, match="where 'words' of 'word-count' is kept"):
        verify_named(replace(head, name="words"), "lines")


@pytest.mark.parametrize("head", [done(4), begun(5), done(5)], ids=["before", "begun", "undone"])
def test_once_all_have_settled_a_head_is_where_that_left_it_or_further_on(head):
    verify_settled(head)


def test_a_head_that_says_begun_of_a_batch_that_all_have_settled_is_a_copy():
    with pytest.raises(StateMismatchError) as error:
        verify_settled(begun(4))

    assert str(error.value) == (
        "the counts says that batch 4 is being written, though it has already answered that the "
        "batch is committed. It is a copy from the middle of the batch, or a replica that took "
        "over without the last writes. Bring back the store that has them, or restore matching "
        "copies of the state and the waterspout home. If all states of the topology are opaque, "
        "the batch may be taken back in all of them, and the next run counts it again: waterspout "
        "state rollback"
    )


def test_a_claim_over_such_a_copy_is_refused():
    attempt = TransactionAttempt(5, 0)

    with pytest.raises(StateMismatchError, match="has already answered"):
        claimed(begun(4), stamp(5), Claim(attempt, 0, settled=True), state=STATE)
    assert claimed(begun(4), stamp(5), Claim(attempt, 0), state=STATE) == begun(5)


def verify_settled(head):
    verify(
        head,
        state=STATE,
        owner=OWNER,
        current=5,
        committed_attempt=0,
        begun=(0,),
        settled=True,
    )


def verify_named(head, name):
    verify(
        head,
        state=STATE,
        name=name,
        owner=OWNER,
        current=5,
        committed_attempt=0,
        begun=(0,),
    )


@examples()
@given(
    owner=st.text(max_size=20),
    numbers=st.tuples(*[st.integers(0, 2**63)] * 3),
    committed=st.booleans(),
    resolved=st.dictionaries(st.integers(1, 2**63), st.integers(0, 2**63), max_size=5),
    name=st.text(max_size=20),
)
def test_a_head_comes_back_from_its_text_as_it_was(owner, numbers, committed, resolved, name):
    epoch, txid, attempt = numbers
    head = Head(Stamp(Writer(owner, epoch), txid, attempt), committed, resolved, name)

    assert Head.from_text(head.to_text()) == head
    assert pickle.loads(pickle.dumps(head)) == head


def test_the_text_does_not_depend_on_the_order_in_which_attempts_were_resolved():
    one, other = {1: 0, 2: 1}, {2: 1, 1: 0}

    assert Head(stamp(3), resolved=one).to_text() == Head(stamp(3), resolved=other).to_text()


stamps = st.builds(
    stamp,
    st.integers(1, 4),
    st.integers(0, 2),
    epoch=st.integers(1, 3),
    owner=st.sampled_from([OWNER, OWNER, OWNER, "theirs"]),
)
acts = st.tuples(st.sampled_from(["claim", "settle", "write"]), stamps, st.integers(0, 2))


def act(backing: MemoryMap, what: str, by: Stamp, before: int) -> bool:
    """Let a writer do something to the store; tell whether it was let."""
    try:
        head = backing.read_head()
        if what == "claim":
            backing.move_head(head, claim(head, by, before=before))
        elif what == "settle":
            backing.move_head(head, settled(head, by, state=STATE))
        else:
            backing.fenced_put(by, [("x",)], [by])
    except (FencedError, ForeignStoreError, StateMismatchError):
        return False
    return True


def progress(head: Head | None) -> tuple[int, ...]:
    if head is None:
        return (0, 0, 0)
    return (head.stamp.txid, head.stamp.attempt, head.committed)


@examples()
@given(st.lists(acts, max_size=40))
def test_no_sequence_of_writers_writes_past_the_head_or_moves_it_back(sequence):
    backing = MemoryMap()
    for what, by, before in sequence:
        head, records = backing.read_head(), backing.items()

        accepted = act(backing, what, by, before)

        now = backing.read_head()
        if what == "write":
            is_the_heads = head is not None and head.stamp == by and not head.committed
            assert accepted is is_the_heads
            assert now == head
        else:
            assert backing.items() == records
        if not accepted:
            assert (now, backing.items()) == (head, records)
        elif what == "claim":
            assert now == Head(by)
        elif what == "settle":
            assert now == Head(by, committed=True)
        assert progress(now) >= progress(head)
        if head is not None:
            assert now.stamp.writer.epoch >= head.stamp.writer.epoch
            assert now.stamp.writer.owner == head.stamp.writer.owner
        if now is not None and progress(now) > progress(head) and what == "claim":
            assert head is None or now.stamp.txid - head.stamp.txid <= 1
