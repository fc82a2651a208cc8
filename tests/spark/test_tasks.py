"""What a task does before its work, told without Spark."""

from __future__ import annotations

import gc
import random

import pytest

from waterspout import Config, FailedException
from waterspout.spark import tasks, tries
from waterspout.spark.tasks import TaskSetting, UpdateTask
from waterspout.spark.tries import Tries
from waterspout.state import MemoryMapState
from waterspout.state._head import Claim
from waterspout.testing import FixedBatchSpout
from waterspout.transactional import TransactionAttempt
from waterspout.trident import StateUpdater, TridentTopology, nondeterministic

USUAL = 700
SETTING = TaskSetting(Config(), txid=1, partitions=4)


class Worker:
    """The context of a task."""

    tries_before = 0

    def partitionId(self):
        return 3

    def stageId(self):
        return 7

    def attemptNumber(self):
        return self.tries_before

    def getLocalProperty(self, key):
        return None


class SecondTry(Worker):
    """The same, when Spark has lost the first one."""

    tries_before = 1


@pytest.fixture(autouse=True)
def _thresholds():
    before = gc.get_threshold()
    gc.set_threshold(USUAL)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("found", "left"), [(USUAL, 50_000), (200_000, 200_000), (0, 0)], ids=["usual", "more", "off"]
)
def test_a_worker_collects_garbage_less_often_unless_told_otherwise(monkeypatch, found, left):
    monkeypatch.setattr(tasks.TaskContext, "get", Worker)
    gc.set_threshold(found)

    context = SETTING.enter()

    assert gc.get_threshold()[0] == left
    assert (context.partition_index, context.num_partitions) == (3, 4)


def test_the_driver_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(tasks.TaskContext, "get", lambda: None)

    SETTING.enter()

    assert gc.get_threshold()[0] == USUAL


class PutRandom(StateUpdater):
    """Puts rows under whatever keys it likes this time."""

    def update_state(self, state, tuples, collector):
        state.multi_put([(random.random(),)], [1])


def update_task(updater):
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("word string", 1, [["a"]]))
    stream.partition_persist(MemoryMapState(), ["word"], updater)
    plan = topology.plan()
    (node,) = plan.updates.values()
    claim = Claim(TransactionAttempt(1, 0))
    return UpdateTask(SETTING, node, plan.states[node.state], claim, want_new=False)


@pytest.mark.parametrize(
    "updater", [PutRandom(), nondeterministic(PutRandom())], ids=["", "varies"]
)
def test_an_updater_that_varies_is_not_run_again_beside_what_a_lost_try_wrote(
    monkeypatch, tmp_path, updater
):
    monkeypatch.setattr(tasks.TaskContext, "get", SecondTry)
    monkeypatch.setattr(tries.SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    Tries(str(tmp_path / ".waterspout-tries"), "7.3", 0).begin()
    task = update_task(updater)

    if updater.deterministic:
        assert list(task([])) == []
    else:
        with pytest.raises(FailedException, match="declared not deterministic, and Spark runs its"):
            list(task([]))
