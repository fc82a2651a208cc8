"""Stand-ins: of the same kind as what they stand for, in a folder of their own; and refusals."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from waterspout import BasicBolt, Config, TopologyBuilder
from waterspout.errors import TopologyError
from waterspout.proving.sources import cut, refuse_consuming, stored_shares
from waterspout.proving.stand_ins import described, replaced, stand_in, written_states
from waterspout.proving.subject import subject_of
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.state import MapState, MemoryMapState, StateFactory, StateKind
from waterspout.state.files import FileState
from waterspout.state.kafka import KafkaState
from waterspout.state.memcached import MemcachedState
from waterspout.state.parquet import ParquetState
from waterspout.state.postgres import PostgresState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout, FixedBatchSpout, run_in_process
from waterspout.topology import Spout
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import (
    AppendRows,
    Count,
    Split,
    StateUpdater,
    Sum,
    TridentTopology,
    UpsertRows,
)

LINES = ["to be or not to be", "that is the question", "to sleep"]


def counting(state, spout=None):
    topology = TridentTopology("words")
    words = topology.new_stream("in", spout or FixedBatchSpout("value string", 1, LINES))
    words = words.each("value", Split(), "word")
    words.group_by("word").persistent_aggregate(state, Count(), "count")
    return topology


def persisting(state, updater):
    topology = TridentTopology("rows")
    rows = topology.new_stream(
        "in", FixedBatchSpout("id bigint, x double", 2, [(1, 0.5), (2, 1.5)])
    )
    rows.partition_persist(state, updater)
    return topology


def standing_in(topology, folder):
    (found,) = written_states(topology).values()
    return stand_in(found[1], "s_1", folder)


@pytest.mark.parametrize("kind", ["opaque", "transactional", "non_transactional"])
def test_a_stand_in_is_of_the_same_kind_with_the_same_fields(tmp_path, kind):
    state = getattr(PostgresState, kind)("postgresql://nowhere/db", table="word_counts")
    topology = counting(state)

    made = standing_in(topology, tmp_path)

    assert [one.label for one in subject_of(topology, Config(), tmp_path).states] == ["word_counts"]
    assert isinstance(made, SQLiteState)
    assert made.kind is state.kind
    assert (str(made.keys), str(made.values)) == ("word string", "count bigint")
    assert made.location() == f"sqlite:{tmp_path / 'states.db'}#s_1"
    assert not made.driver_only  # as those of Postgres, tasks may write it


@pytest.mark.parametrize(
    "state",
    [
        MemoryMapState(),
        MemcachedState.opaque("nowhere:11211", prefix="w"),
        FileState.opaque("/nowhere/at/all"),
        SQLiteState.opaque("/nowhere/at/all.db", table="words"),
    ],
)
def test_whatever_the_store_it_is_never_touched(tmp_path, state):
    topology = counting(state)

    found = subject_of(topology, Config(home=str(tmp_path / "home")), tmp_path)

    (one,) = found.states
    assert one.instead == "SQLite, opaque"
    assert one.store == f"{type(state).__name__}, opaque"
    assert list(tmp_path.iterdir()) == []


def test_what_a_topology_writes_over_its_stand_ins_is_read_back(tmp_path):
    topology = counting(MemoryMapState())
    subject = subject_of(topology, Config(), tmp_path)

    run_in_process(replaced(topology, tmp_path), Config(home=str(tmp_path / "home")))

    (content,) = subject.contents(tmp_path).values()
    assert content[("to",)] == 3
    assert len(content) == 9


def test_rows_that_are_appended_are_appended_to_sqlite(tmp_path):
    topology = persisting(ParquetState("/nowhere"), AppendRows())
    subject = subject_of(topology, Config(), tmp_path)

    run_in_process(replaced(topology, tmp_path), Config(home=str(tmp_path / "home")))

    assert subject.contents(tmp_path) == {subject.states[0].label: {(1, 0.5): 1, (2, 1.5): 1}}
    assert subject.states[0].instead == "SQLite, opaque rows"


def test_rows_of_a_store_that_cannot_undo_are_pinned_for_the_stand_in_too(tmp_path):
    state = KafkaState("nowhere:9092", topic="out")
    topology = persisting(state, AppendRows())
    (found,) = written_states(topology).values()
    assert found[1].pins_batches

    made = standing_in(topology, tmp_path)

    assert made.pins_batches
    assert replaced(topology, tmp_path).plan().pins_batches


def test_upserted_rows_are_read_as_a_reader_sees_them(tmp_path):
    topology = persisting(MemoryMapState(), UpsertRows(["id"]))
    subject = subject_of(topology, Config(), tmp_path)

    run_in_process(replaced(topology, tmp_path), Config(home=str(tmp_path / "home")))

    assert subject.contents(tmp_path) == {subject.states[0].label: {(1,): 0.5, (2,): 1.5}}


def test_a_topology_of_bolts_has_stand_ins_for_their_states(tmp_path):
    subject = subject_of(bolts(), Config(), tmp_path)

    run_in_process(replaced(bolts(), tmp_path), Config(home=str(tmp_path / "home")))

    assert subject.contents(tmp_path) == {"words": {("a",): 2, ("b",): 1, ("c",): 1}}
    assert subject.states[0].exact


def test_the_promise_is_that_of_the_topology_not_of_the_stand_in(tmp_path):
    weak = subject_of(counting(MemoryMapState.non_transactional()), Config(), tmp_path)
    evicts = subject_of(
        counting(MemcachedState.opaque("nowhere:1", prefix="w")), Config(), tmp_path
    )

    assert not weak.states[0].exact
    assert evicts.states[0].exact == evicts.states[0].why.startswith("spout")


def test_what_windows_remember_is_not_compared_and_stays_in_the_home(tmp_path):
    topology = TridentTopology("windows")
    rows = topology.new_stream("in", FixedBatchSpout("n bigint", 1, [(1,), (2,), (3,)]))
    sums = rows.tumbling_window(2, "n", Sum(), "total")
    sums.partition_persist(MemoryMapState(), AppendRows())

    found = subject_of(topology, Config(), tmp_path)

    assert [state.name for state in found.states] == ["state2"]
    assert list(written_states(topology)) == ["state2"]


def test_dead_letters_are_compared_like_a_state(tmp_path):
    topology = TridentTopology("letters")
    rows = topology.new_stream("in", FixedBatchSpout("n bigint", 1, [(1,), (0,), (2,)]))
    good = rows.each("n", lambda n: 6 // n, "m bigint", on_error="dead_letter")
    good.partition_persist(MemoryMapState(), AppendRows())

    subject = subject_of(topology, Config(), tmp_path)

    assert [state.label for state in subject.states] == [subject.states[0].label, "dead letters"]
    assert subject.states[1].exact
    assert subject.contents(tmp_path)["dead letters"] == {}


class Own(MapState):
    def multi_get(self, keys):
        return [None] * len(keys)

    def multi_update(self, keys, updaters):
        return [None] * len(keys)

    def multi_put(self, keys, values):
        pass


class OwnState(StateFactory):
    kind = StateKind.OPAQUE

    def make_state(self, conf, partition_index, num_partitions):
        return Own()


class Put(StateUpdater):
    def update_state(self, state, tuples, collector):
        pass


@dataclass(frozen=True)
class Careful(OwnState):
    """A state of the user's own that brings a stand-in."""

    def stand_in(self, folder):
        return SQLiteState.transactional(folder / "mine.db", table="mine")


