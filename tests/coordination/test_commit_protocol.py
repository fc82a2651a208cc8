"""The order of a commit is one order, whoever commits."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import waterspout
from waterspout import Config, faults
from waterspout.coordination import commit_protocol
from waterspout.coordination.commit_protocol import CommitProtocol, HeadKeeper, LedgerKeeper
from waterspout.coordination.rollback import roll_back
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import FencedError, ForeignStoreError, StateMismatchError, StoreError
from waterspout.state import MemoryMapState, StateKind
from waterspout.state._foreach_batch import QueryIdentity, next_writer
from waterspout.state._head import Writer
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.testing._batches import Add, Batches
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.trident import Count, TridentTopology
from waterspout.trident.runtime.states import open_state

FIRST = TransactionAttempt(1, 0)

IN_ORDER = [
    *("commit.before_record", "save: begun", "commit.after_record"),
    *("head.before", "head: claimed", "head.after"),
    *("write.before", "write", "write.after"),
    *("mark.before", "save: marked", "mark.after"),
    *("settle.before", "head: settled", "settle.after"),
]


class Recorder:
    """Hears of every kill point, every move of the head, every write and every saved ledger."""

    def __init__(self, factory):
        self.steps = []
        backing = factory.backing()
        move, put = backing.move_head, backing.fenced_put

        def move_head(expected, new):
            self.steps.append("head: settled" if new.committed else "head: claimed")
            move(expected, new)

        def fenced_put(*args):
            self.steps.append("write")
            put(*args)

        backing.move_head, backing.fenced_put = move_head, fenced_put
        faults.install(lambda name, context: self.steps.append(name))

    def saved(self, ledger):
        if ledger.begun:
            self.steps.append("save: begun")
        elif ledger.committed_attempt is not None and not ledger.emitted:
            self.steps.append("save: marked")

    @property
    def of_the_commit(self):
        """The steps of the protocol alone, without those of the loop around them."""
        return [step for step in self.steps if step in IN_ORDER]


class RecordingStore(MemoryCoordinationStore):
    def __init__(self, topology, recorder):
        super().__init__(topology)
        self.recorder = recorder

    def save(self, ledger):
        super().save(ledger)
        self.recorder.saved(ledger)


@pytest.fixture
def factory():
    return MemoryMapState.opaque()


@pytest.fixture
def recorder(factory):
    yield Recorder(factory)
    faults.install(None)


def live(factory):
    return factory.make_state(Config(), 0, 1)


def topology_of(factory):
    topology = TridentTopology("t")
    rows = topology.new_stream("rows", FixedBatchSpout("word string", 1, ["a"]))
    rows.group_by("word").persistent_aggregate(factory, Count(), out="n")
    return topology


def run_loop(factory, recorder):
    run = LocalRun(topology_of(factory), Config(), store=RecordingStore("t", recorder))
    run.finish()
    run.close()


def write_one(state):
    def write(claim):
        state.begin_commit(claim.attempt.txid, claim.attempt.attempt_id, claim.resolved)
        state.multi_update([("a",)], [Add(1)])
        state.commit(claim.attempt.txid)

    return write


def take_batch(state, batch_id, query="query"):
    """Do what the sink does with a batch; return whether it was written."""
    who = QueryIdentity("sink", query)
    keeper = HeadKeeper(who, batch_id)
    commits = CommitProtocol({"counts": state}, keeper)
    commits.verify()
    if keeper.claim is None:
        return False
    commits.enroll(next_writer(keeper.head, who, lease="lease"))
    commits.commit(keeper.claim.attempt, write_one(state))
    return True


def test_the_loop_takes_the_steps_in_order(factory, recorder):
    run_loop(factory, recorder)

    assert recorder.of_the_commit == IN_ORDER


def test_a_commit_does_not_fail_because_somebody_looks_on(factory, recorder):
    ledger = Ledger("t", {}).emit(FIRST, {})
    heard = []

    def raising(*step):
        heard.append(step)
        raise RuntimeError("the page is on fire")

    state = live(factory)
    commits = CommitProtocol({"counts": state}, LedgerKeeper(ledger, recorder.saved), tell=raising)
    commits.enroll(Writer("t", 1, ledger.history, "lease"))
    commits.commit(FIRST, write_one(state))

    assert recorder.of_the_commit == IN_ORDER
    steps = [("begun", None), ("claimed", "counts"), ("marked", None), ("settled", "counts")]
    assert heard == [(step, FIRST, state) for step, state in steps]


def test_the_test_kit_takes_the_same_steps(factory, recorder):
    Batches(live(factory), save=recorder.saved).commit({"a": 1})

    assert recorder.of_the_commit == IN_ORDER


def test_for_each_batch_takes_the_same_steps_but_saves_nothing_beside_the_head(factory, recorder):
    take_batch(live(factory), 0)

    assert recorder.of_the_commit == [s for s in IN_ORDER if not s.startswith("save")]


def test_the_loop_passes_every_kill_point_of_the_protocol(factory, recorder):
    named = set(re.findall(r'faults\.point\("([a-z_.]+)"', inspect.getsource(commit_protocol)))
    documented = set(re.findall(r"\[([a-z_]+\.[a-z_]+)\]", commit_protocol.__doc__))

    run_loop(factory, recorder)

    assert len(named) == 10
    assert named <= set(recorder.steps)
    # Only stores that show all rows of a batch at once pass these: tests/contracts/test_rows.py.
    documented -= set(faults.ROWS_POINTS)
    assert documented <= set(recorder.steps)
    assert named | documented <= set(faults.BATCH_POINTS)


def test_nobody_else_in_the_library_takes_a_step_of_the_protocol():
    step = re.compile(r'point\(\s*"(commit|head|mark|settle)\.|\bstate\.(claim|settle|enroll)\(')
    # Tasks open states of their own, and enroll these; Redis opens one to repair its record.
    may = {"coordination/commit_protocol.py", "trident/runtime/states.py", "state/redis/_map.py"}
    may |= {"transactional/_runtime.py"}
    root = Path(waterspout.__file__).parent

    modules = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}

    found = {
        name
        for name, text in modules.items()
        if step.search(text) and name != "faults.py" and not name.startswith("testing/")
    }
    assert found <= may


def test_a_rollback_reverses_the_mark_and_then_begins_and_claims(factory, recorder):
    shared = SharedMemory()
    run = LocalRun(topology_of(factory), Config(), store=MemoryCoordinationStore("t", shared))
    run.finish()
    run.close()
    plan = topology_of(factory).plan()
    states = {n: open_state(s, Config(), 0, None) for n, s in plan.states.items()}
    recorder.steps.clear()

    store = MemoryCoordinationStore("t", shared)
    roll_back("t", plan.fingerprint(), store, states, dict.fromkeys(states, StateKind.OPAQUE))

    assert recorder.of_the_commit == [
        *("mark.before", "mark.after"),
        *("commit.before_record", "commit.after_record"),
        *("head.before", "head: claimed", "head.after"),
    ]


def test_the_head_alone_says_that_a_batch_of_for_each_batch_is_there(factory):
    state = live(factory)

    assert [take_batch(state, 0), take_batch(state, 0), take_batch(state, 1)] == [True, False, True]
    assert state.multi_get([("a",)]) == [2]


def test_a_batch_of_another_checkpoint_is_refused_before_anything_is_written(factory):
    state = live(factory)
    take_batch(state, 0)
    before = state.read_head()

    with pytest.raises(StateMismatchError, match="another checkpoint"):
        take_batch(state, 1, query="another")

    assert state.read_head() == before


def test_a_mark_that_was_lost_leaves_the_batch_to_the_next_attempt(factory):
    state = live(factory)

    def save(ledger):
        if not ledger.emitted:
            raise StoreError("the coordination store is away")

    keeper = LedgerKeeper(Ledger("t"), save)
    commits = CommitProtocol({"counts": state}, keeper)
    commits.enroll(Writer("t", 1))
    keeper.emit(FIRST, {})
    with pytest.raises(StoreError):
        commits.commit(FIRST, write_one(state))

    assert keeper.ledger.begun == (0,)
    assert keeper.last_marked() is None
    assert state.multi_get([("a",)]) == [None]

    second = TransactionAttempt(1, 1)
    keeper = LedgerKeeper(keeper.ledger, lambda ledger: None)
    commits = CommitProtocol({"counts": state}, keeper)
    keeper.emit(second, {})
    commits.commit(second, write_one(state))
    assert state.multi_get([("a",)]) == [1]


def test_a_driver_that_died_before_settling_is_finished_by_the_next(factory):
    state = live(factory)
    batches = Batches(state)
    batches.lose({"a": 1})
    batches.mark()
    assert batches.values("a") == [None]

    commits = CommitProtocol({"counts": state}, LedgerKeeper(batches.ledger, lambda ledger: None))
    commits.verify()
    commits.enroll(Writer(batches.owner, 2))
    commits.recover()

    assert batches.values("a") == [1]


def test_a_store_that_is_away_keeps_none_of_the_others_from_being_settled():
    broken, sound = MemoryMapState.opaque(), MemoryMapState.opaque()
    states = {"broken": live(broken), "sound": live(sound)}
    keeper = LedgerKeeper(Ledger("t"), lambda ledger: None)
    commits = CommitProtocol(states, keeper)
    commits.enroll(Writer("t", 1))
    keeper.emit(FIRST, {})
    commits.claim(commits.begin(FIRST))
    commits.mark(FIRST)

    def away(expected, new):
        raise StoreError("away")

    move = broken.backing().move_head
    broken.backing().move_head = away
    with pytest.raises(StoreError, match="away"):
        commits.settle()

    assert [state.read_head().committed for state in states.values()] == [False, True]
    assert not keeper.ledger.settled
    commits.verify()  # one that was not told may say so

    broken.backing().move_head = move
    commits.settle()
    assert keeper.ledger.settled


def test_that_all_have_settled_is_noted_once_and_costs_no_save(factory):
    saved, noted = [], []
    keeper = LedgerKeeper(Ledger("t"), saved.append, noted.append)
    state = live(factory)
    commits = CommitProtocol({"counts": state}, keeper)
    commits.enroll(Writer("t", 1))
    keeper.emit(FIRST, {})

    commits.commit(FIRST, write_one(state))
    commits.settle()
    commits.recover()

    assert [ledger.settled for ledger in saved] == [False] * 3
    assert noted == [saved[-1].settle()]
    assert commits.begin(emitted(keeper, TransactionAttempt(2, 0))).settled
    assert saved[-1].settled


def emitted(keeper, attempt):
    keeper.emit(attempt, {})
    return attempt


def test_what_a_recovery_has_settled_is_noted(factory):
    batches = Batches(live(factory))
    batches.lose({"a": 1})
    batches.mark()
    noted = []
    keeper = LedgerKeeper(batches.ledger, lambda ledger: None, noted.append)
    commits = CommitProtocol({"": batches.state}, keeper)
    commits.enroll(Writer(batches.owner, 2))

    commits.recover()

    assert noted == [batches.ledger.settle()]


def test_if_one_state_refuses_a_claim_no_other_is_claimed(factory):
    ours, theirs = live(factory), live(MemoryMapState.opaque())
    Batches(theirs, owner="another").commit({"a": 1})
    keeper = LedgerKeeper(Ledger("t"), lambda ledger: None)
    commits = CommitProtocol({"ours": ours, "theirs": theirs}, keeper)
    commits.enroll(Writer("t", 1))
    keeper.emit(FIRST, {})

    with pytest.raises(ForeignStoreError, match="belongs to topology 'another'"):
        commits.claim(commits.begin(FIRST))

    assert ours.read_head() is None


def test_the_fence_shuts_out_whoever_did_not_claim(factory):
    batches = Batches(live(factory))
    batches.claim()
    late = Batches(live(factory), epoch=2, ledger=batches.ledger, attempt=batches.attempt)
    late.claim()

    with pytest.raises(FencedError):
        batches.write({"a": 1})
