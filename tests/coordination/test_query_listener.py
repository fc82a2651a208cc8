"""Listeners with the method names of Spark's StreamingQueryListener."""

from __future__ import annotations

import json

import pytest

from tests.metrics.running import counting, running
from waterspout.coordination.events import (
    BatchCommitted,
    ProgressBetweenWaves,
    RunEnded,
    WaveFinished,
)
from waterspout.coordination.progress import BatchProgress, WaveProgress
from waterspout.coordination.query_listener import QueryListener, listener_of
from waterspout.errors import ConfigError
from waterspout.transactional import TransactionAttempt


class Hears(QueryListener):
    def __init__(self):
        self.heard = []

    def onQueryStarted(self, event):
        self.heard.append(("started", event.name, event.runId))

    def onQueryProgress(self, event):
        self.heard.append(("progress", event.progress.batchId, event.progress.numInputRows))

    def onQueryIdle(self, event):
        self.heard.append(("idle", event.id, event.runId))

    def onQueryTerminated(self, event):
        self.heard.append(("terminated", event.exception, event.errorClassOnException))


def test_a_listener_hears_of_a_run_as_of_a_query():
    mine = Hears()

    with running(counting("a", "b"), attend=lambda run: run.subscribe(mine)) as run:
        run.process_all_available(timeout=20)

    (_, _, run_id), *_ = mine.heard
    assert mine.heard == [
        ("started", "words", run_id),
        ("progress", 1, 1),
        ("progress", 2, 1),
        ("idle", "words", run_id),
        ("terminated", None, None),
    ]


def test_idleness_is_told_once_until_more_comes():
    mine = Hears()

    with running(counting("a"), attend=lambda run: run.subscribe(mine)) as run:
        run.process_all_available(timeout=20)
        run.process_all_available(timeout=20)
        run.process_all_available(timeout=20)

    assert [what for what, *_ in mine.heard].count("idle") == 1


class OnlyProgress:
    """As Spark's own: not callable, some methods are not here."""

    def __init__(self):
        self.seen = []

    def onQueryProgress(self, event):
        self.seen.append(event.progress)


def test_the_progress_has_the_names_of_sparks_and_our_own_beside_it():
    mine = OnlyProgress()
    listener = listener_of(mine, "words", "r1")
    made = BatchProgress(
        "words", 7, 1, 1.5, processing_s=0.25, commit_s=0.05, input_rows=30,
        rows_per_s=100.0, lag={"in": {"files": 2}},
    )  # fmt: skip

    listener(BatchCommitted("words", TransactionAttempt(7, 1), made))

    (progress,) = mine.seen
    assert (progress.id, progress.runId, progress.batchId) == ("words", "r1", 7)
    assert progress.timestamp == "1970-01-01T00:00:01.500Z"
    assert (progress.batchDuration, progress.durationMs) == (300, {"processing": 250, "commit": 50})
    assert (progress.numInputRows, progress.processedRowsPerSecond) == (30, 100.0)
    assert progress.sources == ({"description": "in", "lag": {"files": 2}},)
    assert progress.progress is made
    assert json.loads(progress.json)["progress"]["attempt"] == 1


def test_waves_are_progress_too_and_what_was_decided_between_them():
    mine = OnlyProgress()
    listener = listener_of(mine, "core", "r1")

    listener(WaveFinished("core", WaveProgress("core", 0.0, 3, tuples=40, wave_s=2.0)))
    listener(ProgressBetweenWaves("core", WaveProgress("core", 0.0, 3, failed=1)))
    listener(ProgressBetweenWaves("core", WaveProgress("core", 0.0, 3)))

    assert [(p.batchId, p.numInputRows, p.processedRowsPerSecond) for p in mine.seen] == [
        (3, 40, 20.0),
        (3, 0, None),
    ]


def test_what_stopped_a_run_is_told_with_its_class():
    mine = Hears()
    listener = listener_of(mine, "words", "r1")

    listener(RunEnded("words", ValueError("no more")))

    assert mine.heard[-1] == ("terminated", "ValueError: no more", "ValueError")


def test_what_can_hear_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"onQueryStarted.*; int is neither"):
        listener_of(3, "words", "r1")


def test_a_function_stays_what_it_is():
    heard = []
    assert listener_of(heard.append, "words", "r1") == heard.append
