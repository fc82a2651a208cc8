"""A store author's two methods have no fence, and `explain` says so; with a third they have one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.state.comparing_support import Task
from tests.state_support import Batches
from waterspout import Config
from waterspout._serde import encode_key
from waterspout.errors import FencedError, TopologyError
from waterspout.state import BackingMap, ComparingMap, OpaqueMap, Risk, StateFactory, StateKind
from waterspout.state.cassandra import CassandraState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology
from waterspout.trident.plan.explain import guarantees, refuse_weak
from waterspout.trident.plan.verdicts import verdict_of

_stores: dict[str, dict[str, object]] = {}


class TwoMethods(BackingMap):
    def __init__(self, name):
        self.records = _stores.setdefault(name, {})

    def multi_get(self, keys):
        return [self.records.get(encode_key(key)) for key in keys]

    def multi_put(self, keys, values):
        self.records.update(zip(map(encode_key, keys), values, strict=True))


class ThreeMethods(TwoMethods, ComparingMap):
    title = "a store of three methods"
    kind = StateKind.OPAQUE

    def multi_compare_and_put(self, keys, read, values):
        same = [now == then for now, then in zip(self.multi_get(keys), read, strict=True)]
        pairs = zip(keys, values, same, strict=True)
        self.records.update({encode_key(key): value for key, value, ok in pairs if ok})
        return same


@dataclass(frozen=True)
class Two(StateFactory):
    name: str

    kind = StateKind.OPAQUE
    driver_only = True
    backing = TwoMethods

    def make_state(self, conf, partition_index, num_partitions):
        return OpaqueMap(self.backing(self.name))


class Three(Two):
    fenced = True
    backing = ThreeMethods


class Boasting(Two):
    fenced = True


class Asked(Three):
    """Its store says, when asked, that it may lose records."""

    def ask_risk(self):
        return Risk("the store is known to be forgetful", "Buy another one")


@pytest.fixture(autouse=True)
def _empty():
    _stores.clear()


def word_count(factory):
    topology = TridentTopology("fences")
    words = topology.new_stream("words", FixedBatchSpout("word string", 1, [["a"], ["a"], ["b"]]))
    counts = words.group_by("word").persistent_aggregate(factory, Count(), "n")
    return topology, counts


def test_without_a_fence_a_late_attempt_replaces_what_was_committed():
    batches = Batches(OpaqueMap(TwoMethods("late")))
    zombie = Task(TwoMethods("late"), 1, 0, {"x": 1})
    batches.commit({"x": 1})
    batches.commit({"x": 1})
    assert batches.values("x") == [2]

    zombie.write()

    assert batches.values("x") == [1]


def test_with_the_third_method_it_is_refused():
    batches = Batches(OpaqueMap(ThreeMethods("late")))
    zombie = Task(ThreeMethods("late"), 1, 0, {"x": 1})
    batches.commit({"x": 1})
    batches.commit({"x": 1})

    with pytest.raises(FencedError):
        zombie.write()

    assert batches.values("x") == [2]


WHY = (
    "its store has no fence: the late write of an attempt that was given up can replace what was "
    "committed since"
)


def test_explain_says_so_and_strict_refuses():
    topology, _ = word_count(Two("said"))

    assert guarantees(topology.plan()) == [f"state1 (Two): not exactly-once: {WHY}"]
    with pytest.raises(TopologyError) as refused:
        refuse_weak(topology.plan())
    assert str(refused.value) == (
        f"strict=True refuses state1: not exactly-once, because {WHY}. Give its map a fence and "
        "its recipe fenced = True (see docs/stores.md), or leave strict off."
    )
    with pytest.raises(TopologyError, match="has no fence"):
        LocalRun(topology, Config(strict=True))


def test_what_follows_from_such_a_state_is_not_exact_either():
    topology, counts = word_count(Two("followed"))
    counts.new_values_stream().persistent_aggregate(Three("behind"), Count(), "changes")

    assert guarantees(topology.plan())[1] == (
        "state2 (Three): not exactly-once: it follows from state1, which is not exactly-once"
    )


def test_with_a_fence_it_is_exactly_once_and_runs():
    topology, counts = word_count(Three("runs"))

    run = LocalRun(topology, Config(strict=True))
    run.finish()
    run.close()

    assert counts.multi_get(["a", "b"]) == [2, 1]
    assert guarantees(topology.plan()) == [
        "state1 (Three): exactly-once: spout 'words' is transactional, the state is opaque"
    ]


def test_a_recipe_that_says_fenced_is_looked_at_before_a_run():
    topology, _ = word_count(Boasting("boasts"))

    with pytest.raises(TopologyError) as refused:
        LocalRun(topology)
    assert str(refused.value) == (
        "the recipe of state1, Boasting, says fenced = True, but the map that it makes has no "
        "fence. Make it a FencedMap or a ComparingMap, or leave fenced out."
    )


def test_what_a_store_says_when_asked_changes_the_verdict():
    topology, _ = word_count(Asked("asked"))
    run = LocalRun(topology)
    run.close()

    verdict = verdict_of(run.plan, run.plan.updates["state1"])

    assert (verdict.exact, verdict.why) == (False, "the store is known to be forgetful")
    with pytest.raises(TopologyError, match=r"known to be forgetful. Buy another one, or leave"):
        LocalRun(topology, Config(strict=True))


@pytest.mark.parametrize(("mode", "exact"), [("lwt", True), ("single_writer", False)])
def test_a_single_writer_of_cassandra_has_no_fence_to_speak_of(mode, exact):
    factory = CassandraState.opaque("a", keyspace="k", table="t", mode=mode)
    plan = word_count(factory)[0].plan()

    verdict = verdict_of(plan, plan.updates["state1"])

    assert verdict.exact is exact
    assert exact or verdict.remedy == "Use mode='lwt'"
