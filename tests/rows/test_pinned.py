"""States that cannot take a lost attempt back: a batch that has begun to commit is given again."""

from __future__ import annotations

import pytest

from tests.rows.stores import PinnedState, PublishedState
from waterspout import Config, faults
from waterspout.coordination.graph_changes import compare
from waterspout.coordination.rollback import refuse_states_without_past
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ConfigError, FailedException
from waterspout.spouts._base import SpoutKind, is_pinned
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun, MemoryLog, SimulatedCrash
from waterspout.transactional._ledger import EmittedBatch, Ledger
from waterspout.trident import AppendRows, Count, TridentTopology, nondeterministic
from waterspout.trident.plan.verdicts import verdict_of

ROWS = [[(n,) for n in range(10)], [(n,) for n in range(100, 110)]]


class Log(MemoryLog):
    """Opaque: each attempt takes another number of rows."""

    def __init__(self, takes, **options):
        self.takes = list(takes)
        super().__init__("id bigint", ROWS, take=self._next, **options)

    def _next(self, partition):
        return self.takes.pop(0) if self.takes else 10


def topology(spout, state):
    made = TridentTopology("pins")
    stream = made.new_stream("log", spout)
    stream.partition_persist(state, AppendRows()).parallelism_hint(2)
    return made


def fail_at(point, *, crash=False, times=1):
    left = [times]

    def hook(name, context):
        if name == point and left[0]:
            left[0] -= 1
            raise SimulatedCrash(name) if crash else FailedException(name)

    return hook


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


@pytest.mark.parametrize("state", [PinnedState, PublishedState])
@pytest.mark.parametrize("point", ["processing", "head.after", "write.after"])
def test_a_replay_holds_the_same_rows_from_when_an_attempt_has_begun(state, point):
    recipe = state()
    # 3 and 2 rows for the first attempt, then 1 and 0: less than what may be there already.
    log = Log([3, 2, 1, 0])
    run = LocalRun(topology(log, recipe), Config(retry_backoff_millis=0))
    faults.install(fail_at(point))

    while run.loop.ledger.current == 1:
        run.step()

    first = run.loop.ledger.committed_metadata
    begun, pins = point != "processing", recipe.pins_batches
    ranges = [[0, 3], [0, 2]] if begun and pins else [[0, 1], [0, 0]]
    assert first["log"]["ranges"] == ranges
    run.finish()
    assert sorted(recipe.seen) == sorted(row for part in ROWS for row in part)


@pytest.mark.parametrize("point", ["commit.after_record", "write.after", "mark.before"])
def test_another_driver_gives_the_same_rows_too(point):
    recipe, shared = PinnedState(), SharedMemory()
    made = topology(Log([3, 2, 1, 1, 1, 1]), recipe)
    run = LocalRun(made, store=MemoryCoordinationStore("pins", shared))
    faults.install(fail_at(point, crash=True))
    with pytest.raises(SimulatedCrash):
        run.finish()

    again = LocalRun(made, store=MemoryCoordinationStore("pins", shared))
    while again.loop.ledger.current == 1:
        again.step()

    assert again.loop.ledger.committed_metadata["log"]["ranges"] == [[0, 3], [0, 2]]
    again.finish()
    assert sorted(recipe.seen) == sorted(row for part in ROWS for row in part)


def test_a_partition_that_is_away_is_waited_for():
    recipe = PinnedState()
    log = Log([3, 2])
    run = LocalRun(topology(log, recipe), Config(retry_backoff_millis=0))
    faults.install(fail_at("write.before"))
    while run.loop.ledger.current == 1:
        if run.loop.ledger.begun:
            log.disabled.add(1)  # from now on the spout would leave it out
        run.step()

    assert run.loop.ledger.committed_metadata["log"]["ranges"] == [[0, 3], [0, 2]]


