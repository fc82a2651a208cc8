"""`persistent_aggregate`: all batches aggregated into a state, exactly once."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import stream_of
from tests.trident.support import finish
from waterspout import Config
from waterspout.errors import SerdeError
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import run_in_process
from waterspout.trident import Average, CombinerAggregator, Count, Max, Sum, reducer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", 2), ("a", 3), (None, 4), ("b", None), ("", 6), ("a", 7)]


class Product(CombinerAggregator[int]):
    def init(self, tuple):
        return 1 if tuple["n"] is None else tuple["n"]

    def combine(self, left, right):
        return left * right

    def zero(self):
        return 1

    def output_types(self, inputs):
        return ["bigint"]


@reducer(init="")
def joined(value, n) -> str:
    return f"{value}+{n}"


def build(folder):
    """Make the states of every kind of aggregator, global and by key."""
    topology, stream = stream_of("word string, n bigint", ROWS, size=3)
    nothing = stream.filter("n", lambda n: n == 99)
    words, ids = stream.group_by("word"), stream.group_by(["n", "word"])
    file = SQLiteState.opaque(folder / "states.db", table="counts")
    return topology, {
        "example": words.persistent_aggregate(MemoryMapState(), Count(), out="count"),
        "file": words.persistent_aggregate(file, Count(), out="count"),
        "total": stream.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total"),
        "product": words.persistent_aggregate(MemoryMapState(), "n", Product(), out="product"),
        "joined": stream.persistent_aggregate(MemoryMapState(), "n", joined, out="joined"),
        "mean": words.persistent_aggregate(MemoryMapState(), "n", Average(), out="mean"),
        "most": words.persistent_aggregate(MemoryMapState(), "n", Max(), out="most"),
        "two": ids.persistent_aggregate(MemoryMapState(), Count(), out="count"),
        "nothing": nothing.persistent_aggregate(MemoryMapState(), Count(), out="count"),
        "no groups": nothing.group_by("word").persistent_aggregate(
            MemoryMapState(), Count(), out="count"
        ),
    }


@pytest.fixture(scope="module", params=["spark", "here"])
def states(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    topology, states = build(home)
    if request.param == "spark":
        spark = request.getfixturevalue("spark")
        finish(topology, spark, Config(home=str(home), retry_backoff_millis=1), timeout=200)
    else:
        run_in_process(topology)
    return states


def test_the_documented_example(states):
    assert states["example"].multi_get(["a", "b", None, "", "z"]) == [3, 2, 1, 1, None]
    assert states["file"].multi_get(["a", "b", None, "", "z"]) == [3, 2, 1, 1, None]


def test_ungrouped_it_is_one_value(states):
    assert states["total"].get() == 23


def test_a_combiner_of_ones_own(states):
    assert states["product"].multi_get(["a", "b", None]) == [21, 2, 4]


def test_a_reducer_sees_every_tuple_of_its_batches_in_turn(states):
    parts = states["joined"].get().split("+")

    assert parts[0] == ""
    for batch in range(0, len(ROWS), 3):
        wanted = sorted(str(n) for _, n in ROWS[batch : batch + 3])
        assert sorted(parts[1 + batch : 4 + batch]) == wanted


def test_a_reader_sees_finished_values(states):
    assert states["mean"].multi_get(["a", "b", "z"]) == [11 / 3, 2.0, None]
    assert states["most"].multi_get(["a", "b", None]) == [7, 2, 4]


def test_a_key_of_two_fields_is_in_their_order(states):
    assert states["two"].multi_get([(1, "a"), (None, "b")]) == [1, 1]
    with pytest.raises(SerdeError, match="column 'n' holds int, not 'b'"):
        states["two"].multi_get([("b", None)])


def test_empty_batches_count_for_the_whole_and_make_no_groups(states):
    assert states["nothing"].get() == 0
    assert states["no groups"].get("a") is None
