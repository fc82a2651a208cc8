"""What `explain` says of each node: where it runs, what moves, what is shared, what it costs."""

from __future__ import annotations

import pytest

from tests.trident.support import Total
from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rate import RateSpout
from waterspout.state import MemoryMapState, StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, MemoryLog
from waterspout.trident import (
    CombinerAggregator,
    Count,
    MapGet,
    Split,
    Sum,
    TridentTopology,
    expr,
)
from waterspout.trident.plan.costs import Case, cases, cost_of
from waterspout.trident.plan.notes import notes_of
from waterspout.trident.plan.plan import Phase
from waterspout.trident.plan.schedule import Facts, python_chains, read_by_one_task


class Largest(CombinerAggregator[int]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return -1

    def output_types(self, inputs):
        return ["bigint"]


def double(n) -> int:
    return 2 * n


def is_odd(n):
    return n % 2 == 1


def stream_of(topology, spout_id="log"):
    return topology.new_stream(spout_id, MemoryLog("s string, n bigint", [[]]))


def start():
    topology = TridentTopology("told")
    return topology, stream_of(topology)


def opaque(name="m"):
    return MemoryMapState(StateKind.OPAQUE, name)


def on_server(path, *, driver_only=False):
    return SQLiteState.opaque(path, table="t", driver_only=driver_only)


def notes(topology, conf=None):
    """The second line of each node, by its number."""
    conf = conf or Config()
    found = notes_of(topology.plan(conf), conf)
    return {node.number: said.notes() for node, said in found.items()}


def sums(topology, conf=None):
    conf = conf or Config()
    plan = topology.plan(conf)
    return [cost_of(plan, conf, case).text() for case in cases(plan, conf)]


def test_neighbours_in_python_share_one_visit_and_fields_that_nobody_reads_stay_behind():
    topology, rows = start()
    made = rows.each("n", double, out="m bigint").filter("m", is_odd)
    made.each("m", expr("m + 1"), out="k bigint").group_by("k").aggregate(Count(), out="c")

    said = notes(topology)

    assert said[2] == ["Python, in one visit with 3"]
    assert said[3] == ["Python, in one visit with 2"]
    assert said[4] == ["JVM"]


def test_a_visit_carries_only_what_is_read_behind_it():
    topology, rows = start()
    rows.each("n", double, out="m bigint").group_by("m").aggregate(Count(), out="c")

    assert notes(topology)[2] == ["Python", "carries only m"]


def test_a_projection_joins_a_visit_that_it_is_in_the_middle_of():
    topology, rows = start()
    rows.each("n", double, out="m bigint").project(["m"]).filter("m", is_odd)
    plan = topology.plan()

    assert [[node.number for node in chain] for chain in python_chains(plan)] == [[2, 3, 4]]


def test_a_projection_before_a_visit_or_behind_it_stays_in_the_jvm():
    topology, rows = start()
    rows.project(["n"]).filter("n", is_odd).each("n", double, out="m bigint").project(["m"])
    plan = topology.plan()

    assert [[node.number for node in chain] for chain in python_chains(plan)] == [[3, 4]]


def test_a_stream_used_twice_ends_a_visit():
    topology, rows = start()
    shared = rows.each("n", double, out="m bigint")
    shared.filter("m", is_odd)
    shared.filter("n", is_odd)

    said = notes(topology)

    assert said[2] == ["Python", "computed once for 3 and 4"]
    assert said[3] == said[4] == ["Python"]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda rows: rows.group_by("s").aggregate(Count(), out="c"), ["JVM", "shuffle by s"]),
        (lambda rows: rows.aggregate(Count(), out="c"), ["JVM", "shuffle all rows to 1 partition"]),
        (
            lambda rows: rows.group_by("s").aggregate("n", Largest(), out="c"),
            ["Python, before the shuffle and behind it", "shuffle by s"],
        ),
        (lambda rows: rows.partition_by(["s", "n"]), ["JVM", "shuffle by s, n"]),
        (lambda rows: rows.shuffle(), ["JVM", "shuffle evenly over 2 partitions"]),
        (
            lambda rows: rows.shuffle().parallelism_hint(5),
            ["JVM", "shuffle evenly over 5 partitions"],
        ),
        (lambda rows: rows.global_(), ["JVM", "all rows in one task"]),
        (
            lambda rows: rows.broadcast().parallelism_hint(3),
            ["JVM", "shuffle every row over 3 partitions"],
        ),
        (lambda rows: rows.identity_partition(), ["JVM"]),
        (lambda rows: rows.local_or_shuffle(), ["JVM"]),
        (
            lambda rows: rows.local_or_shuffle().parallelism_hint(3),
            ["JVM", "shuffle evenly over 3 partitions"],
        ),
    ],
    ids=[
        "grouped",
        "whole",
        "python",
        "by",
        "shuffle",
        "hint",
        "global",
        "broadcast",
        "identity",
        "local",
        "local with a hint",
    ],
)
def test_what_moves_is_said_with_the_reason_and_the_partitions(build, said):
    topology, rows = start()
    build(rows)

    assert notes(topology)[2] == said


