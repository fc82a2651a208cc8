"""What trials say together: nothing that did not happen counts as a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waterspout.proving.comparing import Discrepancy
from waterspout.proving.subject import ProvedState, Subject
from waterspout.proving.trials import How, Passing, Spot, Trial
from waterspout.proving.verdicts import Proof, TrialResult

EXACT = ProvedState("state1", "counts", True, "because", "PostgresState, opaque", "SQLite, opaque")
WEAK = ProvedState("state2", "raw", False, "because", "MyState", "SQLite, non-transactional")
WRONG = [Discrepancy(("to",), 3, 2)]


def trial(number=1, how=How.KILL, point="write.after", txid=1):
    return Trial(number, how, Passing(Spot(point), txid))


def result(number=1, how=How.KILL, fired=None, **found):
    fired = (2 if how is How.TWICE else 1) if fired is None else fired
    return TrialResult(trial(number, how), fired, 2, **found)


def proof(*results, states=(EXACT, WEAK)):
    return Proof(Subject("words", states), results)


def test_a_promise_is_proved_where_every_trial_was_reached_and_is_exact():
    found = proof(result(1), result(2, How.TWICE), result(3, How.FAIL))

    assert found.holds
    assert found.verdicts[0].text == "exactly-once: proved in 3 trials"
    assert (found.kills, found.failures) == (3, 1)
    assert found.rows[0].seen("counts") == "exact"
    assert found.broken == []


def test_a_difference_breaks_a_promise_and_shows_the_first_keys():
    found = proof(result(1), result(2, differences={"counts": WRONG}))

    verdict = found.verdicts[0]
    assert not found.holds
    assert verdict.text == "exactly-once was promised: 1 of 2 trials differ"
    assert [(r.trial.number, list(d)) for r, d in verdict.examples] == [(2, WRONG)]
    assert [r.trial.number for r in found.broken] == [2]
    assert found.rows[0].seen("counts") == "1 exact, 1 differ"


def test_what_was_never_promised_may_differ_and_is_shown():
    found = proof(result(1), result(2, differences={"raw": WRONG}))

    assert found.holds
    assert found.broken == []
    assert found.verdicts[1].text == "not exactly-once (as explain() says): 1 of 2 trials differ"
    assert found.rows[0].seen("raw") == "1 exact, 1 differ"


@pytest.mark.parametrize(("how", "fired"), [(How.KILL, 0), (How.TWICE, 1), (How.FAIL, 0)])
def test_a_fault_that_did_not_fire_proves_nothing(how, fired):
    found = proof(result(1, how, fired))

    assert not found.holds
    assert found.not_reached == [trial(1, how)]
    assert found.rows[0].seen("counts") == "1 not reached"
    assert found.verdicts[0].text == "exactly-once: not proved in 0 trials; 1 trial not reached"


def test_a_trial_that_was_not_reached_is_told_beside_those_that_were():
    found = proof(result(1), result(2, fired=0))

    assert found.holds
    assert found.verdicts[0].text == "exactly-once: proved in 1 trial; 1 trial not reached"


def test_a_topology_that_does_not_get_to_its_end_again_breaks_every_promise():
    found = proof(result(1), result(2, error="it stopped"))

    assert not found.holds
    assert [r.trial.number for r in found.broken] == [2]
    assert found.verdicts[0].text == "exactly-once: not proved in 1 trial; 1 trial did not end"
    assert not proof(result(1, error="it stopped"), states=(WEAK,)).holds


def test_no_trial_is_no_proof():
    assert not proof().holds


def test_the_document_has_promise_sight_and_verdict():
    found = proof(result(1), replace(result(2), differences={"counts": WRONG}, folder="/tmp/x"))

    document = found.document()

    assert document["proved"] is False
    assert document["states"][0]["promise"] == "exactly-once"
    assert document["states"][0]["stand_in"] == "SQLite, opaque"
    assert (document["states"][0]["exact"], document["states"][0]["differ"]) == (1, 1)
    assert document["trials"][1]["differs"] == {
        "counts": [{"key": ("to",), "got": 3, "expected": 2}]
    }
    assert document["trials"][1]["folder"] == "/tmp/x"
    assert document["points"][0]["seen"]["raw"] == "exact"
