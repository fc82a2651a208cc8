"""The recipe: what it refuses when it is written, and that it travels."""

from __future__ import annotations

import pickle

import pytest

from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.sinks import exactly_once
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, ReducerAggregator, Sum


class Fold(ReducerAggregator[int]):
    def init(self):
        return 0

    def reduce(self, value, tuple):
        return value + 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: exactly_once("counts", n=Count()), "'counts' is not a StateFactory"),
        (
            lambda: exactly_once(MemoryMapState.non_transactional(), n=Count()),
            "needs an opaque or a transactional state",
        ),
        (lambda: exactly_once(MemoryMapState(), keys=["w"]), "at least one column"),
        (lambda: exactly_once(MemoryMapState(), n=Fold()), "column 'n' needs a CombinerAggregator"),
        (lambda: exactly_once(MemoryMapState(), keys=[1], n=Count()), "keys are the names"),
        (lambda: exactly_once(MemoryMapState(), keys="n", n=Count()), "cannot be keys and"),
        (lambda: exactly_once(MemoryMapState(), n=Count()).starting_at(-1), "from 0 on, not -1"),
        (lambda: exactly_once(MemoryMapState(), n=Count()).named("a b"), "a b"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_written(make, reason):
    with pytest.raises(TopologyError, match=reason):
        make()


def test_two_states_in_one_place_are_refused(tmp_path):
    table = SQLiteState.opaque(tmp_path / "a.db", table="t")

    with pytest.raises(TopologyError, match="use two tables"):
        exactly_once(table, n=Count()).also(table, keys="word", n=Count())


def test_the_recipe_travels_with_all_it_says(tmp_path):
    sink = (
        exactly_once(SQLiteState.opaque(tmp_path / "a.db", table="t"), keys=["w"], n=Count())
        .also(SQLiteState.opaque(tmp_path / "a.db", table="u"), total=("x", Sum()))
        .named("mine")
        .starting_at(7)
        .configured(Config(state_partitions=3))
    )

    copy = pickle.loads(pickle.dumps(sink))

    assert [t.factory for t in copy.targets] == [t.factory for t in sink.targets]
    assert (copy.name, copy.starts_at, copy.config) == ("mine", 7, Config(state_partitions=3))
    assert copy.targets[1].columns.input_fields == ("x",)


BAD_ROWS = {
    "both": ({"append": True, "upsert": "id"}, "appended or upserted, not both"),
    "aggregates": ({"append": True, "count": Count()}, "writes rows as they are; .*count"),
    "keys": ({"upsert": "id", "keys": "id"}, "writes rows as they are; .*keys"),
    "order alone": ({"order_by": "at", "count": Count()}, "it goes with upsert"),
    "order of appended": ({"append": True, "order_by": "at"}, "it goes with upsert"),
    "no key": ({"upsert": []}, "needs the fields that are the key"),
    "order is key": ({"upsert": "id", "order_by": "id"}, "part of the key"),
    "append what": ({"append": "yes"}, "append is True or False"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_and_aggregates_are_not_mixed_in_one_state(name, tmp_path):
    given, words = BAD_ROWS[name]
    state = SQLiteState.opaque(tmp_path / "x.db", table="t")
    other = SQLiteState.opaque(tmp_path / "x.db", table="u")

    with pytest.raises(TopologyError, match=words):
        exactly_once(state, **given)
    with pytest.raises(TopologyError, match=words):
        exactly_once(other, append=True).also(state, **given)
