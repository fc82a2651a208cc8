"""States of committers on Spark: in the driver and by tasks, through deaths of either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.bolt_states_child import WORDS, KeepLines, Once, words_topology
from tests.spark.killing import REMOTE
from tests.spark.test_trident_spouts import Lines
from waterspout import Config, faults, submit
from waterspout.errors import TopologyError
from waterspout.faults import ENVIRONMENT_VARIABLE, Fault, FaultPlan
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional import TransactionalTopologyBuilder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
COUNTS = Counter(word for rows in WORDS for word in rows)
REACHED = Counter(n for count in COUNTS.values() for n in range(1, count + 1))
"""How many words have reached a count, if a batch has each word once at most."""


def finish(topology, spark, config):
    run = submit(topology, spark, config)
    try:
        run.process_all_available(timeout=150)
    finally:
        run.stop()
    return run


def stored(state, keys):
    found = state.factory.make_state(Config(), 0, state.partitions)
    try:
        return dict(zip(keys, found.multi_get([(key,) for key in keys]), strict=True))
    finally:
        found.close()


def assert_exact(topology):
    assert stored(topology.states["words"], COUNTS) == COUNTS
    assert stored(topology.states["reached"], REACHED) == REACHED


def test_states_that_only_the_driver_reaches_are_written_there_once(spark, tmp_path):
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    reached = SQLiteState.opaque(tmp_path / "words.db", table="reached")
    topology = words_topology(words, reached, fail=Once(tmp_path / "failed"))

    run = finish(topology, spark, Config(max_spout_pending=3, retry_backoff_millis=1))

    assert (tmp_path / "failed").exists()
    assert run.last_progress["failures"] == 1
    assert_exact(topology)
    text = run.explain()
    assert "commit: in the driver, " in text
    place = topology.states["words"].factory.location()
    assert f"  words ({place}): exactly-once: spout 'words' is transactional" in text
    with pytest.raises(TopologyError, match="commit_in='tasks' is not possible with words"):
        submit(topology, spark, Config(commit_in="tasks"))


class PlainLines(Lines):
    output_fields = ("tx", "n")


@pytest.mark.soak
def test_all_there_is_now_is_taken_once_for_an_attempt_through_a_lost_worker(spark, tmp_path):
    """An opaque emitter in Storm's form, over a file that grows whenever somebody asks."""
    path, token = tmp_path / "lines", tmp_path / "token"
    path.write_text("0\n1\n2\n")
    state = SQLiteState.opaque(tmp_path / "lines.db", table="lines")
    builder = TransactionalTopologyBuilder("growing", "lines", PlainLines(path, 8), 2)
    keep = builder.set_committer_bolt("keep", KeepLines(), 2).fields_grouping("lines", "n")
    keep.with_state("lines", state, keys="n bigint", values="times bigint")
    topology = builder.build_topology()
    faults.install(FaultPlan([Fault("processing", "kill", where={"txid": 2}, token=str(token))]))

    run = finish(topology, spark, Config(max_spout_pending=2, wave_collapse_tuples=0))

    assert token.exists()
    assert run.last_progress["failures"] == 0
    kept = {1: 1, 2: 1, 4: 1, 5: 1, 7: 1, 3: None}  # every third line gives no tuple
    assert stored(topology.states["lines"], kept) == kept


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.parametrize("point", ["write.before", "write.after"])
@pytest.mark.parametrize("component", ["count", "reach"])
def test_states_on_a_server_are_written_by_tasks_through_killed_workers(
    spark, redis_server, tmp_path, point, component
):
    name = f"{point}-{component}".replace(".", "-")
    words = RedisState.opaque(redis_server.url, prefix=f"{name}-words")
    reached = RedisState.opaque(redis_server.url, prefix=f"{name}-reached")
    topology = words_topology(words, reached, fail=Once(tmp_path / "failed"))
    token = tmp_path / "killed"
    where = {"component": component, "txid": 2}
    faults.install(FaultPlan([Fault(point, "kill", where=where, token=str(token))]))

    config = Config(max_spout_pending=3, wave_collapse_tuples=0, commit_in="tasks")
    run = finish(topology, spark, config)

    assert token.exists()
    assert_exact(topology)
    assert "commit: 1 job, " in run.explain()


BEFORE_THE_MARK = (
    "commit.after_record", "head.before", "head.after", "write.before", "write.after", "mark.before"
)  # fmt: skip


# Each life recovers from one kill and ends at the next.
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("opaque", "kills"),
    [
        pytest.param(True, [(point, 2) for point in BEFORE_THE_MARK], id="before the mark"),
        pytest.param(False, [("mark.after", 1), ("settle.before", 2)], id="marked"),
        pytest.param(False, [("settle.after", 1), ("cleanup", 2)], id="settled"),
    ],
)
def test_a_driver_that_is_killed_leaves_states_that_the_next_one_completes(
    tmp_path, connect_server, opaque, kills
):
    command = [sys.executable, "-m", "tests.spark.bolt_states_child", str(tmp_path), str(opaque)]
    for point, txid in [*kills, (None, 0)]:
        planned = [{"point": point, "action": "kill", "where": {"txid": txid}}] if point else []
        env = {**os.environ, ENVIRONMENT_VARIABLE: json.dumps(planned), REMOTE: connect_server.url}
        with open(tmp_path / f"{point}.log", "wb") as out:
            code = subprocess.run(
                command, env=env, stdout=out, stderr=out, cwd=ROOT, timeout=300, check=False
            ).returncode
        expected = -signal.SIGKILL if point else 0
        assert code == expected, (tmp_path / f"{point}.log").read_text()

    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    reached = SQLiteState.opaque(tmp_path / "words.db", table="reached")
    assert_exact(words_topology(words, reached))
