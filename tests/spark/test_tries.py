"""What a task knows of its earlier tries, told without Spark."""

from __future__ import annotations

import pytest

from waterspout import FailedException
from waterspout.spark import tries
from waterspout.spark.tries import FAILED_MARK, Tries, one_try


class Task:
    """The context of a task: its try, and what the session is set to."""

    def __init__(self, number, partition=3, **properties):
        self._number, self._partition, self._properties = number, partition, properties

    def stageId(self):
        return 7

    def partitionId(self):
        return self._partition

    def attemptNumber(self):
        return self._number

    def getLocalProperty(self, key):
        return self._properties.get(key)


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Run a function as one try of a task, on a machine."""

    def run(number, function=lambda: None, *, machine="a", partition=3, **properties):
        folder = tmp_path / machine
        folder.mkdir(exist_ok=True)
        context = Task(number, partition, **properties)
        monkeypatch.setattr(tries.TaskContext, "get", lambda: context)
        monkeypatch.setattr(tries.SparkFiles, "getRootDirectory", lambda: str(folder))
        with one_try():
            function()
            return "done"

    return run


def raising(error):
    def function():
        raise error

    return function


def never():
    raise AssertionError("this must not be called again")


def test_what_failed_on_purpose_fails_again_and_calls_nobody(tried):
    with pytest.raises(FailedException, match=f"{FAILED_MARK} not yet"):
        tried(0, raising(FailedException("not yet")))

    for number in (1, 2, 3):
        with pytest.raises(FailedException, match=f"{FAILED_MARK} not yet"):
            tried(number, never)


def test_a_task_whose_worker_was_lost_is_run_again(tried):
    with pytest.raises(KeyboardInterrupt):
        tried(0, raising(KeyboardInterrupt))  # as a kill: nothing is noted at its end

    assert tried(1) == "done"


def test_a_crash_of_user_code_is_retried_by_spark_as_ever(tried):
    with pytest.raises(ValueError, match="no"):
        tried(0, raising(ValueError("no")))

    assert tried(1) == "done"


def test_the_failure_of_another_task_is_not_this_ones(tried):
    with pytest.raises(FailedException):
        tried(0, raising(FailedException("not yet")), partition=4)
    tried(0)

    assert tried(1) == "done"


def test_a_try_that_follows_on_one_elsewhere_may_not_succeed_in_its_place(tried):
    with pytest.raises(FailedException):
        tried(0, raising(FailedException("not yet")), machine="a")

    with pytest.raises(FailedException, match="on another machine than before"):
        tried(1, machine="b")


def test_a_try_that_follows_on_one_elsewhere_shows_its_own_error(tried):
    with pytest.raises(ValueError, match="no"):
        tried(1, raising(ValueError("no")), machine="b")


def test_where_spark_speculates_a_second_try_is_no_sign_of_failure(tried):
    assert tried(1, machine="b", **{"spark.speculation": "true"}) == "done"


def test_in_the_driver_nothing_is_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(tries.TaskContext, "get", lambda: None)

    with pytest.raises(FailedException, match=FAILED_MARK), one_try():
        raise FailedException("no")

    assert list(tmp_path.rglob(".waterspout*")) == []


def test_notes_stay_few_and_one_that_was_forgotten_makes_a_try_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(tries, "_BYTES_MAX", 1_000)
    path = tmp_path / "notes"
    for task in range(1_000):
        Tries(str(path), f"1.{task}", 0).begin()

    assert path.stat().st_size <= 1_000 + 100
    assert path.stat().st_mode & 0o777 == 0o600
    assert not Tries(str(path), "1.0", 1).begin()
    assert Tries(str(path), "1.999", 1).begin()


def test_a_place_that_cannot_be_written_makes_the_next_try_unknown(tmp_path):
    nowhere = str(tmp_path / "nowhere" / "notes")

    assert Tries(nowhere, "1.0", 0).begin()
    assert not Tries(nowhere, "1.0", 1).begin()
