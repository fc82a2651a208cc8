"""A topology that grows between two runs: exact whatever crashes before, during and after."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.semantics.test_crash_points import CrashAt
from tests.soaking import stepped
from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ForeignStoreError, StateMismatchError
from waterspout.faults import BATCH_POINTS, GROWTH_POINTS
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState
from waterspout.state._memory import _maps
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash
from waterspout.trident import Columns, Count, Max, TridentTopology

CONFIG = Config(max_spout_pending=2, retry_backoff_millis=0, cancel_wait_secs=0.0)
WORDS = list("abcabdabeabf")
MORE = list("axb")
SIZE = 2


def rows(words):
    return FixedBatchSpout("word string", SIZE, words)


@dataclass
class Shop:
    """What outlives a crash: the ledger and the states; and the topologies of two releases."""

    counts: MemoryMapState = field(default_factory=MemoryMapState)
    late: MemoryMapState = field(default_factory=MemoryMapState)
    ledger: SharedMemory = field(default_factory=SharedMemory)

    def first(self, words=WORDS) -> TridentTopology:
        topology = TridentTopology("grows")
        stream = topology.new_stream("words", rows(words))
        stream.group_by("word").persistent_aggregate(self.counts, Count(), out="n")
        return topology

    def second(self) -> TridentTopology:
        topology = TridentTopology("grows")
        streams = [
            topology.new_stream("words", rows(WORDS)),
            topology.new_stream("more", rows(MORE)),
        ]
        both = topology.merge(*streams)
        both.group_by("word").persistent_aggregate(self.counts, Count(), out="n")
        both.group_by("word").persistent_aggregate(self.late, Count(), out="n")
        return topology

    def run(self, topology: TridentTopology, config: Config = CONFIG) -> LocalRun:
        return LocalRun(topology, config, store=MemoryCoordinationStore("grows", self.ledger))

    @property
    def graph(self):
        return json.loads(self.ledger.document)["fingerprint"]

    def held(self, state: MemoryMapState) -> dict[str, int]:
        reader = state.make_state(Config(), 0, 1)
        keys = sorted({*WORDS, *MORE})
        values = reader.multi_get([(key,) for key in keys])
        return {key: n for key, n in zip(keys, values, strict=True) if n is not None}

    def check(self) -> None:
        """Compare both states with the rows: all of them, and those since the second began."""
        since = self.graph["state state2"].get("since", 1)
        assert self.held(self.counts) == Counter(WORDS + MORE)
        assert self.held(self.late) == Counter(WORDS[SIZE * (since - 1) :] + MORE)


def crashed(shop: Shop, topology: TridentTopology, hook: CrashAt) -> None:
    """Run until the hook crashes it, or it is done."""
    faults.install(hook)
    try:
        shop.run(topology).finish(max_steps=500)
    except SimulatedCrash:
        pass
    finally:
        faults.install(None)


def points_of_the_first() -> int:
    hook = CrashAt()
    crashed(Shop(), Shop().first(WORDS[:6]), hook)
    return len(hook.seen)


def test_a_deploy_that_adds_a_state_and_a_spout_goes_on_and_says_so(caplog):
    shop = Shop()
    shop.run(shop.first(WORDS[:6])).finish()
    run = shop.run(shop.second())

    run.finish()
    run.close()

    shop.check()
    assert shop.graph["state state2"]["since"] == shop.graph["spout more"]["since"] == 4
    assert [record.getMessage() for record in caplog.records] == [
        "grows: spout more is new: it begins at its beginning, with batch 4.",
        "grows: state state2 (MemoryMapState) is new: it begins empty, with batch 4. What the 3 "
        "batches before it held is not in it.",
    ]


def test_the_points_around_the_record_of_a_new_graph_are_passed_once():
    shop, hook = Shop(), CrashAt()
    crashed(shop, shop.first(WORDS[:6]), CrashAt())

    crashed(shop, shop.second(), hook)

    assert tuple(hook.seen[:2]) == GROWTH_POINTS[:2]
    assert set(hook.seen[2:]) <= set(BATCH_POINTS)


@stepped(9)
def test_a_crash_before_and_another_after_the_deploy_lose_and_double_nothing(step):
    """The old release crashes at each of its points, the new one at each of its first batches."""
    tried = 0
    for before in range(1, points_of_the_first() + 2, max(step, 4)):
        after = 0
        while True:
            after += max(step, 2)
            shop, hook = Shop(), CrashAt(after)
            crashed(shop, shop.first(), CrashAt(before))
            crashed(shop, shop.second(), hook)
            if not hook.all_fired or len(hook.seen) > 60:
                break
            run = shop.run(shop.second())
            run.finish()
            run.close()
            shop.check()
            tried += 1
    assert tried > (200 if step == 1 else 10)


def test_a_new_state_that_is_emptied_later_is_not_taken_for_a_new_one():
    shop = Shop()
    shop.run(shop.first(WORDS[:6])).finish()
    shop.run(shop.second()).finish()
    del _maps[shop.late.id]

    with pytest.raises(StateMismatchError, match="is empty, but 3 batches were committed to it"):
        shop.run(shop.second())


def test_a_new_state_whose_ledger_is_an_older_copy_is_found_out():
    shop = Shop()
    shop.run(shop.first(WORDS[:6])).finish()
    before = shop.ledger.document
    shop.run(shop.second()).finish()
    shop.ledger.document = before

    with pytest.raises(StateMismatchError, match="holds batch 6, but the coordination store is"):
        shop.run(shop.second())


def test_a_removed_state_is_refused_until_it_is_retired_and_keeps_what_it_has():
    shop = Shop()
    run = shop.run(shop.second())
    run.finish()
    run.close()
    kept = shop.held(shop.late)
    gone = [*WORDS, "a", "b"]

    with pytest.raises(ForeignStoreError, match=r"State state2 .*--retire state2"):
        shop.run(shop.first(gone), CONFIG.replace(retire=["more"]))
    for _ in range(2):  # and again, as a service that is started with the same options
        run = shop.run(shop.first(gone), CONFIG.replace(retire=["more", "state2"]))
        run.finish()
        run.close()

    assert shop.held(shop.late) == kept
    assert shop.held(shop.counts) == Counter(gone + MORE)


def test_a_state_may_be_added_before_another(tmp_path):
    def topology(*tables, words):
        made = TridentTopology("grows")
        stream = made.new_stream("words", rows(words)).group_by("word")
        for table in tables:
            factory = SQLiteState.opaque(tmp_path / "words.db", table=table)
            states[table] = stream.persistent_aggregate(factory, Count(), out="n")
        return made

    states = {}
    shop = Shop()
    for tables, words in [(("old",), "aab"), (("new", "old"), "aabbc"), (("old", "new"), "aabbca")]:
        for _ in range(2):
            run = shop.run(topology(*tables, words=list(words)))
            run.finish()
            run.close()

    assert states["old"].multi_get(["a", "b", "c"]) == [3, 2, 1]
    assert states["new"].multi_get(["a", "b", "c"]) == [1, 1, 1]


def test_a_new_file_spout_reads_its_files_from_the_beginning(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name}\n")

    def topology(*folders):
        made = TridentTopology("grows")
        streams = [made.new_stream(f, FileSpout(tmp_path / f, max_files=1)) for f in folders]
        whole = made.merge(*streams) if len(streams) > 1 else streams[0]
        whole.group_by("value").persistent_aggregate(state, Count(), out="n")
        return made

    state, shop = MemoryMapState(), Shop()
    for n, folders in enumerate([("first",), ("first",), ("first", "second"), ("first", "second")]):
        (tmp_path / "first" / f"{n}.txt").write_text("more\n")
        run = shop.run(topology(*folders))
        run.finish()
        run.close()

    reader = state.make_state(Config(), 0, 1)
    assert reader.multi_get([("first",), ("second",), ("more",)]) == [1, 1, 4]


@stepped(7)
def test_a_column_is_added_while_the_topology_lives_whatever_crashes(tmp_path, step):
    """A crash at each point of the first batches with the new column; opaque, in one table."""

    def topology(table, words, **columns):
        made = TridentTopology("grows")
        factory = SQLiteState.opaque(tmp_path / "words.db", table=table)
        stream = made.new_stream("words", FixedBatchSpout("word string, id bigint", SIZE, words))
        states[table] = stream.group_by("word").persistent_aggregate(factory, Columns(**columns))
        return made

    states = {}
    numbered = [(word, i) for i, word in enumerate(WORDS[:10])]
    at, done = 2 - step, False
    while not done:
        at += step
        shop, table, hook = Shop(), f"t{at}", CrashAt(at)
        crashed(shop, topology(table, numbered[:5], n=Count()), CrashAt(40))
        grown = {"n": Count(), "last": ("id", Max())}
        crashed(shop, topology(table, numbered, **grown), hook)
        done = not hook.all_fired or at > 40
        crashed(shop, topology(table, numbered, **grown), CrashAt())

        since = shop.graph["state state1"]["columns_since"]["last"]
        late = dict(numbered[SIZE * (since - 1) :])
        expected = {word: (n, late.get(word)) for word, n in Counter(WORDS[:10]).items()}
        assert dict(zip(expected, states[table].multi_get(list(expected)), strict=True)) == expected
    assert at > 20


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@stepped(9)
def test_the_partitions_of_a_state_change_whatever_crashes(tmp_path, step, kind):
    """A batch that was written in part over two partitions is written over five, and then three."""

    def topology(table, partitions):
        made = TridentTopology("grows")
        factory = getattr(SQLiteState, kind)(tmp_path / "words.db", table=table)
        stream = made.new_stream("words", rows(WORDS)).group_by("word")
        states[table] = stream.persistent_aggregate(factory, Count(), out="n")
        states[table].parallelism_hint(partitions)
        return made

    states = {}
    for at in range(1, points_of_the_first() + 1, max(step, 3)):
        shop, table = Shop(), f"t{at}"
        crashed(shop, topology(table, 2), CrashAt(at))
        crashed(shop, topology(table, 5), CrashAt(at))
        crashed(shop, topology(table, 3), CrashAt())

        assert shop.graph["state state1"]["partitions"] == 3
        expected = Counter(WORDS)
        assert states[table].multi_get(list(expected)) == list(expected.values())
