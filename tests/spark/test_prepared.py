"""Plans that are made once and filled in with the files of each batch: which, and that they fit."""

from __future__ import annotations

import itertools
import json
import sqlite3
from contextlib import closing

import pytest
from py4j.clientserver import JavaClient

from tests.trident.support import capture, finish
from waterspout import Config, faults
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.compiler import Compiler
from waterspout.spark.prepared import PreparedPlans, only_files_differ
from waterspout.spark.session import SparkRuntime
from waterspout.spark.steps import StepRunner
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import CombinerAggregator, Count, Split, TridentTopology, expr
from waterspout.trident.plan.schedule import Facts, schedule

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

BATCHES = 5


@pytest.fixture
def source(tmp_path):
    """Five files, of which the nth has the words `n`, `all` and n times `word`."""
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(BATCHES):
        # Names that would be patterns, if they were not taken as names.
        (folder / f"{n} [{n}] {{x}}.txt").write_text(f"{n} all\n" + "word\n" * n)
    return folder


@pytest.fixture
def described(monkeypatch):
    """How many batches were described to Spark step by step."""
    read, found = Compiler.read, []

    def noted(self, step, *args):
        found.append(step)
        return read(self, step, *args)

    monkeypatch.setattr(Compiler, "read", noted)
    return found


