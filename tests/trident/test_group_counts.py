"""Counts of groups that a visit to Python makes before rows go back: when, and what they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.trident.test_explain_plans import double, notes, start
from waterspout import Config
from waterspout._schema import Schema
from waterspout.trident import Count, Sum, expr
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.schedule import Derive, Facts, counted_in_visit, schedule
from waterspout.trident.runtime import group_counts
from waterspout.trident.runtime.group_counts import COUNTED, counted_schema, run_counted


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def as_they_come(batches, conf, context):
    return iter(batches)


def given(batches, *keys):
    """The rows that a partition gives, in any order."""
    made = run_counted(as_they_come, keys, batches, Config(), OperationContext(0, 1))
    tables = [pa.Table.from_batches([one]) for one in made]
    assert all(table.column_names == [*keys, COUNTED] for table in tables)
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return sorted(rows, key=repr)


def test_each_group_of_a_partition_comes_once_with_the_number_of_its_rows():
    first, second = batch(w=["a", "b", "a", None]), batch(w=["b", None, "b"])

    assert given([first, second], "w") == [("a", 2), ("b", 3), (None, 2)]


def test_groups_of_several_keys_are_told_apart_by_all_of_them():
    rows = batch(count_all=[1, 1, 2], c1_sum=[b"x", b"y", b"x"], beside=["p", "q", "r"])
    again = batch(count_all=[1], c1_sum=[b"x"], beside=["s"])

    found = given([rows, again], "c1_sum", "count_all")

    assert found == [(b"x", 1, 2), (b"x", 2, 1), (b"y", 1, 1)]


def test_a_partition_without_rows_gives_no_group():
    assert given([], "w") == []
    assert given([pa.RecordBatch.from_arrays([pa.array([], pa.string())], ["w"])], "w") == []


def test_a_task_passes_groups_on_before_it_holds_too_many(monkeypatch):
    monkeypatch.setattr(group_counts, "_HELD_MAX", 3)
    batches = [batch(w=["a", "b"]), batch(w=["a", "c"]), batch(w=["a"])]

    assert given(batches, "w") == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]


def test_groups_have_the_types_of_their_fields():
    rows = Schema.parse("w string, n int, f double")

    assert (
        counted_schema(rows, ("n", "w")).ddl()
        == Schema.parse(f"n int, w string, {COUNTED} bigint").ddl()
    )


def counted(build):
    """The numbers of the node that counts in its visit and of the count, if there is one."""
    topology, rows = start()
    build(rows)
    plan = topology.plan(Config())
    steps = [s for s in schedule(plan, Config(), Facts()) if isinstance(s, Derive)]
    found = [(s.node.number, s.counts.number) for s in steps if s.counts is not None]
    # Who is told to add up is the one for whom it was counted.
    assert [s.node.number for s in steps if s.adds_up] == [count for _, count in found]
    assert [counted_in_visit(plan, s.node) for s in steps if s.counts] == [
        s.counts for s in steps if s.counts
    ]
    return found


def in_python(rows, out="m bigint"):
    return rows.each("n", double, out=out)


def test_a_count_right_behind_python_is_counted_in_the_visit():
    assert counted(lambda r: in_python(r).group_by("m").aggregate(Count(), out="c")) == [(2, 3)]
    assert counted(lambda r: in_python(r).group_by("s", "m").aggregate("n", Count(), out="c")) == [
        (2, 3)
    ]
    assert counted(
        lambda r: in_python(r).parallelism_hint(2).group_by("m").aggregate(Count(), out="c")
    ) == [(2, 3)]


@pytest.mark.parametrize(
    "build",
    [
        lambda r: r.group_by("s").aggregate(Count(), out="c"),
        lambda r: in_python(r).group_by("m").aggregate("n", Sum(), out="c"),
        lambda r: in_python(r).aggregate(Count(), out="c"),
        lambda r: in_python(r, "m double").group_by("m").aggregate(Count(), out="c"),
        lambda r: in_python(r, "m timestamp").group_by("m").aggregate(Count(), out="c"),
        lambda r: in_python(r).group_by("m").partition_aggregate(Count(), out="c"),
        lambda r: (
            (in_python(r).each("m", expr("m + 1"), out="k bigint"))
            .group_by("k")
            .aggregate(Count(), out="c")
        ),
        lambda r: (
            in_python(r)
            .group_by("m")
            .chained_agg()
            .aggregate(Count(), out="c")
            .aggregate(Count(), out="d")
            .chain_end()
        ),
    ],
    ids=["jvm", "sum", "no groups", "doubles", "times", "partitions", "jvm between", "two"],
)
def test_other_rows_go_back_as_they_are(build):
    assert counted(build) == []


def test_rows_that_somebody_else_reads_go_back_as_they_are():
    def build(rows):
        made = in_python(rows)
        made.group_by("m").aggregate(Count(), out="c")
        made.filter("m", expr("m > 1"))

    assert counted(build) == []


def test_explain_says_who_counts_first():
    topology, rows = start()
    in_python(rows).group_by("m").aggregate(Count(), out="c")

    assert notes(topology)[3] == ["JVM, counted first in the visit of 2", "shuffle by m"]
