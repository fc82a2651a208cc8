"""A transactional topology that ends in the middle and is run again, on either store."""

from __future__ import annotations

import pytest

from tests.transactional.test_emitters import (
    BROKERS,
    CALLS,
    Opaque,
    OpaquePinning,
    Partitioned,
    Pinning,
    Whole,
    broker,
)
from waterspout import Config, FailedException
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.zookeeper import ZooKeeperStore
from waterspout.errors import ForeignStoreError, LeaseHeldError
from waterspout.testing import LocalBatches
from waterspout.transactional import BatchBolt, Committer, TransactionalTopologyBuilder

WRITTEN: dict[str, list] = {}


@pytest.fixture(autouse=True)
def _clean():
    CALLS.clear()
    WRITTEN.clear()


@pytest.fixture(params=["embedded", "zookeeper"])
def stores(request, tmp_path):
    """Make the store of a topology, as a new process would."""
    made = []
    if request.param == "embedded":

        def make(topology):
            made.append(EmbeddedStore(tmp_path / "home", topology))
            return made[-1]

    else:
        server = request.getfixturevalue("zookeeper_server")
        root = server.fresh_root()

        def make(topology):
            made.append(ZooKeeperStore([server.address], topology, root=root, session_s=2))
            return made[-1]

    yield make
    for store in made:
        store.release()


class Write(BatchBolt, Committer):
    """Notes what was committed, by attempt; fails what it is told to."""

    output_fields = ("tx",)

    def __init__(self, name, fails=()):
        self.name = name
        self.fails = fails

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.ns = []

    def execute(self, tuple):
        self.ns.append(tuple["n"])

    def finish_batch(self):
        resolved = dict(self.context.resolved)
        WRITTEN.setdefault(self.name, []).append((str(self.id), sorted(self.ns), resolved))
        if str(self.id) in self.fails:
            raise FailedException("after its write")


def start(stores, spout, name="t", fails=(), committer=None, **conf):
    builder = TransactionalTopologyBuilder(name, "spout", spout)
    builder.set_bolt("write", committer or Write(name, fails)).global_grouping("spout")
    return LocalBatches(builder.build_topology(), Config(**conf), store=stores(name))


def run_until(run, committed):
    while run.loop.ledger.current <= committed:
        run.step()


def test_a_restart_goes_on_at_the_next_txid_and_reads_nothing_again(stores):
    broker(range(10))
    spout = Partitioned("b", Pinning)
    first = start(stores, spout)
    run_until(first, committed=2)
    first.close()
    read = len(CALLS)

    second = start(stores, spout)
    second.finish()
    second.close()

    assert [(a, ns) for a, ns, _ in WRITTEN["t"]] == [
        ("1:0", [0, 1]), ("2:0", [2, 3]), ("3:1", [4, 5]), ("4:0", [6, 7]), ("5:0", [8, 9]),
    ]  # fmt: skip
    again = [call for call in CALLS[read:] if call[0] == "emit" and call[3][0] < 4]
    assert again == []


def test_a_batch_that_was_emitted_is_replayed_with_its_stored_metadata(stores):
    source = broker(range(6))
    spout = Partitioned("b", Pinning)
    first = start(stores, spout, max_spout_pending=2)
    run_until(first, committed=1)
    first.loop.step()
    assert sorted(first.loop.ledger.emitted) == [2, 3]
    first.close()
    source.take = 1

    second = start(stores, spout, max_spout_pending=2)
    second.finish()
    second.close()

    assert [(a, ns) for a, ns, _ in WRITTEN["t"]] == [
        ("1:0", [0, 1]), ("2:1", [2, 3]), ("3:1", [4, 5]),
    ]  # fmt: skip