class Unlisted(OwnState):
    def stand_in(self, folder):
        return self


def test_a_state_of_an_unknown_class_is_refused_unless_it_brings_a_stand_in(tmp_path):
    with pytest.raises(TopologyError, match=r"OwnState.*stand_in\(self, folder\)"):
        subject_of(persisting(OwnState(), Put()), Config(), tmp_path)
    with pytest.raises(TopologyError, match="Own, which cannot be listed"):
        subject_of(persisting(Unlisted(), Put()), Config(), tmp_path)

    (state,) = subject_of(persisting(Careful(), Put()), Config(), tmp_path).states

    assert (state.store, state.instead) == ("Careful, opaque", "SQLite, transactional")


class CountWords(BatchBolt, Committer):
    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.words = context.state("words")

    def execute(self, tuple):
        self.words.update(tuple["word"], lambda old: (old or 0) + 1)


class OnItsOwn(BatchBolt, Committer):
    output_fields = ("tx",)

    def execute(self, tuple):
        pass


def bolts(bolt=None):
    spout = MemoryTransactionalSpout([["a", "b", "a", "c"]], "word", 2)
    builder = TransactionalTopologyBuilder("bolts", "spout", spout)
    made = builder.set_committer_bolt("count", bolt or CountWords()).global_grouping("spout")
    if bolt is None:
        made.with_state("words", MemoryMapState(), keys="word string", values="n bigint")
    return builder.build_topology()