def verdict(spout, state, build=lambda stream: stream):
    made = TridentTopology("pins")
    stream = build(made.new_stream("log", spout))
    stream.partition_persist(state, AppendRows())
    plan = made.plan()
    (update,) = plan.updates.values()
    found = verdict_of(plan, update)
    return found.exact, found.why


class Forgetful(MemoryLog):
    repeats = False


def log(kind=SpoutKind.OPAQUE, spout=MemoryLog):
    return spout("id bigint", ROWS, kind=kind)


def shaky(stream):
    return stream.each("id", nondeterministic(lambda number: number), "n bigint")


def aside(stream):
    return stream.each("id", lambda number: number, "n bigint", on_error="dead_letter")


def test_behind_an_opaque_spout_it_is_exact():
    exact, why = verdict(log(), PinnedState())

    assert exact
    assert why == (
        "spout 'log' is opaque; once a batch has begun to commit, every attempt at it is given "
        "the same rows, and the state skips those that it has"
    )
    assert verdict(log(SpoutKind.TRANSACTIONAL), PinnedState())[0]


@pytest.mark.parametrize(
    ("spout", "build", "words"),
    [
        (log(spout=Forgetful), lambda s: s, "does not give the same batch again"),
        (log(SpoutKind.NON_TRANSACTIONAL), lambda s: s, "spout 'log' is non-transactional"),
        (log(), shaky, "is declared not deterministic"),
        (log(), aside, "puts bad rows aside"),
        (log(SpoutKind.TRANSACTIONAL), shaky, "is declared not deterministic"),
    ],
    ids=["forgetful", "non-transactional", "shaky", "aside", "shaky, transactional"],
)
def test_behind_what_varies_otherwise_it_is_not(spout, build, words):
    exact, why = verdict(spout, PinnedState(), build)

    assert not exact
    assert words in why
    assert "cannot take back what a lost attempt has written" in why
    if spout.kind is not SpoutKind.NON_TRANSACTIONAL:
        assert verdict(spout, PublishedState(), build)[0], "an opaque state can"


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
def test_which_spouts_are_pinned(pins, repeats):
    def pinned(kind):
        spout = log(kind)
        spout.repeats = repeats
        return is_pinned(spout, pins_batches=pins)

    assert pinned(SpoutKind.TRANSACTIONAL)
    assert pinned(SpoutKind.OPAQUE) == (pins and repeats)
    assert not pinned(SpoutKind.NON_TRANSACTIONAL)


def test_its_partitions_stay_while_a_batch_is_in_the_middle():
    def graph(partitions):
        made = topology(log(), PinnedState(id="one"))
        (name,) = made._states
        made.set_partitions(name, partitions)
        return made.plan().fingerprint()

    begun = Ledger("pins", graph(2), emitted={1: EmittedBatch(0, {})}, begun=(0,))

    assert not compare(Ledger("pins", graph(2)), graph(4)).refused
    (refused,) = compare(begun, graph(4)).refused
    assert "knows by partition which rows of it are there" in refused.text


def test_a_batch_is_not_taken_back():
    with pytest.raises(ConfigError, match="does not keep what was there before a batch"):
        refuse_states_without_past({"state1": PinnedState().kind}, {})


def test_other_states_of_the_topology_are_pinned_with_it():
    made = TridentTopology("both")
    stream = made.new_stream("log", log())
    counts = stream.persistent_aggregate(MemoryMapState.opaque(), Count(), out="n")
    kept = PinnedState()
    stream.partition_persist(kept, AppendRows())
    faults.install(fail_at("write.after", times=3))

    LocalRun(made, Config(retry_backoff_millis=0)).finish()

    assert counts.get() == len(kept.seen) == 20


def test_a_batch_of_fixed_rows_is_the_same_anyway():
    kept = PinnedState()
    faults.install(fail_at("write.after", times=2))

    LocalRun(topology(FixedBatchSpout("id bigint", 3, ROWS[0]), kept)).finish()

    assert sorted(kept.seen) == ROWS[0]