class Largest(CombinerAggregator[str]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return ""


def counting(source, tmp_path, words, *, state=None, **options):
    """A topology that counts words, which a function finds in lines."""
    topology = TridentTopology("prepared")
    options = {"max_files": 1} | options
    lines = topology.new_stream("lines", FileSpout(source, **options))
    state = state or SQLiteState.opaque(tmp_path / "counts.db", table="counts")
    words(lines).group_by("word").persistent_aggregate(state, Count(), out="n")
    return topology


def counts(tmp_path):
    with closing(sqlite3.connect(tmp_path / "counts.db")) as db:
        return dict(db.execute("SELECT word, n FROM counts"))


def split(lines):
    return lines.each("value", Split(), out="word")


def split_in_python(lines):
    def words(line):
        yield from line.split()

    return lines.each("value", words, out="word string")


RIGHT = {"all": 5, "word": 10} | {str(n): 1 for n in range(BATCHES)}
ONE = Config(max_spout_pending=1)


@pytest.mark.parametrize("words", [split, split_in_python])
def test_a_plan_is_made_once_and_every_batch_counts_its_own_files(
    spark, source, tmp_path, described, words
):
    run = finish(counting(source, tmp_path, words), spark, ONE, timeout=200)

    assert counts(tmp_path) == RIGHT
    assert len(described) == 1
    assert [one["input_rows"] for one in run.recent_progress] == [1, 2, 3, 4, 5]


def test_several_files_of_a_batch_are_all_read(spark, source, tmp_path, described):
    for n in range(BATCHES):
        (source / f"more {n}").write_text("more\n")

    finish(counting(source, tmp_path, split, max_files=2), spark, ONE, timeout=200)

    assert counts(tmp_path) == RIGHT | {"more": 5}
    assert len(described) == 1


def test_rows_that_stay_on_the_executors_are_prepared_too(spark, source, tmp_path, described):
    state = SQLiteState.opaque(tmp_path / "counts.db", table="counts", driver_only=False)

    finish(
        counting(source, tmp_path, split, state=state),
        spark,
        ONE.replace(commit_in="tasks"),
        timeout=200,
    )

    assert counts(tmp_path) == RIGHT
    assert len(described) == 1


def test_a_state_of_several_partitions_gets_each_row_where_it_belongs(
    spark, source, tmp_path, described
):
    finish(counting(source, tmp_path, split), spark, ONE.replace(state_partitions=3), timeout=200)

    assert counts(tmp_path) == RIGHT
    assert len(described) == 1


def test_what_is_drawn_at_random_is_drawn_anew_for_every_batch(spark, source, tmp_path, described):
    topology = TridentTopology("random")
    lines = topology.new_stream("lines", FileSpout(source, max_files=1))
    drawn = capture(lines.each("value", expr("uuid()"), out="id string"), "id")

    finish(topology, spark, ONE, timeout=200)

    assert len({id for (id,) in drawn.rows}) == len(drawn.rows) == 15
    assert len(described) == BATCHES


def test_what_time_it_is_is_asked_for_every_batch(spark, source, tmp_path, described):
    topology = TridentTopology("times")
    lines = topology.new_stream("lines", FileSpout(source, max_files=1))
    timed = lines.each("value", expr("unix_micros(current_timestamp())"), out="at bigint")
    found = capture(timed, "at")

    finish(topology, spark, ONE, timeout=200)

    by_batch = [{at for (at,) in rows} for _, rows in sorted(found.batches.items())]
    assert all(len(times) == 1 for times in by_batch)
    assert len(set.union(*by_batch)) == BATCHES
    assert len(described) == 1


def test_records_are_still_checked_and_the_file_named(spark, tmp_path, described):
    source = tmp_path / "json"
    source.mkdir()
    for n in range(3):
        (source / f"{n}.json").write_text(json.dumps({"n": n}) + "\n")
    (source / "3.json").write_text('{"n": "three"}\n')
    topology = TridentTopology("json")
    spout = FileSpout(source, format="json", schema="n bigint", max_files=1)
    tens = topology.new_stream("numbers", spout).each("n", expr("10 * n"), out="tens bigint")
    found = capture(tens, "tens")

    with pytest.raises(Exception, match=r"3\.json"):
        finish(topology, spark, ONE.replace(max_retries=0), timeout=200)

    assert sorted(found.rows) == [(0,), (10,), (20,)]
    assert len(described) == 1


def test_functions_in_python_are_described_anew_where_a_test_has_kill_points(
    spark, source, tmp_path, described
):
    once = Fault("processing", "fail", where={"txid": 3}, token=str(tmp_path / "token"))
    faults.install(FaultPlan([once]))

    finish(
        counting(source, tmp_path, split_in_python),
        spark,
        ONE.replace(retry_backoff_millis=1),
        timeout=200,
    )

    assert counts(tmp_path) == RIGHT
    assert len(described) == BATCHES + 1


@pytest.mark.parametrize("broken", ["_template", "_fill"])
def test_where_plans_are_not_as_expected_each_batch_is_described(
    spark, source, tmp_path, described, monkeypatch, broken
):
    def other_spark(*args):
        raise TypeError("there is no such method")

    monkeypatch.setattr(PreparedPlans, broken, other_spark)

    finish(counting(source, tmp_path, split), spark, ONE, timeout=200)

    assert counts(tmp_path) == RIGHT
    assert len(described) == BATCHES


@pytest.mark.parametrize(
    ("build", "may"),
    [
        (split, True),
        (split_in_python, True),
        (lambda lines: split(lines.shuffle()), True),
        (lambda lines: split(lines.batch_global()), False),
        (lambda lines: lines.aggregate(Largest(), out="word string"), False),
        (lambda lines: lines.transform(lambda frame: frame, out="word string"), False),
    ],
    ids=["jvm", "python", "shuffled", "by number", "an aggregator in Python", "frames"],
)
def test_plans_are_kept_where_nothing_hangs_on_the_batch(source, tmp_path, build, may):
    topology = counting(source, tmp_path, build)
    plan = topology.plan(ONE)

    steps = schedule(plan, ONE, Facts(frozenset(plan.updates))).processing

    assert only_files_differ(steps) is may


@pytest.mark.parametrize(
    ("commit_in", "phases"), [("driver", {"processing"}), ("tasks", {"processing", "commit"})]
)
def test_jobs_have_a_tag_wherever_a_phase_may_run_some(
    spark, source, tmp_path, monkeypatch, commit_in, phases
):
    tagged, found = SparkRuntime.tagged, []

    def noted(self, tag, description, pool):
        found.append(pool)
        return tagged(self, tag, description, pool)

    monkeypatch.setattr(SparkRuntime, "tagged", noted)
    state = SQLiteState.opaque(tmp_path / "counts.db", table="counts", driver_only=False)

    finish(
        counting(source, tmp_path, split, state=state),
        spark,
        ONE.replace(commit_in=commit_in),
        timeout=200,
    )

    assert found.count("processing") == BATCHES
    assert set(found) == phases


def test_a_batch_takes_few_calls_into_the_jvm(spark, source, tmp_path, monkeypatch):
    send, commit, sent, told = JavaClient.send_command, StepRunner.commit, [], []

    def noted(self, command, *args, **kwargs):
        if not command.startswith("m\n"):  # to forget an object, on a thread of its own
            sent.append(command)
        return send(self, command, *args, **kwargs)

    def committed(self, *args):
        told.append(len(sent))
        return commit(self, *args)

    monkeypatch.setattr(JavaClient, "send_command", noted)
    monkeypatch.setattr(StepRunner, "commit", committed)

    finish(counting(source, tmp_path, split), spark, ONE, timeout=200)

    between = [after - before for before, after in itertools.pairwise(told)]
    assert len(between) == BATCHES - 1
    # The first two are a batch that is described, and one that looks up what it calls.
    assert max(between[1:]) <= 35
