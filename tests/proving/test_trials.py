"""Which trials there are: a function of what a run without a fault has passed."""

from __future__ import annotations

import json

import pytest

from waterspout.faults import BATCH_POINTS, FaultPlan
from waterspout.proving.trials import How, Passing, Spot, noting, passings_of, plan_trials

DRIVER, WORKER = 10, 20


def note(point, txid=1, process=DRIVER, **known):
    return json.dumps({"point": point, "txid": txid, "process": process, **known})


def planned(trials):
    return [(trial.how, trial.at.txid) for trial in trials]


def in_batches(count, point="mark.before"):
    return passings_of([note(point, txid) for txid in range(1, count + 1)], [DRIVER])


def test_a_note_tells_where_a_point_was_passed_and_by_whom():
    lines = [
        note("head.before", 2, state="state1"),
        note("processing", 3, WORKER, partition=1),
        note("write.after", 3, component="count"),
    ]

    found = passings_of(lines, [DRIVER])

    assert found == [
        Passing(Spot("head.before", "state1"), 2),
        Passing(Spot("processing"), 3, partition=1, in_task=True),
        Passing(Spot("write.after", component="count"), 3),
    ]


def test_points_outside_of_any_batch_and_second_passings_are_left_out():
    outside = json.dumps({"point": "graph.before", "process": DRIVER})

    found = passings_of([outside, note("mark.after"), note("mark.after")], [DRIVER])

    assert found == [Passing(Spot("mark.after"), 1)]


def test_the_driver_is_killed_in_the_first_batch_twice_in_the_middle_and_in_the_last():
    trials = plan_trials(in_batches(7))

    assert planned(trials) == [(How.KILL, 1), (How.TWICE, 4), (How.KILL, 7)]
    assert [trial.number for trial in trials] == [1, 2, 3]


def test_a_last_batch_that_is_also_the_middle_one_is_killed_once_and_twice():
    assert planned(plan_trials(in_batches(2))) == [(How.KILL, 1), (How.KILL, 2), (How.TWICE, 2)]


def test_one_batch_is_the_first_the_middle_and_the_last():
    assert planned(plan_trials(in_batches(1))) == [(How.KILL, 1), (How.TWICE, 1)]


@pytest.mark.parametrize("point", ["mark.after", "settle.before", "settle.after", "cleanup"])
def test_a_batch_that_has_committed_is_not_replayed_so_nobody_is_killed_in_its_replay(point):
    kills = [(How.KILL, 1), (How.KILL, 3), (How.KILL, 5)]

    assert planned(plan_trials(in_batches(5, point))) == kills
    assert How.TWICE not in {h for h, _ in planned(plan_trials(in_batches(5, point), every=True))}


def test_every_means_all_batches():
    trials = plan_trials(in_batches(4), every=True)

    assert planned(trials) == [(how, n) for n in (1, 2, 3, 4) for how in (How.KILL, How.TWICE)]


def test_where_tasks_pass_a_point_a_worker_is_killed_and_the_attempt_is_made_to_fail():
    passings = passings_of([note("processing", 1, WORKER, partition=0)], [DRIVER])

    assert planned(plan_trials(passings)) == [(How.WORKER, 1), (How.FAIL, 1)]


@pytest.mark.parametrize("point", ["processed", "write.before", "write.after"])
def test_an_attempt_fails_in_processing_and_in_commit(point):
    assert (How.FAIL, 1) in planned(plan_trials(in_batches(1, point)))


def test_no_attempt_fails_where_an_error_would_be_one_of_the_driver():
    assert How.FAIL not in {how for how, _ in planned(plan_trials(in_batches(3, "mark.before")))}


def test_each_state_is_a_place_of_its_own_and_places_are_in_the_order_of_a_batch():
    lines = [note("settle.after", state="b"), note("head.before", state="b")]
    lines += [note("head.before", state="a"), note("metadata.before")]

    trials = plan_trials(passings_of(lines, [DRIVER]))

    assert [str(trial.at.place) for trial in trials if trial.how is How.KILL] == [
        "metadata.before",
        "head.before (a)",
        "head.before (b)",
        "settle.after (b)",
    ]


@pytest.mark.parametrize(
    ("point", "count", "chosen"),
    [("write.before", 2, 1), ("write.after", 2, 0), ("write.before", 4, 2), ("write.after", 4, 1)],
)
def test_of_several_partitions_some_are_written_and_some_are_not(point, count, chosen):
    lines = [note(point, state="s", partition=n) for n in range(count)]

    trial = plan_trials(passings_of(lines, [DRIVER]))[0]

    assert trial.at.partition == chosen


def test_only_the_points_that_are_asked_for():
    passings = in_batches(1) + in_batches(1, "cleanup")

    assert {t.at.place.point for t in plan_trials(passings, only=["cleanup"])} == {"cleanup"}


def test_a_trial_strikes_at_one_passing_alone_and_leaves_a_token(tmp_path):
    lines = [note("write.after", 2, state="state1", partition=1)]
    trials = {trial.how: trial for trial in plan_trials(passings_of(lines, [DRIVER]))}

    (fault,) = trials[How.KILL].faults(tmp_path).faults

    assert (fault.point, fault.action, fault.nth) == ("write.after", "kill", None)
    assert fault.where == {"txid": 2, "state": "state1", "partition": 1}
    assert fault.token == str(tmp_path / "fired-1")
    assert trials[How.FAIL].faults(tmp_path).faults[0].action == "fail"
    twice = trials[How.TWICE].faults(tmp_path).faults
    assert [fault.token for fault in twice] == [str(tmp_path / f"fired-{n}") for n in (1, 2)]


def test_what_is_noted_can_be_read_back(tmp_path):
    plan = FaultPlan.from_json(noting(tmp_path / "notes").to_json())
    for point in BATCH_POINTS:
        plan(point, {"txid": 3, "state": "s", "partition": 0})

    lines = (tmp_path / "notes").read_text().splitlines()

    places = [passing.place for passing in passings_of(lines, [])]
    assert places == [Spot(point, "s") for point in BATCH_POINTS]
