"""States of bolts: how they are declared, what a bolt may do with them, what is promised."""

from __future__ import annotations

import sqlite3

import pytest

from waterspout import BasicBolt, Config, FailedException
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.coordination.transactions import explain, state_verdicts
from waterspout.errors import (
    FencedError,
    StateMismatchError,
    StateUseError,
    TopologyError,
)
from waterspout.state import MapState, MemoryMapState, State, StateFactory, ValueUpdater
from waterspout.state._head import Writer
from waterspout.state.sqlite import SQLiteState
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

WORDS = [["a", "b", "a", "c"], ["a", "b", "b"]]
FIELDS = {"keys": "word string", "values": "count bigint"}
FAILS: dict[str, int] = {}
"""Where a bolt still fails, and how often."""


@pytest.fixture(autouse=True)
def _no_failures():
    FAILS.clear()


def stumble(where, error=FailedException):
    if FAILS.get(where, 0) > 0:
        FAILS[where] -= 1
        raise error(where)


class Adding(ValueUpdater[int]):
    def update(self, stored):
        return (stored or 0) + 1


class CountWords(BatchBolt, Committer):
    """Counts while it executes, and tells at the end what each count was and is."""

    output_fields = ("tx", "word", "now")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts = context.state("words")
        self.seen = []

    def execute(self, tuple):
        self.counts.update(tuple["word"], Adding())
        self.seen.append(tuple["word"])

    def finish_batch(self):
        stumble("before")
        for word in sorted(set(self.seen)):
            self.collector.emit([self.id, word, self.counts.get(word)])
        stumble("after")


class OnlyCount(CountWords):
    """Reads nothing, as is right for a transactional state."""

    def finish_batch(self):
        pass


class Buckets(BatchBolt):
    """Counts, behind a committer, how many words have reached a count."""

    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context, self.reached = context, []

    def execute(self, tuple):
        self.reached.append(tuple["now"])

    def finish_batch(self):
        buckets = self.context.state("buckets")
        buckets.multi_update(self.reached, [lambda old: (old or 0) + 1] * len(self.reached))
        stumble("buckets")


def counting(words, buckets=None, spout=None, tasks=2):
    spout = spout or MemoryTransactionalSpout(WORDS, "word", 2)
    builder = TransactionalTopologyBuilder("words", "spout", spout, 2)
    bolt = builder.set_bolt("count", CountWords(), tasks).fields_grouping("spout", "word")
    bolt.with_state("words", words, **FIELDS)
    if buckets is not None:
        late = builder.set_bolt("buckets", Buckets()).global_grouping("count")
        late.with_state("buckets", buckets, keys="reached bigint", values="words bigint")
    return builder.build_topology()


def values(factory, *keys):
    return factory.make_state(Config(), 0, 1).multi_get([(key,) for key in keys])


def finished(topology, **options):
    run = LocalBatches(topology, Config(retry_backoff_millis=1), **options)
    run.finish(max_steps=20_000)
    run.close()
    return run


@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("where", ["before", "after", "buckets"])
def test_a_replayed_batch_counts_once_in_all_states(tmp_path, opaque, where):
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    buckets = MemoryMapState()
    FAILS[where] = 3

    run = finished(counting(words, buckets, kind(WORDS, "word", 2)))

    with sqlite3.connect(tmp_path / "words.db") as db:
        found = dict(db.execute("SELECT word, count FROM words"))
    assert found == {"a": 3, "b": 3, "c": 1}
    # After batch 1 a stands at 2 and b at 2; c comes in batch 2, and a, b move up.
    assert values(buckets, 1, 2, 3) == [1, 2, 2]
    assert run.loop.ledger.current == 3
    assert sum(FAILS.values()) == 0


SEEN: list[tuple] = []
LOOKED_AT = MemoryMapState()


class Look(BatchBolt, Committer):
    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context

    def execute(self, tuple):
        state = self.context.state("words")
        assert state.update("x", lambda old: (old or 0) + 1) is None
        assert state.put("y", tuple["word"]) is None
        state.put("z", 1)
        state.remove("z")

    def finish_batch(self):
        state = self.context.state("words")
        changed = state.update("x", lambda old: old * 10), state.get("x"), state.get(("y",))
        SEEN.append((*changed, state.multi_get(["y", "z"]), values(LOOKED_AT, "x", "y")))


