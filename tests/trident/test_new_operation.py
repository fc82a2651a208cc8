"""A new operation touches its own file: it runs in process and on Spark, and explain shows it."""

from __future__ import annotations

import pytest

from tests.trident.support import finish
from tests.trident.toy_operation import Distinct, distinct, register_on_spark
from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.testing._lowerings import local_lowering_of
from waterspout.trident import Count, TridentTopology
from waterspout.trident.plan.costs import Case, cost_of
from waterspout.trident.plan.plan import Phase

ROWS = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1), ("c", 3)]
COUNTS = {"a": 2, "b": 1, "c": 1}


@pytest.fixture
def topology(request):
    made = TridentTopology("distinct")
    rows = made.new_stream("rows", FixedBatchSpout("s string, n bigint", len(ROWS), ROWS))
    once = distinct(rows).filter("n", lambda n: n > 0)
    made.counts = once.group_by("s").persistent_aggregate(
        MemoryMapState(StateKind.OPAQUE, request.node.name), Count(), out="count"
    )
    return made


def counts(topology):
    return {key: topology.counts.get(key) for key in COUNTS}


def test_it_runs_in_process(topology):
    run_in_process(topology)

    assert counts(topology) == COUNTS


def test_explain_shows_where_it_runs_and_what_it_moves_and_counts_it(topology):
    lines = topology.explain().splitlines()
    at = next(i for i, line in enumerate(lines) if "distinct  (" in line)

    assert lines[at : at + 2] == [
        "   2 <- 1  distinct  (s string, n bigint)",
        "      JVM; shuffle by s, n",
    ]
    assert "1 job for processing, 0 for commit; 2 shuffles" in topology.explain()


def test_one_that_says_nothing_of_an_engine_is_refused_there_by_name():
    class Nothing(Distinct):
        pass

    node = Nothing(number=1, schema=None, name="nothing")

    with pytest.raises(TopologyError, match="nobody has said what a Nothing does in process"):
        local_lowering_of(node)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_it_runs_on_spark_with_the_shuffles_that_explain_has_counted(spark, topology):
    register_on_spark()
    conf = Config(retry_backoff_millis=1, commit_in="driver")

    finish(topology, spark, conf)

    cost = cost_of(topology.plan(conf), conf, Case.COLLECTED)
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    tag = f"waterspout-distinct-1-0-{Phase.PROCESSING.value}"
    (job,) = tracker.getJobIdsForTag(tag)
    stages = spark.sparkContext.statusTracker().getJobInfo(job).stageIds
    assert counts(topology) == COUNTS
    assert (len(cost.jobs(Phase.PROCESSING)), len(cost.shuffles)) == (1, len(stages) - 1)