def test_a_hint_on_a_spout_moves_its_rows_and_all_that_follows_is_on_as_many_partitions():
    topology, rows = start()
    rows.parallelism_hint(4).each("n", double, out="m bigint")

    said = notes(topology)

    assert said[1] == ["then shuffle evenly over 4 partitions"]
    assert said[2] == ["Python", "4 partitions"]


@pytest.mark.parametrize(
    ("build", "shuffles"),
    [
        (lambda rows: rows.partition_by("s").group_by(["s", "n"]), 1),
        (lambda rows: rows.partition_by(["s", "n"]).group_by("s"), 2),
        (lambda rows: rows.partition_by("s").parallelism_hint(3).group_by("s"), 2),
        (lambda rows: rows.partition_by("s").filter("n", expr("n > 1")).group_by("s"), 1),
        (lambda rows: rows.partition_by("s").filter("n", is_odd).group_by("s"), 2),
        (lambda rows: rows.global_().group_by("s"), 0),
        (lambda rows: rows.global_().filter("n", is_odd).group_by("s"), 0),
        (lambda rows: rows.aggregate("n", Largest(), out="s").group_by("s"), 1),
        (lambda rows: rows.group_by(["s", "n"]).aggregate(Count(), out="c").group_by("s"), 2),
        (lambda rows: rows.group_by("s").aggregate(Count(), out="c").group_by(["s", "c"]), 1),
    ],
)
def test_rows_that_lie_together_are_not_moved_again(build, shuffles):
    topology, rows = start()
    build(rows).aggregate(Count(), out="total")
    conf = Config()

    assert len(cost_of(topology.plan(conf), conf, Case.COLLECTED).shuffles) == shuffles


def test_each_side_of_a_join_is_moved_and_a_small_one_may_go_to_all_instead():
    topology, rows = start()
    other = stream_of(topology, "other")
    topology.join([rows, other], ["s", "s"], out="s, a, b")

    assert notes(topology)[3] == ["JVM", "shuffle of 1 by s", "shuffle of 2 by s"]
    assert topology.explain().splitlines()[-1] == (
        "  1 more for a join of which Spark sends a small side to all tasks"
    )


def test_a_full_outer_join_sends_nothing_to_all():
    topology, rows = start()
    other = stream_of(topology, "other")
    topology.join([rows, other], ["s", "s"], out="s, a, b", how="outer")

    assert "1 more" not in topology.explain()


@pytest.mark.parametrize(
    ("spout", "said"),
    [
        (FileSpout("data"), ["JVM"]),
        (RateSpout(1), ["JVM"]),
        (FixedBatchSpout("n bigint", 1, [1]), ["driver"]),
        (MemoryLog("n bigint", [[]]), []),
    ],
    ids=["files", "rate", "fixed", "of another kind"],
)
def test_where_a_spout_is_read_is_said_if_it_is_known(spout, said):
    topology = TridentTopology("told")
    topology.new_stream("log", spout)

    assert notes(topology)[1] == said


@pytest.mark.parametrize(
    ("driver_only", "commit_in", "said"),
    [
        (True, "auto", "driver"),
        (False, "auto", "driver, or Python tasks if there is much"),
        (False, "driver", "driver"),
        (False, "tasks", "Python"),
    ],
)
def test_where_a_state_is_updated_follows_from_who_reaches_it(
    tmp_path, driver_only, commit_in, said
):
    topology, rows = start()
    state = on_server(tmp_path / "t.db", driver_only=driver_only)
    rows.group_by("s").persistent_aggregate(state, Count(), out="c")

    assert notes(topology, Config(commit_in=commit_in))[3] == [said]


def test_a_static_state_of_the_driver_is_asked_there_and_one_on_a_server_by_tasks(tmp_path):
    topology, rows = start()
    here = topology.new_static_state(opaque("here"))
    there = topology.new_static_state(on_server(tmp_path / "t.db"))
    rows.state_query(here, "s", MapGet(), out="a bigint")
    rows.state_query(there, "s", MapGet(), out="b bigint")

    said = notes(topology)

    assert (said[2], said[3]) == (["driver"], ["Python"])


def test_a_linear_word_count_is_one_job_or_one_and_one_by_tasks(tmp_path):
    topology, rows = start()
    words = rows.each("s", Split(), out="word")
    words.group_by("word").persistent_aggregate(on_server(tmp_path / "t.db"), Count(), out="c")

    assert sums(topology) == [
        "1 job for processing, 0 for commit; no shuffle",
        "1 job for processing, 0 for commit; 1 shuffle",
        "1 job for processing, 1 for commit; 2 shuffles",
    ]


