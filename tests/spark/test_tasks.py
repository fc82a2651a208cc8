"""What a task does before its work, told without Spark."""

from __future__ import annotations

import gc

import pytest

from waterspout import Config
from waterspout.spark import tasks
from waterspout.spark.tasks import TaskSetting

USUAL = 700
SETTING = TaskSetting(Config(), txid=1, partitions=4)


class Worker:
    """The context of a task."""

    def partitionId(self):
        return 3


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