def test_changes_are_there_for_the_bolt_itself_and_for_nobody_else_before_the_commit():
    SEEN.clear()
    spout = MemoryTransactionalSpout([["a"]], "word", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("look", Look()).global_grouping("spout").with_state("words", LOOKED_AT)

    finished(builder.build_topology())

    assert SEEN == [(10, 10, "a", ["a", None], [None, None])]
    assert values(LOOKED_AT, "x", "y") == [10, "a"]


def test_a_state_of_one_value_needs_no_key():
    total = MemoryMapState()

    class Total(BatchBolt):
        count = 0

        def prepare(self, conf, context, collector, id):
            super().prepare(conf, context, collector, id)
            self.context = context

        def execute(self, tuple):
            self.count += 1

        def finish_batch(self):
            self.context.state("total").update((), lambda old: (old or 0) + self.count)

    builder = TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout(WORDS, "word", 2))
    bolt = builder.set_committer_bolt("total", Total()).global_grouping("spout")
    bolt.with_state("total", total, values="count bigint")
    finished(builder.build_topology())

    assert total.make_state(Config(), 0, 1).multi_get([()]) == [7]


class Use(BatchBolt, Committer):
    """Does one thing with its state."""

    output_fields = ("tx", "word")

    def __init__(self, in_finish, *call):
        self.in_finish, self.call = in_finish, call

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context

    def execute(self, tuple):
        if not self.in_finish:
            self.use()

    def finish_batch(self):
        if self.in_finish:
            self.use()

    def use(self):
        method, *arguments = self.call
        name, *arguments = arguments
        getattr(self.context.state(name), method)(*arguments)


@pytest.mark.parametrize(
    ("factory", "bolt", "message"),
    [
        (MemoryMapState(), Use(False, "get", "words", "a"), "Read it in finish_batch"),
        (MemoryMapState.transactional(), Use(True, "get", "words", "a"),
         "which is transactional: in a replay it cannot tell"),
        (MemoryMapState(), Use(True, "put", "words", ("a", 1), 1),
         r"has keys of 1 fields \(word string\), and 'use' gave \('a', 1\)"),
        (MemoryMapState(), Use(True, "put", "word", "a", 1),
         "bolt 'use' has no state 'word'; it has 'words'"),
        (MemoryMapState(), Use(False, "update", "words", "a", 1),
         "an updater is a ValueUpdater or a function, not 1"),
        (MemoryMapState(), Use(True, "multi_put", "words", ["a", "b", "c", "d", "e"], [1] * 5),
         r"belongs to task \d of 'use', and task \d uses it: two tasks would write over"),
    ],
    ids=["early", "transactional", "width", "unknown", "updater", "of another task"],
)  # fmt: skip
def test_a_state_that_is_used_as_it_may_not_be_is_an_error(factory, bolt, message):
    spout = MemoryTransactionalSpout([["a", "b", "c", "d", "e"]], "word", 9)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    uses = builder.set_bolt("use", bolt, 2).fields_grouping("spout", "word")
    uses.with_state("words", factory, **FIELDS)
    run = LocalBatches(builder.build_topology(), Config(max_retries=0))

    with pytest.raises(StateUseError, match=message):
        run.finish()


