"""Queries inside a topology, with a crash between two writes of a batch.

What `explain` calls exactly-once is exact; what it does not can be made wrong, as shown here.
"""

from __future__ import annotations

import itertools

import pytest

from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash
from waterspout.trident import Count, Filter, MapGet, StateUpdater, TridentTopology
from waterspout.trident.plan.verdicts import verdict_of

WORDS = [["a"], ["b"], ["a"], ["c"]]
KINDS = (StateKind.TRANSACTIONAL, StateKind.OPAQUE)
_ids = itertools.count()


class IsNew(Filter):
    def is_keep(self, tuple):
        return tuple["before"] is None


class CountUp(StateUpdater):
    """Reads a count, writes one more, and emits it."""

    keys = "word"

    def update_state(self, state, tuples, collector):
        for row in tuples:
            (count,) = state.multi_get([row.values])
            state.multi_put([row.values], [(count or 0) + 1])
            collector.emit(((count or 0) + 1,))


class Number(StateUpdater):
    """Numbers the tuples of a word and notes each number: what it reads says what it writes."""

    def update_state(self, state, tuples, collector):
        for row in tuples:
            (last,) = state.multi_get([row.values])
            state.multi_put([row.values, (row["word"], (last or 0) + 1)], [(last or 0) + 1, 1])


def memory(kind):
    return MemoryMapState(kind, f"asking{next(_ids)}")


def crashing_once(build, *, after=1, meanwhile=lambda: None):
    """Run a topology to its end with one crash, after so many writes; return its plan."""
    writes = []

    def crash(name, context):
        if name == "write.after":
            writes.append(context)
            if len(writes) == after:
                raise SimulatedCrash(name)

    store = SharedMemory()
    faults.install(crash)
    try:
        for _ in range(2):
            run = LocalRun(build(), Config(), store=MemoryCoordinationStore("asking", store))
            try:
                run.finish()
            except SimulatedCrash:
                meanwhile()
            run.close()
    finally:
        faults.install(None)
    assert len(writes) > after, "it went on after the crash"
    return run.plan


def is_exact(plan, state):
    return verdict_of(plan, plan.updates[state]).exact


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_words_that_are_new_are_counted_once_if_the_state_asked_is_opaque(kind):
    words, distinct = memory(kind), memory(StateKind.OPAQUE)
    counted = []

    def build():
        topology = TridentTopology("asking")
        stream = topology.new_stream("words", FixedBatchSpout("word string", 2, WORDS))
        seen = stream.group_by("word").persistent_aggregate(words, Count(), "count")
        asked = stream.state_query(seen, "word", MapGet(), "before bigint")
        new = asked.filter("before", IsNew())
        counted[:] = [new.persistent_aggregate(distinct, Count(), "n")]
        return topology

    plan = crashing_once(build)

    # The crash is behind the first write of batch 1: its replay finds a word there.
    assert counted[0].get() == (3 if kind is StateKind.OPAQUE else 2)
    assert is_exact(plan, "state2") is (kind is StateKind.OPAQUE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_answers_behind_the_update_are_the_same_in_a_replay(kind):
    words, answers = memory(kind), memory(StateKind.TRANSACTIONAL)
    counted = []

    def build():
        topology = TridentTopology("asking")
        stream = topology.new_stream("words", FixedBatchSpout("word string", 2, WORDS))
        seen = stream.group_by("word").persistent_aggregate(words, Count(), "count")
        asked = seen.new_values_stream().state_query(seen, "word", MapGet(), "found bigint")
        by_answer = asked.project("found").group_by("found")
        counted[:] = [by_answer.persistent_aggregate(answers, Count(), "n").parallelism_hint(1)]
        return topology

    plan = crashing_once(build)

    # Of an opaque state the values before the batch, of a transactional one those with it.
    before = {None: 3, 1: 1} if kind is StateKind.OPAQUE else {1: 3, 2: 1}
    assert {found: counted[0].get([found]) for found in (None, 1, 2)} == {
        found: before.get(found) for found in (None, 1, 2)
    }
    assert is_exact(plan, "state2")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_what_an_updater_emits_is_right_in_a_replay_if_its_state_is_opaque(kind):
    words, largest = memory(kind), memory(StateKind.OPAQUE)
    counted = []

    def build():
        topology = TridentTopology("asking")
        stream = topology.new_stream("words", FixedBatchSpout("word string", 2, WORDS))
        counts = stream.partition_persist(words, "word", CountUp(), out="n bigint")
        by_count = counts.new_values_stream().group_by("n")
        counted[:] = [by_count.persistent_aggregate(largest, Count(), "times")]
        return topology

    plan = crashing_once(build)

    # "a" comes twice, "b" and "c" once.
    exact = {1: 3, 2: 1}
    found = {n: counted[0].get(n) for n in (1, 2)}
    assert (found == exact) is (kind is StateKind.OPAQUE)
    assert is_exact(plan, "state2") is (kind is StateKind.OPAQUE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_an_updater_that_goes_by_what_it_reads_is_right_if_its_state_is_opaque(kind):
    numbers = memory(kind)
    kept = []

    def build():
        topology = TridentTopology("asking")
        stream = topology.new_stream("words", FixedBatchSpout("word string", 2, WORDS))
        kept[:] = [stream.partition_persist(numbers, "word", Number())]
        return topology

    plan = crashing_once(build)

    # "b" comes once; the replay of a transactional state takes it for the second.
    second = None if kind is StateKind.OPAQUE else 1
    assert kept[0].multi_get([("b", 1), ("b", 2)]) == [1, second]
    assert is_exact(plan, "state1") is (kind is StateKind.OPAQUE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_static_state_may_change_between_attempts_if_what_follows_is_opaque(kind):
    categories, by_category = memory(StateKind.NON_TRANSACTIONAL), memory(kind)
    counted = []

    def move_to(category):
        state = categories.make_state(Config(), 0, 1)
        state.multi_put([("a",), ("b",), ("c",)], [category] * 3)

    def build():
        topology = TridentTopology("asking")
        stream = topology.new_stream("words", FixedBatchSpout("word string", 4, WORDS))
        static = topology.new_static_state(categories)
        asked = stream.state_query(static, "word", MapGet(), "category string")
        counts = asked.group_by("category").persistent_aggregate(by_category, Count(), "n")
        counted[:] = [counts.parallelism_hint(1)]
        return topology

    move_to("x")
    plan = crashing_once(build, meanwhile=lambda: move_to("y"))

    left = None if kind is StateKind.OPAQUE else 4
    assert counted[0].multi_get(["x", "y"]) == [left, 4]
    assert is_exact(plan, "state2") is (kind is StateKind.OPAQUE)
    assert plan.states["state1"].static
