"""What a run has done, as pages and monitors are told."""

from __future__ import annotations

import json

import pytest

from tests.waves.driving import FakeClock, forget_all
from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics import RunStats
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun, MemoryLog
from waterspout.trident import Count, TridentTopology


@pytest.fixture(autouse=True)
def _fresh():
    forget_all()
    yield
    faults.install(None)


def counting(batches: int) -> TridentTopology:
    topology = TridentTopology("counting")
    words = topology.new_stream("words", FixedBatchSpout("word", 2, ["a", "b"] * batches))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    return topology


def test_a_replayed_batch_counts_once_and_its_lost_attempt_as_failed():
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 1})]))
    stats = RunStats(clock=FakeClock())
    config = Config(max_spout_pending=2, retry_backoff_millis=1)
    run = LocalRun(counting(2), config, listener=stats)

    run.finish()

    totals = stats.totals(600)
    assert (totals["batches"], totals["input_rows"], totals["written_rows"]) == (2, 4, 4)
    assert (totals["attempts_failed"], totals["attempts_cancelled"], totals["replays"]) == (1, 1, 2)
    (state,), (spout,) = (stats.components()[kind] for kind in ("states", "spouts"))
    assert (state["rows"], state["batches"]) == (4, 2)
    assert (spout["id"], spout["rows"]) == ("words", 4)


def test_attempts_tell_how_they_ended_and_why_they_were_replayed():
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 1})]))
    stats = RunStats()
    config = Config(max_spout_pending=2, retry_backoff_millis=1)
    run = LocalRun(counting(2), config, listener=stats)

    run.finish()

    attempts = stats.batches()["attempts"]
    assert [(a["txid"], a["attempt"], a["outcome"], a["replay"]) for a in attempts] == [
        (1, 0, "failed", False),
        (2, 0, "cancelled", False),
        (1, 1, "committed", True),
        (2, 1, "committed", True),
    ]
    assert attempts[2]["why"] == attempts[0]["error"]
    assert attempts[3]["why"] == attempts[1]["error"] == "batch 1 before it failed"
    last = attempts[-1]
    assert last["emitted"] <= last["processed"] <= last["committing"] <= last["ended"]
    assert stats.batches(limit=1)["attempts"] == [last]


def test_a_batch_that_an_earlier_run_left_is_a_replay_with_that_reason():
    topology, shared, stats = counting(1), SharedMemory(), RunStats()
    first = LocalRun(topology, store=MemoryCoordinationStore("counting", shared))
    first.step()
    first.loop.close()

    store = MemoryCoordinationStore("counting", shared)
    LocalRun(topology, store=store, listener=stats).finish()

    (attempt,) = stats.batches()["attempts"]
    assert (attempt["attempt"], attempt["why"]) == (1, "an earlier run has left it unfinished")


def test_everything_is_plain_json():
    stats = RunStats()
    run = LocalRun(counting(1), listener=stats)
    run.finish()

    for window in (600, 10_800, 86_400, "all"):
        told = [stats.components(window), stats.totals(window), stats.pressure(window)]
        assert json.loads(json.dumps(told)) == told
    assert json.loads(json.dumps(stats.batches())) == stats.batches()


def test_a_window_that_there_is_not_is_refused():
    with pytest.raises(
        ValueError, match="no window of 60 s; there are 600, 10800, 86400 and 'all'"
    ):
        RunStats().totals(60)


def test_the_commit_of_each_state_is_shown_step_by_step():
    topology = TridentTopology("two")
    words = topology.new_stream("words", FixedBatchSpout("word", 3, ["a", "b", "a"]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="n")
    words.persistent_aggregate(MemoryMapState(), Count(), out="n")
    faults.install(FaultPlan([Fault("write.before", "fail", nth=3)]))
    stats = RunStats()
    run = LocalRun(topology, Config(retry_backoff_millis=1), listener=stats)

    run.finish()

    told = stats.batches()
    assert told["states"] == list(run.plan.updates)
    lost, made = told["attempts"]
    first, second = (lost["states"][name] for name in told["states"])
    assert (first["written"] is None, second["written"] is None) == (False, True)
    assert lost["begun"] <= first["claimed"] <= second["claimed"] <= first["written"]
    assert (lost["marked"], first["settled"], second["settled"]) == (None, None, None)
    assert [made["states"][name]["rows"] for name in told["states"]] == [2, 1]
    for state in made["states"].values():
        assert state["claimed"] <= state["written"] <= made["marked"] <= state["settled"]


def test_pressure_tells_what_spouts_gave_what_they_are_asked_for_and_why():
    topology = TridentTopology("sized")
    log = MemoryLog("n bigint", [[(n,) for n in range(60)]], take=10, sized=True)
    topology.new_stream("rows", log).persistent_aggregate(MemoryMapState(), Count(), out="n")
    stats = RunStats()

    LocalRun(topology, Config(batch_sizing=True), listener=stats).finish()

    told = stats.pressure("all")
    assert set(told["now"]["sizes"]) == {"rows"}
    assert told["now"]["targets"]["rows"] >= 20
    assert told["now"]["max_in_flight"] >= 1
    assert "a batch takes" in told["reason"] or "in flight" in told["reason"]
    assert json.loads(json.dumps(told)) == told


def test_without_sizing_there_is_no_reason():
    stats = RunStats()

    LocalRun(counting(1), listener=stats).finish()

    assert stats.pressure("all")["reason"] is None
