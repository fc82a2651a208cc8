"""Readers beside the batches: every answer is what committed batches gave (I14).

Batches are replayed with other contents, the driver crashes anywhere, and requests come anywhere:
at every kill point of a commit, and a step of the run between any two reads of a request.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.soaking import repeated
from waterspout import Config, FailedException, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.drpc._calls import DrpcErrorKind, DrpcRequest
from waterspout.drpc._functions import visible
from waterspout.spouts._base import SpoutKind
from waterspout.state import MemoryMapState, StateKind
from waterspout.state._head import Claim, Writer
from waterspout.state._kinds import OpaqueMap, make_map
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, MemoryLog, SimulatedCrash
from waterspout.testing._faulty import FaultyMap
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.trident import Count, MapGet, SnapshotGet, Split, TridentTopology

WORDS = "abc"
CONFIG = Config(max_spout_pending=2, max_retries=1000, retry_backoff_millis=0)
_ids = itertools.count()


@dataclass(frozen=True)
class Interrupted(MemoryMapState):
    """A memory state whose readers are interrupted by what happens meanwhile."""

    world: World = field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def make_state(self, conf, partition_index, num_partitions):
        backing = FaultyMap(self.backing())
        backing.before_call = self.world.interrupt
        return make_map(self.kind, backing, name="m", partition=partition_index, types=self.types)


@dataclass
class World:
    """What outlives a crash, and what has happened."""

    random: Random
    kind: StateKind
    run: LocalRun | None = None
    store: SharedMemory = field(default_factory=SharedMemory)
    committed: dict[int, Counter] = field(default_factory=dict)
    reading: bool = False
    stepping: bool = False
    answered: int = 0
    crashes: int = 0

    def __post_init__(self):
        spout = {StateKind.OPAQUE: SpoutKind.OPAQUE}.get(self.kind, SpoutKind.TRANSACTIONAL)
        self.rows = [[(self.random.choice(WORDS),) for _ in range(12)] for _ in range(2)]
        take = lambda partition: self.random.randint(0, 2)  # noqa: E731
        self.log = MemoryLog("word string", self.rows, kind=spout, take=take)
        names = [f"reads{next(_ids)}" for _ in range(2)]
        self.counts, self.total = (Interrupted(self.kind, name, world=self) for name in names)

    def start(self):
        topology = TridentTopology("reads")
        words = topology.new_stream("log", self.log)
        counts = words.group_by("word").persistent_aggregate(self.counts, Count(), "count")
        total = words.persistent_aggregate(self.total, Count(), "n")
        asked = topology.new_drpc_stream("counts").each("args", Split(), "word")
        asked.state_query(counts.parallelism_hint(2), "word", MapGet(), "count").project("count")
        topology.new_drpc_stream("total").state_query(total, SnapshotGet(), "n").project("n")
        store = MemoryCoordinationStore("reads", self.store)
        self.run = LocalRun(topology, CONFIG, store=store)

    def look(self):
        """Note what the batch marked last has held."""
        ledger = self.peek()
        if ledger.committed_metadata is not None:
            ranges = ledger.committed_metadata["log"]["ranges"]
            held = [row[0] for p, (a, b) in enumerate(ranges) for row in self.rows[p][a:b]]
            self.committed.setdefault(ledger.current - 1, Counter(held))

    def peek(self):
        return MemoryCoordinationStore("reads", self.store).peek() or Ledger("reads")

    def after(self, txid):
        """Return the counts that the batches up to this one give."""
        return sum((self.committed[t] for t in range(1, txid + 1)), Counter())

    def step(self):
        self.stepping = True
        try:
            self.run.step(lambda n: self.random.randrange(n))
        finally:
            self.stepping = False

    def interrupt(self):
        if self.reading and not self.stepping and self.random.random() < 0.4:
            self.step()

    def pass_point(self, name, context):
        if name == "mark.after":
            self.look()
        if self.run is not None and self.random.random() < 0.3:
            self.ask()
        chance = self.random.random()
        if chance < 0.03:
            raise SimulatedCrash(name)
        if chance < 0.06 and name in ("processing", "write.before", "write.after"):
            raise FailedException(name)

    def ask(self):
        if self.reading:
            return
        self.reading = True
        try:
            functions = self.run.functions
            first = self.peek().current - 1
            (counts,) = functions["counts"].answer([DrpcRequest("1", " ".join(WORDS))])
            (total,) = functions["total"].answer([DrpcRequest("2", "")])
            last = self.peek().current - 1
        finally:
            self.reading = False
        for answer in (counts, total):
            if answer.error is not None:
                assert self.kind is StateKind.TRANSACTIONAL
                assert "is being committed" in answer.error.message
                continue
            self.answered += 1
            assert first - 1 <= answer.txid <= last
            may = [self.after(t) for t in range(answer.txid, last + 1)]
            if answer is counts:
                found = [row[0] for row in answer.tuples]
                for word, count in zip(WORDS, found, strict=True):
                    assert (count or 0) in {model[word] for model in may}, (word, answer)
            else:
                assert (answer.tuples[0][0] or 0) in {m.total() for m in may}, answer


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
@repeated(5, 50)
def test_every_answer_is_a_value_of_committed_batches(kind, count):
    # A schedule is one long draw: to shrink it takes minutes, and makes it no clearer.
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(random=st.randoms(use_true_random=False))
    def simulated(random):
        simulate(World(random, kind), random)

    simulated()


def simulate(world, random):
    faults.install(world.pass_point)
    try:
        for _ in range(60):
            try:
                if world.run is None:
                    world.start()
                world.step()
                if random.random() < 0.3:
                    world.ask()
            except SimulatedCrash:
                world.crashes += 1
                world.run = None
                world.look()
    finally:
        faults.install(None)


def test_a_batch_shows_when_its_states_were_told_of_it():
    ledger = Ledger("t")
    assert visible(ledger) == 0
    for txid in (1, 2):
        ledger = ledger.emit(TransactionAttempt(txid, 0), {"s": txid})
        marked = ledger.begin(TransactionAttempt(txid, 0)).commit(TransactionAttempt(txid, 0))
        assert visible(marked) == txid - 1
        ledger = marked.settle()
        assert visible(ledger) == txid


def transactional():
    topology = TridentTopology("waits")
    words = topology.new_stream("log", MemoryLog("word string", [[("a",)]], take=1))
    state = words.group_by("word").persistent_aggregate(
        MemoryMapState.transactional().named(f"waits{next(_ids)}"), Count(), "count"
    )
    topology.new_drpc_stream("f").state_query(state, "args", MapGet(), "count").project("count")
    return LocalRun(topology)


def test_a_reader_of_a_transactional_state_waits_for_the_commit():
    run, waited = transactional(), []

    def ask_when_written(name, context):
        if name == "write.after" and not waited:
            (answer,) = run.functions["f"].answer([DrpcRequest("1", "a")])
            waited.append(answer)

    faults.install(ask_when_written)
    run.finish()

    # In this process nobody drives the run while a request waits, so that the wait is an error.
    assert waited[0].error.kind is DrpcErrorKind.FAILED
    assert "batch 1 is being committed to memory state waits" in waited[0].error.message
    assert run.execute("f", "a") == [[1]]


def test_the_value_that_was_waited_for_is_the_one_that_was_read():
    run = transactional()
    head, pauses = {}, []
    state = run._states["state1"]

    def ask_when_written(name, context):
        if name != "write.after" or pauses:
            return
        reader = run.plan.states["state1"].factory.make_state(Config(), 0, 1)

        def pause(why):
            pauses.append(why)
            state.settle(1, 0)  # as the driver does, on its own thread

        reader.wait_for_commits(pause)
        head["found"] = reader.multi_get([("a",)])
        head["again"] = reader.multi_get([("a",)])

    faults.install(ask_when_written)
    run.finish()

    assert head == {"found": [1], "again": [1]}
    assert len(pauses) == 1


def test_a_reader_that_is_overtaken_takes_no_value_of_a_lost_attempt(tmp_path):
    state = SQLiteState.opaque(tmp_path / "s.db", table="t").make_state(Config(), 0, 1)
    state.enroll(Writer("t", 1))

    def attempt(txid, number, *values, begun=(), committed=0):
        before = committed if txid > 1 else None
        claim = Claim(TransactionAttempt(txid, number), before, begun=(*begun, number))
        state.claim(claim)
        state.begin_commit(txid, number)
        state.multi_put([("a",)] * len(values), values)
        state.commit(txid)

    def overtake():
        attempt(2, 1, begun=(0,))  # without the key: what attempt 0 has written is taken back
        state.settle(2, 1)
        attempt(3, 0, committed=1)

    attempt(1, 0, 1)
    state.settle(1, 0)
    attempt(2, 0, 5)
    between, calls = FaultyMap(state._backing), []

    def count():
        calls.append(None)
        if len(calls) == 2:  # head and records are read, in this order: between the two
            overtake()

    between.before_call = count
    assert OpaqueMap(between).multi_get([("a",)]) == [1]
    assert len(calls) == 2
