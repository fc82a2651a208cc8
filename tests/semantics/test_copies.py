"""A state that comes back from the middle of the last marked batch: a copy, a replica."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import pytest
import redis

from tests.semantics import copies_child
from tests.semantics.copies_child import WORDS
from tests.services.fixtures import provided
from tests.services.servers import RedisServer
from tests.soaking import soaked
from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.rollback import roll_back
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ConfigError, StateMismatchError
from waterspout.state import MemoryMapState, StateKind
from waterspout.state.redis import RedisState
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash
from waterspout.trident import Count, TridentTopology
from waterspout.trident.runtime.states import open_headed_states

MIDDLE = "says that batch 2 is being written, though it has already answered"


def killed_at(folder: Path, point: str, txid: int) -> None:
    """Run the child until it dies by its own hand."""
    child = Path(copies_child.__file__)
    done = subprocess.run([sys.executable, str(child), str(folder), point, str(txid)], timeout=60)
    assert done.returncode == -signal.SIGKILL


def restore(folder: Path) -> None:
    for file in folder.glob("s.db*"):
        file.unlink()
    shutil.copy(folder / "copy.db", folder / "s.db")


def counts(folder: Path) -> tuple[dict[str, int], int]:
    with sqlite3.connect(folder / "s.db") as db:
        words = dict(db.execute("SELECT word, n FROM words"))
    with sqlite3.connect(folder / "total.db") as db:
        return words, db.execute("SELECT n FROM total").fetchone()[0]


def taken_back(topology: TridentTopology, store) -> int:
    plan = topology.plan()
    states = open_headed_states(plan, Config())
    kinds = dict.fromkeys(states, StateKind.OPAQUE)
    return roll_back(plan.name, plan.fingerprint(), store, states, kinds)


EXACT = (dict.fromkeys(WORDS, 3), 24)


# Right after the settling; before batch 3 is recorded; when it is, which stores the note for good.
@pytest.mark.parametrize(
    ("point", "txid"),
    [("cleanup", 2), soaked("metadata.before", 3), soaked("metadata.after", 3)],
)
def test_a_copy_from_the_middle_of_the_last_batch_is_refused_and_can_be_taken_back(
    tmp_path, point, txid
):
    killed_at(tmp_path, point, txid)
    restore(tmp_path)

    for _ in range(2):
        with pytest.raises(StateMismatchError, match=MIDDLE):
            copies_child.run(tmp_path)
    store = EmbeddedStore(tmp_path / "home", "copied")
    assert taken_back(copies_child.topology_of(tmp_path), store) == 2
    copies_child.run(tmp_path)

    assert counts(tmp_path) == EXACT


# Around the settling and the note of it: what is found is what a crash may leave.
@pytest.mark.parametrize(
    ("point", "txid"),
    [soaked("mark.after", 2), ("settle.after", 2), soaked("cleanup", 2)],
)
def test_the_store_itself_is_never_refused(tmp_path, point, txid):
    killed_at(tmp_path, point, txid)

    copies_child.run(tmp_path)

    assert counts(tmp_path) == EXACT


def test_a_copy_is_refused_after_the_next_driver_has_settled(tmp_path):
    killed_at(tmp_path, "mark.after", 2)
    faults.install(stop_at("metadata.before", 3))
    with pytest.raises(SimulatedCrash):
        copies_child.run(tmp_path)
    faults.install(None)
    restore(tmp_path)

    with pytest.raises(StateMismatchError, match=MIDDLE):
        copies_child.run(tmp_path)


def stop_at(point, txid):
    def hook(name, context):
        if (name, context.get("txid")) == (point, txid):
            raise SimulatedCrash(point)

    return hook


class World:
    """Two states in memory; that of the words can be brought back as it was in batch 2."""

    def __init__(self):
        self.shared = SharedMemory()
        self.total, self.words = MemoryMapState.opaque(), MemoryMapState.opaque()
        self.middle = None

    def topology(self):
        topology = TridentTopology("copied")
        words = topology.new_stream("words", FixedBatchSpout("word string", 8, WORDS * 3))
        words.persistent_aggregate(self.total, Count(), out="n")
        counted = words.group_by("word").persistent_aggregate(self.words, Count(), out="n")
        counted.parallelism_hint(4)
        return topology

    def store(self):
        return MemoryCoordinationStore("copied", self.shared)

    def run(self):
        run = LocalRun(self.topology(), Config(max_retries=2), store=self.store())
        try:
            run.finish()
        finally:
            run.close()

    def fail_over(self, name, context):
        """Take over, under a driver that goes on, without the last writes of batch 2."""
        backing = self.words.backing()
        written = sum(record.txid == 2 for _, record in backing.items())
        if name == "write.after" and written and self.middle is None:
            self.middle = deepcopy(backing._records), backing._head
        if (name, context.get("txid")) == ("cleanup", 2):
            backing._records, backing._head = self.middle

    def values(self):
        read = [state.make_state(Config(), 0, 1) for state in (self.words, self.total)]
        return read[0].multi_get([(word,) for word in WORDS]), read[1].multi_get([()])[0]


@pytest.fixture
def world():
    yield World()
    faults.install(None)


def test_a_replica_that_takes_over_under_a_live_driver_is_refused_before_anything_is_claimed(world):
    faults.install(world.fail_over)

    with pytest.raises(StateMismatchError, match=MIDDLE):
        world.run()

    faults.install(None)
    heads = [state.backing().read_head() for state in (world.total, world.words)]
    assert [(head.stamp.txid, head.committed) for head in heads] == [(2, True), (2, False)]
    with pytest.raises(StateMismatchError, match=MIDDLE):
        world.run()
    assert taken_back(world.topology(), world.store()) == 2
    world.run()
    assert world.values() == ([3] * 8, 24)


def test_a_batch_is_not_taken_back_if_the_next_one_may_have_written(world):
    faults.install(stop_at("write.after", 3))
    with pytest.raises(SimulatedCrash):
        world.run()
    faults.install(None)

    with pytest.raises(ConfigError, match="batch 3 has begun to commit over it"):
        taken_back(world.topology(), world.store())

    world.run()
    assert world.values() == ([3] * 8, 24)


@pytest.mark.soak
@pytest.mark.services
def test_a_redis_replica_that_took_over_without_the_last_writes_is_refused(tmp_path):
    at_once = {"repl_diskless_sync_delay": "0"}
    with provided("redis", lambda: RedisServer(**at_once)) as primary:
        here = f"{primary.host} {primary.port}"
        with provided("redis", lambda: RedisServer(replicaof=here)) as replica:
            fail_over_and_run(tmp_path, primary, replica)


def fail_over_and_run(folder, primary, replica):
    def topology(server):
        topology = TridentTopology("copied")
        words = topology.new_stream("words", FixedBatchSpout("word string", 8, WORDS * 3))
        counts = RedisState.opaque(server.url, prefix="words")
        words.group_by("word").persistent_aggregate(counts, Count(), out="n").parallelism_hint(4)
        return topology

    def run(server):
        it = LocalRun(topology(server), store=EmbeddedStore(folder / "home", "copied"))
        try:
            it.finish()
        finally:
            it.close()

    with redis.Redis.from_url(primary.url) as first, redis.Redis.from_url(replica.url) as second:
        deadline = time.monotonic() + 20
        while second.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline
        writes = []

        def hook(name, context):
            if (name, context.get("txid")) == ("write.after", 2):
                writes.append(name)
                if len(writes) == 2:
                    assert first.wait(1, 10_000) == 1
                    second.replicaof("NO", "ONE")
            if (name, context.get("txid")) == ("cleanup", 2):
                raise SimulatedCrash(name)

        faults.install(hook)
        try:
            with pytest.raises(SimulatedCrash):
                run(primary)
        finally:
            faults.install(None)

        with pytest.raises(StateMismatchError, match=MIDDLE):
            run(replica)
        store = EmbeddedStore(folder / "home", "copied")
        assert taken_back(topology(replica), store) == 2
        run(replica)
        keys = [f'{{words:0}}:k:["{word}"]' for word in WORDS]
        assert second.mget(keys) == [b"[3,0,3,2]"] * 8
