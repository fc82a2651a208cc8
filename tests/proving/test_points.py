"""What a proof needs of the kill points: whose they are, and that attempts can fail there."""

from __future__ import annotations

import json

import pytest

from waterspout import Config, faults
from waterspout.errors import ConfigError
from waterspout.proving.trials import noting, passings_of, plan_trials
from waterspout.state import MemoryMapState
from waterspout.testing import Fault, FaultPlan, FixedBatchSpout, run_in_process
from waterspout.trident import Count, Split, TridentTopology

LINES = ["to be or not to be", "that is the question", "to sleep"]


@pytest.fixture(autouse=True)
def _no_plan_left():
    yield
    faults.install(None)


def two_states():
    topology = TridentTopology("words")
    words = topology.new_stream("in", FixedBatchSpout("value string", 1, LINES))
    words = words.each("value", Split(), "word")
    made = [
        words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
        for _ in range(2)
    ]
    return topology, made


def test_a_write_says_to_which_state(tmp_path):
    topology, _ = two_states()
    faults.install(noting(tmp_path / "notes"))

    run_in_process(topology, Config(state_partitions=2))

    lines = (tmp_path / "notes").read_text().splitlines()
    notes = [note for note in map(json.loads, lines) if note["point"] == "write.after"]
    assert {note["state"] for note in notes} == {"state1", "state2"}
    assert {note["txid"] for note in notes} == {1, 2, 3}
    trials = plan_trials(passings_of(lines, []))
    assert len({trial.at.place for trial in trials if trial.at.place.point == "write.after"}) == 2


@pytest.mark.parametrize("point", ["processed", "write.before", "write.after"])
def test_an_attempt_that_fails_there_is_replayed_and_counts_once(tmp_path, point):
    topology, states = two_states()
    token = tmp_path / "fired"
    faults.install(FaultPlan([Fault(point, "fail", where={"txid": 2}, token=str(token))]))

    run = run_in_process(topology)

    assert token.exists()
    assert run.loop.ledger.current == 4
    assert [state.get("to") for state in states] == [3, 3]


def test_a_note_needs_a_file():
    with pytest.raises(ConfigError, match="a note needs a token"):
        Fault("mark.before", "note")