class Nothing(BasicBolt):
    def execute(self, tuple, collector):
        pass


def test_what_writes_by_itself_is_refused(tmp_path):
    builder = TopologyBuilder()
    builder.set_spout("in", FeederSpout("value"))
    builder.set_bolt("out", Nothing()).shuffle_grouping("in")

    with pytest.raises(TopologyError, match="write by themselves, wherever they like"):
        subject_of(builder.create_topology("core"), Config(), tmp_path)
    with pytest.raises(TopologyError, match="committers that write by themselves: count"):
        subject_of(bolts(OnItsOwn()), Config(), tmp_path)


def test_a_topology_without_a_state_has_nothing_to_compare(tmp_path):
    topology = TridentTopology("none")
    topology.new_stream("in", FixedBatchSpout("n bigint", 1, [(1,)])).peek(print)

    with pytest.raises(TopologyError, match="writes no state"):
        subject_of(topology, Config(), tmp_path)


class OwnSpout(Spout):
    output_fields = ("value",)

    def next_tuple(self):
        pass


class Acking(OwnSpout):
    def ack(self, msg_id):
        pass


def test_a_spout_that_takes_messages_away_is_refused(tmp_path):
    rabbit = counting_own(RabbitMQSpout("amqp://nowhere", "queue", fields="value"))
    own = counting_own(Acking())

    with pytest.raises(TopologyError, match="RabbitMQSpout, which acknowledges"):
        refuse_consuming(rabbit, trusted=True)
    with pytest.raises(TopologyError, match=r"Acking, a class of your own.*--trust-source"):
        refuse_consuming(own, trusted=False)
    refuse_consuming(own, trusted=True)


def counting_own(spout):
    topology = TridentTopology("own")
    words = topology.new_stream("in", spout, out="value string")
    words.group_by("value").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@pytest.mark.parametrize("spout", [OwnSpout(), FeederSpout("value")])
def test_a_spout_that_acknowledges_nothing_may_be_read(spout):
    refuse_consuming(counting_own(spout), trusted=False)


def test_a_source_that_would_fit_into_one_batch_is_cut(tmp_path):
    (tmp_path / "data").mkdir()
    for n in range(6):
        (tmp_path / "data" / f"{n}.txt").write_text(f"to be or not to be {n}\n")
    topology = replaced(counting(MemoryMapState(), FileSpout(tmp_path / "data")), tmp_path)
    cut(topology, 3, tmp_path)

    run = run_in_process(topology, Config(home=str(tmp_path / "home")))

    assert run.loop.ledger.current - 1 == 3
    assert stored_shares(tmp_path) == {"in": 6 * 21 // 3}


def test_the_description_of_a_recipe_names_class_and_kind():
    assert described(PostgresState.opaque("postgresql://x/y", table="t")) == "PostgresState, opaque"
    assert described(SQLiteState.transactional("x.db", table="t")) == "SQLiteState, transactional"
