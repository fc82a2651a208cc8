"""`partition_persist` of a map: one task owns a key, however many partitions there are."""

from __future__ import annotations

import pytest

from tests.trident.support import Capture, Keep
from waterspout import Config
from waterspout.errors import ResultError, TopologyError
from waterspout.state import MemoryMapState, StateKind, ValueUpdater
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import StateUpdater, TridentTopology, updater
from waterspout.trident.plan.explain import explain, guarantees
from waterspout.trident.plan.verdicts import verdict_of

ROWS = [(word, n) for n in range(1, 11) for word in ("a", "b", "c")]


class Add(ValueUpdater):
    def __init__(self, n):
        self.n = n

    def update(self, stored):
        return (stored or 0) + self.n


class SumByWord(StateUpdater):
    """Adds up amounts by a key that is only part of what it is given."""

    keys = "word"

    def update_state(self, state, tuples, collector):
        state.multi_update([(t["word"],) for t in tuples], [Add(t["amount"]) for t in tuples])


class SumUndeclared(SumByWord):
    keys = None


@updater(keys=["word"])
def add_by_word(state, tuples):
    SumByWord().update_state(state, tuples, None)


def rows(topology):
    return topology.new_stream("rows", FixedBatchSpout("word string, amount bigint", 30, ROWS))


def summed(operation, hint=None, *, kind=StateKind.OPAQUE, spread=None):
    topology = TridentTopology("sums")
    stream = rows(topology)
    if spread is not None:
        stream = stream.partition_by("word").parallelism_hint(spread)
    state = stream.partition_persist(MemoryMapState(kind), ["word", "amount"], operation)
    return topology, state if hint is None else state.parallelism_hint(hint)


@pytest.mark.parametrize("hint", [None, 1, 4])
@pytest.mark.parametrize("operation", [SumByWord(), add_by_word], ids=["class", "function"])
def test_a_key_that_is_part_of_the_fields_is_added_up_in_one_partition(operation, hint):
    topology, state = summed(operation, hint)

    run_in_process(topology)

    assert state.multi_get(["a", "b", "c"]) == [55, 55, 55]
    assert topology.plan().states[state.name].partitions == (hint or 1)


def test_the_partitions_of_the_stream_are_those_of_the_state_if_keys_are_declared():
    topology, state = summed(SumByWord(), spread=3)

    run_in_process(topology)

    assert state.multi_get(["a", "b", "c"]) == [55, 55, 55]
    assert topology.plan().states[state.name].partitions == 3


@pytest.mark.parametrize("spread", [None, 3])
def test_without_keys_there_is_one_partition_and_explain_says_why(spread):
    topology, state = summed(SumUndeclared(), spread=spread)

    run_in_process(topology)

    assert state.multi_get(["a", "b", "c"]) == [55, 55, 55]
    plan = topology.plan()
    assert plan.states[state.name].partitions == 1
    assert "      driver; 1 partition, because SumUndeclared declares no keys" in explain(
        plan, Config()
    )


def test_with_keys_there_is_nothing_to_say():
    topology, _ = summed(SumByWord(), 4)

    assert "declares no keys" not in explain(topology.plan(), Config())


def test_a_hint_without_keys_is_refused_at_once():
    with pytest.raises(TopologyError) as refused:
        summed(SumUndeclared(), 4)

    assert str(refused.value) == (
        "update of state1: parallelism_hint(4) is not possible, because SumUndeclared declares no "
        "keys: several tasks might write one key of the map, and one of them would count. Say "
        'which fields are the key (keys = "user" in the StateUpdater, or @updater(keys="user")), '
        "or leave the hint out."
    )
    topology, state = summed(SumUndeclared(), 1)
    assert topology.plan().states[state.name].partitions == 1


def test_a_state_of_ones_own_kind_has_partitions_of_its_own():
    topology = TridentTopology("own")
    state = rows(topology).partition_persist(Capture(), "word", Keep()).parallelism_hint(4)

    assert topology.plan().states[state.name].partitions == 4
    assert "declares no keys" not in explain(topology.plan(), Config())


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ("user", "keys of partition_persist.* asks for field 'user'"),
        ([], "declares keys, but no field; leave keys out"),
        (["amount"], None),
        ("tags", "goes by field 'tags', a map"),
    ],
)
def test_keys_are_fields_that_the_updater_is_given(keys, wrong):
    fields = "word string, amount bigint, tags map<string,string>"
    topology = TridentTopology("keys")
    stream = topology.new_stream("rows", FixedBatchSpout(fields, 1, []))
    declared = updater(lambda state, tuples: None, keys=keys)

    if wrong is None:
        stream.partition_persist(MemoryMapState(), declared)
        return
    with pytest.raises(TopologyError, match=wrong):
        stream.partition_persist(MemoryMapState(), declared)


TOUCHES = {
    "reads": lambda state, key: state.multi_get([key]),
    "writes": lambda state, key: state.multi_put([key], [1]),
    "updates": lambda state, key: state.multi_update([key], [Add(1)]),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_an_updater_with_keys_touches_only_those_of_its_tuples(touch):
    def touches(state, tuples):
        for t in tuples:
            TOUCHES[touch](state, (t["word"].upper(),))

    topology, _ = summed(updater(touches, keys="word"), 2)

    with pytest.raises(ResultError) as refused:
        run_in_process(topology, Config(max_retries=0))
    assert "touches declares keys word, and touches key ('" in str(refused.value)
    assert "which none of its tuples has" in str(refused.value)


def by_word_and_size(state, tuples):
    state.multi_put([(t["word"], t["amount"] > 5) for t in tuples], [1] * len(tuples))


def test_a_key_of_an_opaque_map_may_begin_with_the_declared_fields():
    topology, state = summed(updater(by_word_and_size, keys="word"), 2)

    run_in_process(topology)

    assert state.multi_get([("a", True), ("a", False), ("b", True)]) == [1, 1, 1]


def test_a_key_of_a_transactional_map_has_just_the_declared_fields():
    operation = updater(by_word_and_size, keys="word")
    topology, _ = summed(operation, 2, kind=StateKind.TRANSACTIONAL)

    with pytest.raises(ResultError, match="touches key"):
        run_in_process(topology, Config(max_retries=0))


def test_without_keys_an_updater_touches_what_it_likes():
    def counts(state, tuples):
        state.multi_put([("everything",)], [len(tuples)])

    topology, state = summed(updater(counts))

    run_in_process(topology)

    assert state.get("everything") == 30


@pytest.mark.parametrize(
    ("kind", "operation", "exact"),
    [
        (StateKind.TRANSACTIONAL, SumByWord(), True),
        (StateKind.TRANSACTIONAL, SumUndeclared(), False),
        (StateKind.OPAQUE, SumUndeclared(), True),
    ],
    ids=["declared", "not declared", "opaque"],
)
def test_an_updater_that_may_read_any_key_needs_an_opaque_state(kind, operation, exact):
    topology, state = summed(operation, kind=kind)
    plan = topology.plan()

    verdict = verdict_of(plan, plan.updates[state.name])

    assert verdict.exact is exact
    if not exact:
        assert guarantees(plan)[0].endswith(
            ": not exactly-once: update of state1 may read values there that a lost attempt at the "
            "same batch wrote, for it does not declare its keys"
        )
        assert verdict.remedy == "Make state1 opaque, or declare the updater's keys"