def declared(word_of_bolt="set_committer_bolt", tasks=1, bolt=None, group=None, **options):
    spout = MemoryTransactionalSpout([["a"]], "word", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    made = getattr(builder, word_of_bolt)("bolt", bolt or Plain(), tasks)
    group(made) if group else made.fields_grouping("spout", "word")
    made.with_state("words", options.pop("factory", MemoryMapState()), **options)
    return builder


class Plain(BatchBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple):
        pass


class Basic(BasicBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple, collector):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_of_bolt": "set_bolt"}, "finishes in the processing phase.*set_committer_bolt"),
        ({"word_of_bolt": "set_bolt", "bolt": Basic()}, "is a BasicBolt"),
        ({"tasks": 2}, "has no declared keys, and its 2 tasks take 'spout' by fields"),
        ({"tasks": 2, **FIELDS, "group": lambda b: b.shuffle_grouping("spout")},
         "has the key word string, and its 2 tasks take 'spout' by shuffle grouping"),
        ({"tasks": 2, "keys": "other string", "values": "n int"}, "two of them could write one"),
        ({"keys": "word string"}, "has keys, so it needs values"),
        ({"keys": "word", "values": "n int"}, "does not know the type"),
        ({"factory": SQLiteState}, "needs a recipe, such as SQLiteState.opaque.*the class SQLite"),
        ({"factory": 5}, "needs a recipe"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_its_bolt_is_refused_when_it_is_built(options, message):
    with pytest.raises(TopologyError, match=message):
        declared(**options).build_topology()


def test_two_states_of_one_name_or_in_one_place_are_refused(tmp_path):
    memory = MemoryMapState()
    builder = declared(factory=memory)
    with pytest.raises(TopologyError, match="bolt 'bolt' has already a state 'words'"):
        builder._declared["bolt"].with_state("words", MemoryMapState())
    other = builder.set_committer_bolt("other", Plain()).global_grouping("spout")
    other.with_state("same", memory)
    with pytest.raises(TopologyError, match="'words' and 'same' are both kept in memory:"):
        builder.build_topology()
    other._states.clear()
    other.with_state("words", MemoryMapState())
    with pytest.raises(TopologyError, match="'bolt' and 'other' both have a state 'words'"):
        builder.build_topology()


class Own(StateFactory):
    """A user's own recipe, of a state that is no map."""

    def make_state(self, conf, partition_index, num_partitions):
        return State()


def test_a_state_that_is_no_map_is_refused_before_the_run():
    with pytest.raises(TopologyError, match="its factory made a State, and a bolt uses a MapState"):
        LocalBatches(declared(factory=Own()).build_topology())


class Lists(MapState):
    """A user's own map, which knows batches only by their number."""

    stored: dict[tuple, list] = {}  # noqa: RUF012

    def __init__(self):
        self.calls = []

    def begin_commit(self, txid):
        self.calls.append(f"begin {txid}")

    def commit(self, txid):
        Lists.stored.setdefault("calls", []).append([*self.calls, f"commit {txid}"])

    def multi_get(self, keys):
        return [Lists.stored.get(key) for key in keys]

    def multi_update(self, keys, updaters):
        for key, updater in zip(keys, updaters, strict=True):
            Lists.stored[key] = updater.update(Lists.stored.get(key))
        return self.multi_get(keys)

    def multi_put(self, keys, values):
        Lists.stored.update(zip(keys, values, strict=True))


class OwnMap(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):
        return Lists()


def test_a_map_of_the_users_own_is_told_of_each_batch():
    Lists.stored.clear()

    finished(counting(OwnMap(), tasks=1))

    assert Lists.stored == {
        ("a",): 3, ("b",): 3, ("c",): 1,
        "calls": [["begin 1", "commit 1"], ["begin 2", "commit 2"]],
    }  # fmt: skip


def test_a_lost_attempt_that_wakes_up_later_is_refused(tmp_path):
    """The commit phase of a zombie: its tasks go on when the next driver has committed."""
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    spout = MemoryTransactionalSpout(WORDS, "word", 9)
    topology, shared = counting(words, spout=spout, tasks=1), SharedMemory()
    store = MemoryCoordinationStore("words", shared)
    zombie = LocalBatches(topology, store=store, keep_emitted=False)
    while not zombie.loop.ledger.begun:
        zombie.loop.step()
        zombie.engine.step(lambda n: 0)
    zombie.engine.step(lambda n: 0)  # it claims the heads, and stops before it writes
    reports = []
    zombie.engine.report = reports.append

    finished(topology, store=MemoryCoordinationStore("words", shared))
    while zombie.engine.step(lambda n: 0):
        pass

    assert [type(report.error) for report in reports] == [FencedError]
    assert values(topology.states["words"].factory, "a", "b", "c") == [3, 3, 1]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_worker_that_dies_after_its_write_writes_the_same_again(kind):
    words = getattr(MemoryMapState, kind)()
    lost = iter([False, True] * 10)
    builder = TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout(WORDS, "word", 2))
    bolt = builder.set_bolt("count", OnlyCount(), 2).fields_grouping("spout", "word")
    bolt.with_state("words", words, **FIELDS)

    finished(builder.build_topology(), loses_result=lambda: next(lost, False))

    assert values(words, "a", "b", "c") == [3, 3, 1]


TURNS: list[int] = []


class Fickle(CountWords):
    """Writes another key each time that it is asked to."""

    deterministic = False

    def execute(self, tuple):
        pass

    def finish_batch(self):
        TURNS.append(len(TURNS))
        self.counts.update(f"turn {TURNS[-1]}", Adding())


def test_a_bolt_that_varies_is_not_finished_twice_in_one_attempt():
    """What the lost worker has written beside it would stay: both bear the same attempt."""
    TURNS.clear()
    words = MemoryMapState()
    spout = MemoryTransactionalSpout([["a"]], "word", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("fickle", Fickle()).global_grouping("spout").with_state("words", words)
    after_the_write = iter([True])

    finished(
        builder.build_topology(), loses_result=lambda: bool(TURNS) and next(after_the_write, False)
    )

    assert TURNS == [0, 1]
    assert values(words, "turn 0", "turn 1") == [None, 1]


def test_records_that_are_gone_while_the_head_stays_are_found_out(tmp_path):
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    shared = SharedMemory()
    topology = counting(words)
    finished(topology, store=MemoryCoordinationStore("words", shared))
    with sqlite3.connect(tmp_path / "words.db") as db:
        db.execute("DELETE FROM words")

    with pytest.raises(StateMismatchError, match="no record of key"):
        LocalBatches(topology, store=MemoryCoordinationStore("words", shared))


def test_a_state_that_is_wiped_is_refused(tmp_path):
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    shared = SharedMemory()
    finished(counting(words), store=MemoryCoordinationStore("words", shared))
    (tmp_path / "words.db").unlink()

    with pytest.raises(StateMismatchError, match="is empty, but 2 batches were committed to it"):
        LocalBatches(counting(words), store=MemoryCoordinationStore("words", shared))


def test_a_state_that_is_new_to_a_topology_counts_from_the_next_batch_on(tmp_path):
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")
    buckets = SQLiteState.opaque(tmp_path / "words.db", table="buckets")
    shared = SharedMemory()
    finished(counting(words), store=MemoryCoordinationStore("words", shared))
    more = MemoryTransactionalSpout([[*part, "a", "d"] for part in WORDS], "word", 2)

    run = LocalBatches(
        counting(words, buckets, more), store=MemoryCoordinationStore("words", shared)
    )
    first = run.loop.ledger.current
    run.finish(max_steps=20_000)
    run.close()

    with sqlite3.connect(tmp_path / "words.db") as db:
        counts = dict(db.execute("SELECT word, count FROM words"))
        reached = dict(db.execute("SELECT reached, words FROM buckets"))
    assert first == 3
    assert counts == {"a": 5, "b": 3, "c": 1, "d": 2}
    assert reached == {2: 1, 5: 1}, "of the one batch since then: d was 2, and a was 5"


SPOUTS = {
    "transactional": MemoryTransactionalSpout(WORDS, "word", 2),
    "opaque": OpaqueMemoryTransactionalSpout(WORDS, "word", 2),
}


@pytest.mark.parametrize(
    ("spout", "state", "exact"),
    [
        ("transactional", "opaque", True),
        ("transactional", "transactional", True),
        ("transactional", "non_transactional", False),
        ("opaque", "opaque", True),
        ("opaque", "transactional", False),
        ("opaque", "non_transactional", False),
    ],
)
def test_the_verdict_of_a_state_is_that_of_its_pair(spout, state, exact):
    factory = getattr(MemoryMapState, state)().named("words")
    topology = counting(factory, spout=SPOUTS[spout])

    kind = state.replace("_", "-")
    word = "exactly-once" if exact else "not exactly-once"
    assert (
        f"\nguarantees\n  words (memory:words): {word}: spout 'spout' is {spout}, the state is "
        f"{kind}" in explain(topology, Config(), 2)
    )
    if exact:
        LocalBatches(topology, Config(strict=True)).close()
    else:
        with pytest.raises(TopologyError, match="strict=True refuses words: not exactly-once"):
            LocalBatches(topology, Config(strict=True))


class Unfenced(MemoryMapState):
    """A recipe whose store has no fence."""

    fenced = False


def test_a_state_in_a_store_without_a_fence_is_not_exact():
    topology = counting(Unfenced())

    assert "not exactly-once: its store has no fence" in explain(topology, Config(), 2)
    with pytest.raises(TopologyError, match=r"strict=True refuses words: .* no fence"):
        LocalBatches(topology, Config(strict=True))


def test_what_follows_from_a_state_that_is_not_exact_is_not_exact_either():
    weak = counting(MemoryMapState.non_transactional(), MemoryMapState())

    verdict = state_verdicts(weak)["buckets"]

    assert (verdict.exact, verdict.why) == (
        False, "it follows from words, which is not exactly-once",
    )  # fmt: skip


def test_a_bolt_that_varies_makes_the_batch_opaque():
    class Varies(Plain):
        deterministic = False

    builder = TransactionalTopologyBuilder("t", "spout", SPOUTS["transactional"])
    builder.set_bolt("varies", Varies()).shuffle_grouping("spout")
    bolt = builder.set_committer_bolt("keep", Plain()).global_grouping("varies")
    bolt.with_state("words", MemoryMapState.transactional())

    verdict = state_verdicts(builder.build_topology())["words"]

    assert (verdict.exact, verdict.why) == (
        False, "bolt 'varies' is declared not deterministic, the state is transactional",
    )  # fmt: skip


def test_a_committer_on_its_own_is_told_and_refused_by_strict():
    builder = TransactionalTopologyBuilder("t", "spout", SPOUTS["transactional"])
    builder.set_committer_bolt("alone", Plain()).shuffle_grouping("spout")
    bolt = builder.set_committer_bolt("keep", Plain()).global_grouping("alone")
    bolt.with_state("words", MemoryMapState())
    topology = builder.build_topology()

    text = explain(topology, Config(), 2)

    assert "words (memory:" in text
    assert "not exactly-once: it follows from alone, which writes by itself" in text
    assert "exactly-once if each of alone\n  keeps the txid with each value" in text
    assert "a committer without a state is on its own" in text
    with pytest.raises(TopologyError, match=r"strict=True refuses words: .*Give alone a state"):
        LocalBatches(topology, Config(strict=True))


RESOLVED: list[dict] = []


class Alone(BatchBolt, Committer):
    """Writes by itself, and has to know which attempts count."""

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context

    def execute(self, tuple):
        pass

    def finish_batch(self):
        RESOLVED.append(dict(self.context.resolved))
        stumble("alone")


def test_a_committer_on_its_own_beside_a_state_still_hears_which_attempts_count(tmp_path):
    """SQLite takes lost attempts back by itself; what the other committer writes to may not."""
    RESOLVED.clear()
    builder = TransactionalTopologyBuilder("t", "spout", SPOUTS["opaque"])
    builder.set_bolt("alone", Alone()).global_grouping("spout")
    bolt = builder.set_bolt("count", OnlyCount()).global_grouping("spout")
    bolt.with_state("words", SQLiteState.opaque(tmp_path / "words.db", table="words"), **FIELDS)
    FAILS["alone"] = 1

    finished(builder.build_topology())

    assert RESOLVED == [{}, {}, {1: 1}]


def test_the_fingerprint_has_the_states(tmp_path):
    words = SQLiteState.opaque(tmp_path / "words.db", table="words")

    found = counting(words).fingerprint()

    assert found["state words"]["backend"] == "sqlite"
    assert (found["state words"]["bolt"], found["state words"]["partitions"]) == ("count", 2)


def test_batches_of_two_drivers_are_told_apart_by_their_writers():
    """What a task writes bears the driver's own lease, as the head does."""
    words = MemoryMapState()
    run = LocalBatches(counting(words))
    run.finish()

    head = words.backing().read_head()

    assert isinstance(head.stamp.writer, Writer)
    assert head.stamp.writer == run.loop.writer
    assert (head.stamp.txid, head.committed) == (2, True)
    run.close()
