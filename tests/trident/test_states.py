"""Updates and queries of a state for the rows of one partition, and the state's own handle."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from tests.trident.support import Capture, Keep, KeptRows
from waterspout import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state import MapState, MemoryMapState, Snapshottable, State, StateFactory
from waterspout.state._head import Claim
from waterspout.testing import FixedBatchSpout
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import (
    CombinerAggregator,
    Count,
    MapGet,
    QueryFunction,
    ReducerAggregator,
    SnapshotGet,
    StateUpdater,
    TridentTopology,
)
from waterspout.trident.plan.nodes import CombineInto, Query, ReduceInto, Update, UpdateWith
from waterspout.trident.plan.plan import Shape, StateSpec
from waterspout.trident.runtime.states import (
    open_state,
    run_query,
    run_update,
)

COUNTED = Schema.parse("word string, n bigint")


class Joined(ReducerAggregator[str]):
    def init(self):
        return "<"

    def reduce(self, value, tuple):
        return value + tuple[0]


class Own(State):
    """Notes how it is called; declares no more than it wants to know."""

    def __init__(self):
        self.calls = []

    def begin_commit(self, txid):
        self.calls.append(("begin", txid))

    def commit(self, txid):
        self.calls.append(("commit", txid))


class Careful(Own):
    def begin_commit(self, txid, attempt=0, resolved=None):
        self.calls.append(("begin", txid, attempt, dict(resolved)))


class Noting(StateUpdater[Own]):
    def prepare(self, conf, context):
        self.where = (context.partition_index, context.num_partitions)

    def update_state(self, state, tuples, collector):
        state.calls.append([tuple.values for tuple in tuples])
        for tuple in tuples:
            collector.emit((tuple[0], 1))

    def cleanup(self):
        self.where = "gone"


class OwnSnapshot(Snapshottable[int]):
    value = None

    def get(self):
        return self.value

    def update(self, updater):
        self.value = updater.update(self.value)
        return self.value

    def set(self, value):
        self.value = value


def claim(txid, attempt=0, resolved=None):
    return Claim(TransactionAttempt(txid, attempt), resolved=resolved or {})


def table(*rows, schema="word string, n bigint"):
    names = Schema.parse(schema).names
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def spec(shape=Shape.MAP, factory=None, partitions=1):
    return StateSpec("state1", factory or MemoryMapState(), partitions, shape)


def update(updating, state, *rows, shape=Shape.MAP, txid=1, schema=COUNTED, want_new=True, **more):
    node = Update(
        number=1, name="update of state1", schema=schema, state="state1", updating=updating
    )
    found, at = table(*rows), claim(txid, **more)
    new = run_update(node, spec(shape), state, found, at, Config(), 0, want_new=want_new)
    return None if new is None else [tuple(row.values()) for row in new.to_pylist()]


def memory():
    return open_state(spec(), Config(), 0, None)


BY_WORD = CombineInto(("word",), "n", Count())


def test_partial_results_are_combined_into_their_keys():
    state = memory()
    update(BY_WORD, state, ("a", 2), ("b", 1))

    new = update(BY_WORD, state, ("a", 3), ("c", 4), txid=2)

    assert new == [("a", 5), ("c", 4)]
    assert state.multi_get([("a",), ("b",), ("c",)]) == [5, 1, 4]


def test_a_replay_starts_from_what_was_there_before_the_batch():
    state = memory()
    update(BY_WORD, state, ("a", 2))
    update(BY_WORD, state, ("a", 100), txid=2)

    assert update(BY_WORD, state, ("a", 3), txid=2, attempt=1) == [("a", 5)]


def test_rows_of_a_key_are_folded_in_order_into_one_update():
    state = memory()
    into = ReduceInto(("n",), ("word",), "joined", Joined())
    schema = Schema.parse("n bigint, joined string")

    update(into, state, ("a", 1), ("b", 2), ("c", 1), schema=schema)
    new = update(into, state, ("d", 1), txid=2, schema=schema)

    assert new == [(1, "<acd")]
    assert state.multi_get([(1,), (2,)]) == ["<acd", "<b"]


def test_a_global_aggregate_is_one_value_under_no_key():
    state = memory()
    total = CombineInto((), "n", Count())
    schema = Schema.parse("n bigint")

    update(total, state, ("", 2), shape=Shape.SNAPSHOT, schema=schema)
    new = update(total, state, ("", 3), shape=Shape.SNAPSHOT, schema=schema, txid=2)

    assert new == [(5,)]
    assert state.multi_get([()]) == [5]


def test_a_global_reducer_folds_all_rows():
    into = ReduceInto((), ("word",), "joined", Joined())
    state = OwnSnapshot()

    new = update(
        into, state, ("a", 1), ("b", 2), shape=Shape.SNAPSHOT, schema=Schema.parse("joined string")
    )

    assert (new, state.value) == ([("<ab",)], "<ab")


def test_no_rows_no_call():
    state = Own()

    assert update(UpdateWith(("word",), Noting()), state, shape=Shape.OWN) is None
    assert state.calls == []


def test_new_values_are_made_only_for_those_who_want_them():
    assert update(BY_WORD, memory(), ("a", 2), want_new=False) is None


def test_an_updater_runs_between_begin_and_commit():
    state, updater = Own(), Noting()

    new = update(UpdateWith(("word",), updater), state, ("a", 1), ("b", 2), shape=Shape.OWN, txid=9)

    assert state.calls == [("begin", 9), [("a",), ("b",)], ("commit", 9)]
    assert new == [("a", 1), ("b", 1)]
    assert updater.where == "gone"


def test_a_state_that_wants_to_know_is_told_attempt_and_resolved():
    state = Careful()

    update(
        UpdateWith(("word",), Noting()), state, ("a", 1), shape=Shape.OWN, txid=9, attempt=2,
        resolved={8: 1},
    )  # fmt: skip

    assert state.calls[0] == ("begin", 9, 2, {8: 1})


@pytest.mark.parametrize(
    ("shape", "wanted"), [(Shape.MAP, "MapState"), (Shape.SNAPSHOT, "Snapshottable")]
)
def test_a_state_of_the_wrong_kind_is_refused_by_name(shape, wanted):
    with pytest.raises(TopologyError, match=f"update of state1 needs a {wanted}; .* made a Own"):
        update(BY_WORD, Own(), ("a", 1), shape=shape)


class Tracked(CombinerAggregator[int]):
    def __init__(self):
        self.calls = []

    def prepare(self, conf, context):
        self.calls.append((context.partition_index, context.num_partitions))

    def cleanup(self):
        self.calls.append("cleanup")

    def init(self, tuple):
        return 1

    def combine(self, left, right):
        self.calls.append("combine")
        if right < 0:
            raise RuntimeError("no")
        return left + right

    def zero(self):
        return 0


def test_an_aggregator_is_prepared_before_it_meets_the_stored_value():
    state, tracked = memory(), Tracked()
    into = CombineInto(("word",), "n", tracked)
    update(into, state, ("a", 1))
    tracked.calls.clear()

    update(into, state, ("a", 1), txid=2)

    assert tracked.calls == [(0, 1), "combine", "cleanup"]


def test_an_aggregator_is_cleaned_up_when_the_update_fails():
    state, tracked = memory(), Tracked()
    into = CombineInto(("word",), "n", tracked)
    update(into, state, ("a", 1))

    with pytest.raises(RuntimeError, match="no"):
        update(into, state, ("a", -1), txid=2)

    assert tracked.calls[-1] == "cleanup"


def ask(query, state, *words, shape=Shape.MAP, out="found bigint", seen_by=None):
    made = Schema.parse(out)
    node = Query(
        number=1, name="state_query(it)", schema=made, state="state1", fields=("word",),
        query=query, out=made,
    )  # fmt: skip
    batch = pa.record_batch({"word": pa.array(words, pa.string())})
    answered = run_query(node, spec(shape), state, batch, seen_by, Config(), 0)
    return [tuple(row.values()) for row in answered.to_pylist()]


def test_map_get_appends_what_is_under_the_key_and_null_where_nothing_is():
    state = memory()
    update(BY_WORD, state, ("a", 2))

    assert ask(MapGet(), state, "a", "b", "a") == [("a", 2), ("b", None), ("a", 2)]


def test_snapshot_get_appends_the_one_value():
    state = memory()
    update(
        CombineInto((), "n", Count()), state, ("", 5), shape=Shape.SNAPSHOT,
        schema=Schema.parse("n bigint"),
    )  # fmt: skip

    assert ask(SnapshotGet(), state, "x", "y", shape=Shape.SNAPSHOT) == [("x", 5), ("y", 5)]


def test_a_batch_sees_the_state_as_it_was_before_the_batch():
    state = memory()
    update(BY_WORD, state, ("a", 2))
    update(BY_WORD, state, ("a", 3), txid=2)

    assert ask(MapGet(), state, "a", seen_by=claim(2, 1)) == [("a", 2)]
    assert ask(MapGet(), state, "a", seen_by=claim(3)) == [("a", 5)]


class Fussy(QueryFunction[State, int]):
    """Answers once per batch; execute needs what prepare opened."""

    def __init__(self, answers=None):
        self.asked = []
        self._answers = answers

    def prepare(self, conf, context):
        self.open = True

    def batch_retrieve(self, state, tuples):
        self.asked.append([tuple[0] for tuple in tuples])
        return self._answers or [len(tuple[0]) for tuple in tuples]

    def execute(self, tuple, result, collector):
        assert self.open
        for _ in range(result):
            collector.emit((result,))

    def cleanup(self):
        self.open = False


def test_a_query_is_asked_once_for_all_tuples_and_emits_any_number():
    query = Fussy()

    assert ask(query, Own(), "ab", "", "c") == [("ab", 2), ("ab", 2), ("c", 1)]
    assert query.asked == [["ab", "", "c"]]
    assert not query.open


def test_a_query_over_nothing_is_not_asked():
    query = Fussy()

    assert ask(query, Own()) == []
    assert query.asked == []


def test_a_query_must_answer_every_tuple():
    query = Fussy(answers=[1])

    with pytest.raises(ValueError, match=r"state_query\(it\) gave 1 answers for 2 tuples"):
        ask(query, Own(), "a", "b")
    assert not query.open


def stream(topology):
    return topology.new_stream("s", FixedBatchSpout("word string, n bigint", 1, []))


def filled(factory, *pairs):
    state = factory.make_state(Config(), 0, 1)
    state.multi_put([key for key, _ in pairs], [value for _, value in pairs])
    return factory


def test_a_key_may_be_given_bare_as_a_tuple_or_as_a_list():
    topology = TridentTopology("handle")
    stream(topology)
    state = topology.new_static_state(
        filled(MemoryMapState(), (("a",), 1), ((5,), 2), ((b"xy",), 3), (("a", 5), 4))
    )

    assert [state.get(key) for key in ("a", ("a",), ["a"], 5, b"xy", ("a", 5), "zz")] == [
        *(1, 1, 1, 2, 3, 4, None),
    ]
    assert state.multi_get(["a", 5, ("a", 5)]) == [1, 2, 4]


def test_get_without_a_key_is_the_value_of_a_global_state():
    topology = TridentTopology("handle")
    total = stream(topology).persistent_aggregate(
        filled(MemoryMapState(), ((), 7)), Count(), out="total"
    )

    assert total.get() == 7


_snapshot = OwnSnapshot()


@dataclass(frozen=True)
class SnapshotFactory(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):
        return _snapshot


def test_get_asks_a_snapshottable_of_the_users_own():
    topology = TridentTopology("handle")
    state = stream(topology).persistent_aggregate(SnapshotFactory(), Count(), out="total")
    _snapshot.set(12)

    assert state.get() == 12


def test_a_state_that_is_no_map_cannot_be_asked_by_key():
    topology = TridentTopology("handle")
    state = stream(topology).partition_persist(Capture(), "word", Keep())

    with pytest.raises(TopologyError, match="'state1' is not a map; it cannot be asked by key"):
        state.get("a")


def test_the_kinds_of_states_are_told_by_their_contract():
    assert isinstance(memory(), MapState)
    assert not isinstance(KeptRows("x"), MapState)
