"""The ledger: three transitions, one JSON form, and no way from damage to a fresh start."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waterspout.errors import DamagedStoreError
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import EmittedBatch, Ledger


def a(txid: int, attempt: int = 0) -> TransactionAttempt:
    return TransactionAttempt(txid, attempt)


def m(n: int) -> dict[str, object]:
    return {"spout": {"partition-0": [n, n + 1]}}


FRESH = Ledger("t", {"spouts": {"s": "opaque"}})


def in_mid_commit() -> Ledger:
    """Batch 1 committed at its second begun attempt; 2 has begun, 3 is in flight."""
    ledger = FRESH
    for attempt in (a(1), a(1, 1)):
        ledger = ledger.emit(attempt, m(attempt.attempt_id)).begin(attempt)
    ledger = ledger.commit(a(1, 1))
    ledger = ledger.emit(a(2), m(20)).emit(a(3), m(30)).begin(a(2))
    return ledger.emit(a(2, 1), m(21)).emit(a(3, 1), m(31))


def test_a_fresh_ledger_waits_for_batch_1_and_knows_nothing_else():
    assert Ledger("t") == Ledger("t", {}, "", 1, None, None, {}, (), {})


def test_emit_records_attempt_and_metadata_and_nothing_else():
    ledger = FRESH.emit(a(1), m(10)).emit(a(2), m(20))

    assert ledger.emitted == {1: EmittedBatch(0, m(10)), 2: EmittedBatch(0, m(20))}
    assert (ledger.current, ledger.begun, ledger.resolved) == (1, (), {})
    assert FRESH.emitted == {}


def test_emitting_again_replaces_attempt_and_metadata_and_keeps_what_has_begun():
    ledger = FRESH.emit(a(1), m(10)).begin(a(1)).emit(a(1, 1), m(11))

    assert ledger.emitted == {1: EmittedBatch(1, m(11))}
    assert ledger.begun == (0,)


def test_begin_records_every_attempt_that_may_have_written():
    ledger = FRESH.emit(a(1), m(1)).begin(a(1)).emit(a(1, 1), m(1)).emit(a(1, 2), m(1))

    assert ledger.begin(a(1, 2)).begun == (0, 2)


def test_commit_moves_on_and_keeps_what_the_next_batch_goes_on_from():
    ledger = FRESH.emit(a(1), m(10)).emit(a(2), m(20)).begin(a(1)).commit(a(1))

    assert ledger.current == 2
    assert (ledger.committed_attempt, ledger.committed_metadata) == (0, m(10))
    assert ledger.emitted == {2: EmittedBatch(0, m(20))}
    assert ledger.begun == ()
    assert ledger.resolved == {}


def test_a_batch_that_had_several_begun_attempts_is_resolved_to_the_one_that_committed():
    ledger = in_mid_commit()

    assert ledger.resolved == {1: 1}
    assert ledger.begin(a(2, 1)).commit(a(2, 1)).resolved == {1: 1, 2: 1}


def test_a_batch_that_was_emitted_twice_but_begun_once_needs_no_resolving():
    ledger = FRESH.emit(a(1), m(1)).emit(a(1, 1), m(1)).begin(a(1, 1)).commit(a(1, 1))

    assert ledger.resolved == {}
    assert ledger.committed_attempt == 1


def test_without_keep_resolved_nothing_is_added_and_nothing_is_lost():
    ledger = in_mid_commit().begin(a(2, 1)).commit(a(2, 1), keep_resolved=False)

    assert ledger.resolved == {1: 1}


def test_a_batch_goes_on_from_the_one_before_it_committed_or_in_flight():
    ledger = in_mid_commit()

    assert FRESH.metadata_before(1) is None
    assert ledger.metadata_before(2) == m(1)
    assert ledger.metadata_before(3) == m(21)
    assert ledger.metadata_before(4) == m(31)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ledger: ledger.emit(a(1, 9), m(0)),
        lambda ledger: ledger.emit(a(2, 1), m(0)),
        lambda ledger: ledger.emit(a(2, 0), m(0)),
        lambda ledger: ledger.emit(a(5), m(0)),
        lambda ledger: ledger.begin(a(3, 1)),
        lambda ledger: ledger.begin(a(2, 0)),
        lambda ledger: ledger.begin(a(2, 2)),
        lambda ledger: ledger.begin(a(2, 1)).begin(a(2, 1)),
        lambda ledger: ledger.commit(a(2, 1)),
        lambda ledger: ledger.begin(a(2, 1)).commit(a(2, 0)),
        lambda ledger: ledger.begin(a(2, 1)).commit(a(3, 1)),
        lambda ledger: FRESH.commit(a(1)),
    ],
    ids=[
        "emit a committed batch",
        "emit an attempt again",
        "emit an older attempt",
        "emit beyond a gap",
        "begin a later batch",
        "begin an older attempt",
        "begin an attempt that was not emitted",
        "begin twice",
        "commit without begin",
        "commit an attempt that was replaced",
        "commit a later batch",
        "commit nothing",
    ],
)
def test_a_step_out_of_order_is_our_own_bug_and_asserted(wrong):
    with pytest.raises(AssertionError):
        wrong(in_mid_commit())


# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
metadata = st.dictionaries(st.text(), json_values, max_size=3)


@st.composite
def ledgers(draw) -> Ledger:
    """Any ledger that the transitions lead to."""
    ledger = Ledger(draw(st.text()), draw(metadata))
    known = ["emit", "replay", "begin", "commit", "settle"]
    for step in draw(st.lists(st.sampled_from(known), max_size=30)):
        current = ledger.emitted.get(ledger.current)
        if step == "emit":
            ledger = ledger.emit(a(ledger.current + len(ledger.emitted)), draw(metadata))
        elif step == "settle" and ledger.committed_attempt is not None:
            ledger = ledger.settle()
        elif current is None:
            continue
        elif step == "replay":
            for txid, batch in sorted(ledger.emitted.items()):
                ledger = ledger.emit(a(txid, batch.attempt + 1), draw(metadata))
        elif step == "begin" and current.attempt not in ledger.begun:
            ledger = ledger.begin(a(ledger.current, current.attempt))
        elif step == "commit" and current.attempt in ledger.begun:
            attempt = a(ledger.current, current.attempt)
            ledger = ledger.commit(attempt, keep_resolved=draw(st.booleans()))
    return ledger


@UNHURRIED
@given(ledgers())
def test_a_ledger_survives_its_json_form(ledger):
    text = json.dumps(ledger.to_json())

    assert Ledger.from_json(json.loads(text)) == ledger


@UNHURRIED
@given(ledgers())
def test_equal_ledgers_have_equal_json(ledger):
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))

    assert json.dumps(again.to_json(), sort_keys=True) == json.dumps(
        ledger.to_json(), sort_keys=True
    )


def test_the_json_form_is_the_documented_one():
    ledger = in_mid_commit()

    assert json.loads(json.dumps(ledger.to_json())) == {
        "topology": "t",
        "fingerprint": {"spouts": {"s": "opaque"}},
        "history": "",
        "current": 2,
        "committed_attempt": 1,
        "committed_metadata": m(1),
        "emitted": [[2, 1, m(21)], [3, 1, m(31)]],
        "begun": [0],
        "resolved": [[1, 1]],
        "earlier_attempt": None,
        "earlier_metadata": None,
    }


WHOLE = json.loads(json.dumps(in_mid_commit().to_json()))


@pytest.mark.parametrize("document", [None, [], "", "ledger", 0, 1.5, True, {}], ids=repr)
def test_what_is_no_ledger_is_damage(document):
    with pytest.raises(DamagedStoreError):
        Ledger.from_json(document)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_missing_member_is_damage_and_named(name):
    document = {key: value for key, value in WHOLE.items() if key != name}

    with pytest.raises(DamagedStoreError, match=name):
        Ledger.from_json(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topology", None),
        ("topology", 7),
        ("fingerprint", None),
        ("fingerprint", ["spouts"]),
        ("history", None),
        ("history", 7),
        ("current", None),
        ("current", 0),
        ("current", -1),
        ("current", True),
        ("current", "2"),
        ("current", 2.0),
        ("current", float("inf")),
        ("current", 1),
        ("current", 3),
        ("committed_attempt", None),
        ("committed_attempt", "1"),
        ("committed_attempt", -1),
        ("committed_attempt", float("nan")),
        ("committed_metadata", None),
        ("committed_metadata", [1]),
        ("emitted", None),
        ("emitted", 5),
        ("emitted", {"2": [1, {}]}),
        ("emitted", [[2, 1]]),
        ("emitted", [[2, 1, {}, {}]]),
        ("emitted", [["2", 1, {}]]),
        ("emitted", [[2, "1", {}]]),
        ("emitted", [[2, 1.5, {}]]),
        ("emitted", [[2, float("inf"), {}]]),
        ("emitted", [[2, True, {}]]),
        ("emitted", [[2, 1, None]]),
        ("emitted", [[1, 1, {}]]),
        ("emitted", [[3, 1, {}]]),
        ("emitted", [[2, 1, {}], [4, 1, {}]]),
        ("emitted", [[2, 1, {}], [2, 2, {}]]),
        ("emitted", []),
        ("begun", None),
        ("begun", 3),
        ("begun", ["0"]),
        ("begun", [-1]),
        ("begun", [0, 0]),
        ("begun", [1, 0]),
        ("begun", [0, 2]),
        ("resolved", None),
        ("resolved", [[1]]),
        ("resolved", [[1, "1"]]),
        ("resolved", [[0, 1]]),
        ("resolved", [[2, 1]]),
        ("resolved", [[1, 0], [1, 1]]),
        ("settled", None),
        ("settled", 1),
        ("settled", "true"),
        ("failing", None),
        ("failing", {"spout": []}),
        ("failing", {"spout": {"key": [1]}}),
        ("failing", {"spout": {"key": [-1, 0.5]}}),
        ("failing", {"spout": {"key": [1, "today"]}}),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, str) else value,
)
def test_an_odd_member_is_damage_never_another_ledger(name, value):
    with pytest.raises(DamagedStoreError):
        Ledger.from_json({**WHOLE, name: value})


def test_a_fresh_start_with_the_leftovers_of_a_run_is_damage():
    with pytest.raises(DamagedStoreError):
        Ledger.from_json({**WHOLE, "current": 1, "resolved": []})


def test_failures_of_messages_are_in_the_json_where_there_are_any():
    failing = {"spout": {"0123": [2, 1700000000.5]}}
    ledger = dataclasses.replace(FRESH, failing=failing)

    assert ledger.to_json() == {**FRESH.to_json(), "failing": failing}
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    assert "failing" not in FRESH.to_json()


def test_nothing_is_settled_that_has_not_committed():
    with pytest.raises(DamagedStoreError, match="what has not committed is settled"):
        Ledger.from_json({**FRESH.to_json(), "settled": True})
    with pytest.raises(AssertionError):
        FRESH.settle()


def test_a_settled_batch_is_noted_until_the_next_one_commits():
    settled = committed_batches(2).settle()
    going_on = settled.emit(a(3), m(3)).begin(a(3))

    assert settled.to_json() == {**committed_batches(2).to_json(), "settled": True}
    assert going_on.settled
    assert not going_on.commit(a(3)).settled


def test_a_batch_that_is_taken_back_is_settled_no_more():
    assert not committed_batches(2).settle().roll_back().settled


def test_a_batch_is_taken_back_under_one_that_has_begun_if_no_state_was_claimed_for_it():
    ledger = committed_batches(2).emit(a(3), m(3)).begin(a(3))

    assert ledger.why_not_roll_back(unclaimed=True) is None
    assert ledger.roll_back(unclaimed=True) == committed_batches(2).roll_back()


def test_reading_changes_nothing_in_the_document():
    document = copy.deepcopy(WHOLE)

    Ledger.from_json(document)

    assert document == WHOLE


@UNHURRIED
@given(st.data())
def test_any_other_json_value_in_place_of_a_part_is_damage_or_a_ledger_that_says_so(data):
    document = copy.deepcopy(WHOLE)
    name = data.draw(st.sampled_from(sorted(WHOLE)))
    document[name] = data.draw(json_values)

    try:
        ledger = Ledger.from_json(document)
    except DamagedStoreError:
        return
    # What was accepted says exactly what was written, not what it was read as.
    assert json.loads(json.dumps(ledger.to_json())) == document


def committed_batches(number, attempt=0):
    ledger = Ledger("t")
    for txid in range(1, number + 1):
        ledger = ledger.emit(a(txid, attempt), m(txid)).begin(a(txid, attempt))
        ledger = ledger.commit(a(txid, attempt))
    return ledger


def test_a_rollback_makes_the_last_batch_the_next_one_and_its_attempt_a_lost_one():
    before = committed_batches(3, attempt=2).emit(a(4, 0), m(4))

    after = before.roll_back()

    assert (after.current, after.committed_attempt, after.committed_metadata) == (3, 2, m(2))
    assert after.begun == (2,)
    assert after.emitted == {3: EmittedBatch(2, {})}
    assert Ledger.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_the_first_batch_can_be_taken_back():
    after = committed_batches(1).roll_back()

    assert (after.current, after.committed_attempt, after.committed_metadata) == (1, None, None)


def test_a_batch_that_was_taken_back_commits_again_under_a_later_attempt_and_is_resolved():
    after = committed_batches(3).roll_back()
    again = after.emit(a(3, 1), m(30)).begin(a(3, 1)).commit(a(3, 1))

    assert (again.current, again.committed_metadata, again.earlier_metadata) == (4, m(30), m(2))
    assert again.resolved == {3: 1}


@pytest.mark.parametrize(
    ("ledger", "reason"),
    [
        (Ledger("t"), "nothing has committed"),
        (committed_batches(3).roll_back(), "has begun to commit"),
        (committed_batches(2).emit(a(3, 0), m(3)).begin(a(3, 0)), "batch 3 has begun"),
        (dataclasses.replace(committed_batches(3).roll_back(), begun=()), "only one batch"),
    ],
)
def test_what_cannot_be_taken_back_says_why(ledger, reason):
    assert reason in ledger.why_not_roll_back()
    with pytest.raises(AssertionError):
        ledger.roll_back()