@pytest.mark.parametrize(
    ("commit_in", "said"),
    [
        ("driver", ["1 job for processing, 0 for commit; 1 shuffle"]),
        ("tasks", ["1 job for processing, 1 for commit; 2 shuffles"]),
    ],
)
def test_only_the_case_that_was_chosen_is_told(tmp_path, commit_in, said):
    topology, rows = start()
    made = rows.each("n", double, out="m bigint")  # in Python: never in one task
    made.group_by("m").persistent_aggregate(on_server(tmp_path / "t.db"), Count(), out="c")

    assert sums(topology, Config(commit_in=commit_in)) == said
    assert f"  every batch: {said[0]}" in topology.explain(Config(commit_in=commit_in)).splitlines()


def test_a_tiny_batch_is_grouped_by_one_task_without_a_shuffle(tmp_path):
    topology, rows = start()
    rows.group_by("s").persistent_aggregate(on_server(tmp_path / "t.db"), Count(), out="c")

    lines = topology.explain(Config(commit_in="driver")).splitlines()

    tiny = "a tiny batch (no more than 10,000 rows, or 1 MB in files), in one task"
    assert f"  {tiny}: 1 job for processing, 0 for commit; no shuffle" in lines
    assert "  every larger batch: 1 job for processing, 0 for commit; 1 shuffle" in lines
    assert sums(topology, Config(commit_in="tasks")) == [
        "1 job for processing, 1 for commit; 2 shuffles"
    ]


def native(topology, rows):
    return rows.each("n", expr("n + 1"), out="m bigint").filter("m", expr("m > 1"))


def hinted(topology, rows):
    return native(topology, rows).parallelism_hint(2)


def in_python(topology, rows):
    return rows.each("n", double, out="m bigint")


def in_python_on_a_side(topology, rows):
    rows.each("n", double, out="m bigint").filter("m", is_odd)
    return rows


def aggregated_in_python(topology, rows):
    return rows.group_by("s").aggregate("n", Total(), out="n")


def joined(topology, rows):
    left, right = rows.project(["s", "n"]), rows.each("n", expr("n + 1"), out="m bigint")
    return topology.join(left, "s", right.project(["s", "m"]), "s", out="s, n, m")


@pytest.mark.parametrize(
    ("build", "by_one"),
    [(native, True), (hinted, False), (in_python, False), (in_python_on_a_side, False),
     (aggregated_in_python, False), (joined, False)],
)  # fmt: skip
def test_one_task_reads_a_tiny_batch_if_the_jvm_does_all_that_is_done_with_it(build, by_one):
    topology, rows = start()
    build(topology, rows).group_by("s").persistent_aggregate(opaque(), Count(), out="c")
    plan = topology.plan()
    states = frozenset(plan.states)

    found = read_by_one_task(plan, Facts(states, tiny=True))

    assert found == (set(plan.sources.values()) if by_one else set())
    assert not read_by_one_task(plan, Facts(states))


def test_tasks_that_write_a_state_have_rows_of_more_than_one_task(tmp_path):
    topology, rows = start()
    rows.group_by("s").persistent_aggregate(on_server(tmp_path / "t.db"), Count(), out="c")

    assert not read_by_one_task(topology.plan(), Facts(frozenset(), tiny=True))


def test_new_values_that_feed_a_state_take_a_job_of_the_commit():
    topology, rows = start()
    first = rows.group_by("s").persistent_aggregate(opaque("a"), Count(), out="c")
    first.new_values_stream().persistent_aggregate(opaque("b"), "c", Sum(), out="total")
    conf = Config()
    cost = cost_of(topology.plan(conf), conf, Case.COLLECTED)

    jobs = [[step.node.title for step in cost.jobs(phase)] for phase in Phase]
    assert jobs == [["aggregate(Count)"], ["aggregate(Sum)"]]


def test_dead_letters_cost_nothing_while_there_are_none():
    topology, rows = start()
    made = rows.each("n", double, out="m bigint", on_error="dead_letter")
    made.group_by("m").persistent_aggregate(opaque(), Count(), out="c")

    lines = topology.explain().splitlines()

    assert "  while results fit the driver: 2 jobs for processing, 0 for commit; 1 shuffle" in lines
    assert "  1 or 2 more in a batch that puts rows aside or takes letters up again" in lines


def test_a_name_cannot_end_its_line():
    topology, rows = start()
    rows.filter("n", is_odd).name("evil\nguarantees\r\u2028\x1b[31m  all is well")

    lines = topology.explain().splitlines()

    assert lines[3] == (
        r"   2 <- 1  evil\nguarantees\r\u2028\x1b[31m  all is well  (s string, n bigint)"
    )
    assert "guarantees" not in lines


def test_an_unknown_format_is_refused_with_the_known_ones():
    topology, _ = start()

    with pytest.raises(TopologyError, match="the formats text, mermaid and dot, not 'png'"):
        topology.explain(format="png")