def test_an_opaque_batch_is_planned_anew_from_where_the_last_one_ended(stores):
    source = broker(range(5))
    spout = Opaque("b", OpaquePinning)
    first = start(stores, spout, max_spout_pending=2)
    run_until(first, committed=1)
    first.loop.step()
    first.close()
    source.take = 1

    second = start(stores, spout, max_spout_pending=2)
    second.finish()
    second.close()

    assert [(a, ns) for a, ns, _ in WRITTEN["t"]] == [
        ("1:0", [0, 1]), ("2:1", [2]), ("3:1", [3]), ("4:0", [4]),
    ]  # fmt: skip


def test_committers_hear_which_attempts_were_lost_also_after_a_restart(stores):
    source = broker(range(5))
    spout = Opaque("b", OpaquePinning)
    first = start(stores, spout, fails=["1:0", "2:0"])
    while len(WRITTEN.get("t", [])) < 3:
        first.step()  # 1:0 failed, 1:1 committed, 2:0 has written and the driver ends
    first.close()
    source.take = 1

    second = start(stores, spout)
    second.finish()
    second.close()

    assert WRITTEN["t"] == [
        ("1:0", [0, 1], {}),
        ("1:1", [0, 1], {}),
        ("2:0", [2, 3], {1: 1}),
        ("2:1", [2], {1: 1}),
        ("3:0", [3], {1: 1, 2: 1}),
        ("4:0", [4], {1: 1, 2: 1}),
    ]


def test_a_transaction_is_initialized_once_over_restarts(stores):
    broker(range(6))
    for committed in (1, 2):
        run = start(stores, Whole("b"), max_spout_pending=2)
        run_until(run, committed)
        run.close()
    last = start(stores, Whole("b"), max_spout_pending=2)
    last.finish()
    last.close()

    assert [call[1] for call in CALLS if call[0] == "initialize"] == [1, 2, 3]
    assert [ns for _, ns, _ in WRITTEN["t"]] == [[0, 1], [2, 3], [4, 5]]


class OtherWrite(Write):
    pass


@pytest.mark.parametrize(
    ("spout", "committer", "named"),
    [
        (Partitioned, OtherWrite, "Committer write had kind Write and has OtherWrite now"),
        (Opaque, Write, "Spout spout had kind Partitioned and has Opaque now"),
    ],
    ids=["committer", "spout"],
)
def test_the_same_id_with_a_changed_graph_is_refused(stores, spout, committer, named):
    broker(range(4))
    first = start(stores, Partitioned("b", Pinning))
    first.finish()
    first.close()
    before = first.loop.ledger

    with pytest.raises(ForeignStoreError, match=f"topology 't' has changed .*{named}"):
        start(stores, spout("b", OpaquePinning), committer=committer("t"))

    assert stores("t").peek() == before
    assert "A topology of another name begins anew" in _refusal(stores, spout, committer)


def _refusal(stores, spout, committer):
    with pytest.raises(ForeignStoreError) as refused:
        start(stores, spout("b", OpaquePinning), committer=committer("t"))
    return str(refused.value)


def test_two_topologies_in_one_store_do_not_touch_each_other(stores):
    BROKERS["one"], BROKERS["two"] = broker(range(5)), broker(range(100, 103))
    one = start(stores, Partitioned("one", Pinning), "one")
    two = start(stores, Partitioned("two", Pinning), "two")
    for _ in range(200):
        one.step()
        two.step()
    ends = {run.name: run.loop.ledger.current for run in (one, two)}
    one.close()
    two.close()

    assert ends == {"one": 4, "two": 3}
    assert [ns for _, ns, _ in WRITTEN["one"]] == [[0, 1], [2, 3], [4]]
    assert [ns for _, ns, _ in WRITTEN["two"]] == [[100, 101], [102]]
    assert {name: stores(name).peek().current for name in ("one", "two")} == ends


def test_a_second_driver_is_refused_while_the_first_one_lives(stores):
    broker(range(4))
    first = start(stores, Partitioned("b", Pinning))
    run_until(first, committed=1)

    with pytest.raises(LeaseHeldError):
        start(stores, Partitioned("b", Pinning))
    first.finish()
    first.close()

    assert [a for a, _, _ in WRITTEN["t"]] == ["1:0", "2:0"]
