"""The list of files that were read: tied to the ledger, so that no file is counted twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.semantics.test_crash_points import CrashAt
from tests.soaking import stepped
from tests.trident.support import put, wait_for
from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.rollback import roll_back
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import DamagedStoreError, ForeignStoreError, SourceError
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import BatchPlanner, SpoutContext
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash
from waterspout.trident import Count, TridentTopology
from waterspout.trident.runtime.states import open_state


class World:
    """A count of lines over a directory, with everything on disk below one folder."""

    def __init__(self, path: Path) -> None:
        self.source, self.home = path / "in", path / "home"
        self.source.mkdir(parents=True)
        self.counts = SQLiteState.opaque(path / "counts.db", table="counts")
        self.config = Config(home=str(self.home), max_spout_pending=2, max_retries=0)
        self.list = self.home / "files" / "files-lines.db"
        self.aside = path / "aside"

    def put(self, name: str, age: int) -> None:
        """Add a file with a line `all` and one of its own; a small age is an old file."""
        put(self.source / name, f"all\n{name}\n")
        os.utime(self.source / name, ns=(10**18 + age, 10**18 + age))

    def topology(self) -> TridentTopology:
        topology = TridentTopology("files")
        lines = topology.new_stream("lines", FileSpout(self.source, max_files=1))
        lines.group_by("value").persistent_aggregate(self.counts, Count(), out="n")
        return topology

    def store(self) -> EmbeddedStore:
        return EmbeddedStore(self.home, "files", lease_s=0, clock=lambda: 1e9, durable=False)

    def start(self) -> LocalRun:
        return LocalRun(self.topology(), self.config, store=self.store())

    def run(self) -> dict[str, int]:
        """Run to the end; return what is counted then."""
        run = self.start()
        try:
            run.finish()
        finally:
            run.close()
        return self.counted()

    def counted(self) -> dict[str, int]:
        with closing(self._opened()) as state:
            return {key[0]: n for chunk in state.scan() for key, n in chunk}

    def roll_back(self) -> None:
        plan = self.topology().plan(self.config)
        ((name, spec),) = plan.states.items()
        states, kinds = {name: self._opened()}, {name: spec.factory.kind}
        roll_back("files", plan.fingerprint(), self.store(), states, kinds)

    def _opened(self) -> Any:
        (spec,) = self.topology().plan(self.config).states.values()
        return open_state(spec, self.config, 0, None)

    def change_list(self, statement: str) -> None:
        with closing(sqlite3.connect(self.list)) as db, db:
            db.execute(statement)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three files were read, one a batch; of the list there is a copy from after the first."""
    made = World(tmp_path)
    made.put("1", 1)
    made.run()
    shutil.copy(made.list, made.aside)
    made.put("2", 2)
    made.put("3", 3)
    assert made.run() == {"all": 3, "1": 1, "2": 1, "3": 1}
    return made


LOSSES = {
    "deleted": lambda world: world.list.unlink(),
    "truncated": lambda world: world.list.write_bytes(b""),
    "emptied": lambda world: world.change_list("DELETE FROM seen"),
    "one file gone": lambda world: world.change_list("DELETE FROM seen WHERE txid = 2"),
    "another file": lambda world: world.change_list(
        "UPDATE seen SET path = '/tmp/x' WHERE txid = 2"
    ),
    "restored from an older copy": lambda world: shutil.copy(world.aside, world.list),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_list_is_made_anew_where_the_files_prove_it(world, loss, caplog):
    LOSSES[loss](world)
    world.put("4", 4)

    assert world.run() == {"all": 4, "1": 1, "2": 1, "3": 1, "4": 1}

    assert "was made anew: 3 files were read" in caplog.text
    world.put("5", 5)
    assert world.run() == {"all": 5, "1": 1, "2": 1, "3": 1, "4": 1, "5": 1}
    assert caplog.text.count("made anew") == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_list_stops_the_run_where_nothing_proves_it(world, loss):
    LOSSES[loss](world)
    world.put("0", 0)  # came later, looks older

    for _ in range(2):
        with pytest.raises(DamagedStoreError) as refused:
            world.run()

        assert str(refused.value).startswith(
            f"{world.list} is not the list that goes with the ledger: 3 files were read, and it "
        )
        assert "Put back the list, or the whole folder" in str(refused.value)
        assert world.counted() == {"all": 3, "1": 1, "2": 1, "3": 1}

    # What the message says to do where there is no copy.
    os.rename(world.source / "0", world.aside)
    world.list.unlink(missing_ok=True)
    assert world.run() == {"all": 3, "1": 1, "2": 1, "3": 1}
    os.rename(world.aside, world.source / "0")
    assert world.run() == {"all": 4, "0": 1, "1": 1, "2": 1, "3": 1}


def test_a_file_that_was_read_and_is_gone_needs_the_list(world):
    (world.source / "2").unlink()
    world.put("4", 4)
    assert world.run() == {"all": 4, "1": 1, "2": 1, "3": 1, "4": 1}
    world.list.unlink()

    with pytest.raises(DamagedStoreError, match="4 files were read, and it names 1"):
        world.run()


def test_a_copy_of_the_one_file_is_the_whole_list_while_the_run_goes_on(world):
    run = world.start()
    run.finish()
    beside = {path.name for path in world.list.parent.glob("files-*")}
    shutil.copy(world.list, world.aside)
    run.close()
    world.list.unlink()
    shutil.copy(world.aside, world.list)
    world.put("0", 0)

    assert world.run() == {"all": 4, "0": 1, "1": 1, "2": 1, "3": 1}
    assert beside == {"files-lines.db"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"this is no database, however long one looks at it" * 40, DamagedStoreError),
        (None, ForeignStoreError),
    ],
)
def test_garbage_for_a_list_is_named_with_the_remedy(world, content, error):
    if content is None:
        world.list.unlink()
        world.change_list("CREATE TABLE something_else (a)")
    else:
        world.list.write_bytes(content)

    with pytest.raises(error) as refused:
        world.run()

    assert str(world.list) in str(refused.value)
    assert "restore it from a copy, or remove it: it is made anew" in str(refused.value)
    world.list.unlink()
    assert world.run() == {"all": 3, "1": 1, "2": 1, "3": 1}


def test_a_list_that_is_emptied_while_the_run_goes_on_stops_it(world):
    run = world.start()
    run.finish()
    world.change_list("DELETE FROM seen")
    world.put("4", 4)

    with pytest.raises(DamagedStoreError, match="3 files were read, and it names 0"):
        wait_for(run.step)  # until the directory is listed again

    run.close()
    assert world.counted() == {"all": 3, "1": 1, "2": 1, "3": 1}


@stepped(3)
def test_a_crash_at_every_point_with_several_batches_in_flight(tmp_path, step):
    def crashing(hook: CrashAt, where: Path) -> World:
        world = World(where)
        for age, name in enumerate("123"):
            world.put(name, age)
        faults.install(hook)
        try:
            while True:
                try:
                    world.start().finish(max_steps=500)
                    return world
                except SimulatedCrash:
                    # Whether the list was told or not, one more is not counted twice.
                    world.list.unlink(missing_ok=True)
        finally:
            faults.install(None)

    quiet = CrashAt()
    crashing(quiet, tmp_path / "quiet")
    assert set(quiet.seen) == set(BATCH_POINTS)

    for n in range(1, len(quiet.seen) + 1, step):
        hook = CrashAt(n)
        world = crashing(hook, tmp_path / f"{n}")

        assert hook.all_fired
        assert world.run() == {"all": 3, "1": 1, "2": 1, "3": 1}, hook.seen[n - 1]


def test_a_batch_that_is_taken_back_gives_its_files_back(world):
    world.roll_back()
    assert world.counted() == {"all": 2, "1": 1, "2": 1}
    world.put("0", 0)

    assert world.run() == {"all": 4, "0": 1, "1": 1, "2": 1, "3": 1}
    world.put("4", 4)
    assert world.run() == {"all": 5, "0": 1, "1": 1, "2": 1, "3": 1, "4": 1}


def test_the_first_batch_is_taken_back_too(tmp_path):
    world = World(tmp_path)
    world.put("1", 1)
    world.run()

    world.roll_back()

    assert world.counted() == {}
    assert world.run() == {"all": 1, "1": 1}


def as_an_older_version_left_it(world: World) -> None:
    """Take the tally out of the ledger, and make the list as it was: unmarked, with a log."""
    store = world.store()
    store.acquire(world.topology().plan(world.config).fingerprint())
    ledger = store.load()
    for batch in (ledger.committed_metadata, ledger.earlier_metadata):
        del batch["lines"]["read"]
    store.save(ledger)
    store.release()
    with closing(sqlite3.connect(world.list)) as db:
        files = db.execute("SELECT path, txid FROM seen").fetchall()
    world.list.unlink()
    with closing(sqlite3.connect(world.list)) as db, db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(
            "CREATE TABLE IF NOT EXISTS seen (path TEXT PRIMARY KEY, txid INTEGER NOT NULL)"
            " STRICT, WITHOUT ROWID"
        )
        db.executemany("INSERT INTO seen VALUES (?, ?)", files)


def test_the_home_of_an_older_version_goes_on_and_is_tied_then(world):
    as_an_older_version_left_it(world)
    world.put("4", 4)
    assert world.run() == {"all": 4, "1": 1, "2": 1, "3": 1, "4": 1}
    assert {path.name for path in world.list.parent.glob("files-*")} == {"files-lines.db"}
    world.put("0", 0)
    world.change_list("DELETE FROM seen WHERE txid = 1")

    with pytest.raises(DamagedStoreError, match="4 files were read, and it names 3"):
        world.run()


def test_the_home_of_an_older_version_without_its_list_is_refused(world):
    as_an_older_version_left_it(world)
    world.list.unlink()

    for _ in range(2):
        with pytest.raises(DamagedStoreError, match=r"files-lines\.db is gone, the list of the"):
            world.run()


def test_a_list_in_memory_lives_as_long_as_its_ledger(tmp_path):
    (tmp_path / "in").mkdir()
    shared, counted = SharedMemory(), MemoryMapState()
    found = []
    for age, name in enumerate("123"):
        put(tmp_path / "in" / name, "line\n")
        os.utime(tmp_path / "in" / name, ns=(9 - age, 9 - age))  # the files prove nothing
        topology = TridentTopology("files")
        lines = topology.new_stream("lines", FileSpout(tmp_path / "in", max_files=1))
        counts = lines.group_by("value").persistent_aggregate(counted, Count(), out="n")
        run = LocalRun(topology, store=MemoryCoordinationStore("files", shared))
        run.finish()
        run.close()
        found.append(counts.get(["line"]))

    assert found == [1, 2, 3]


class Stumbling(FixedBatchSpout):
    """Cannot plan its first batch when it is asked for the first time."""

    def open(self, context: SpoutContext) -> BatchPlanner:
        planner, plan = super().open(context), None
        failures = iter([SourceError("the source stumbles")])

        def stumble(txid: int, previous: Any) -> Any:
            for error in failures:
                raise error
            return plan(txid, previous)

        plan, planner.plan = planner.plan, stumble  # type: ignore[method-assign]
        return planner


def test_files_of_a_plan_that_another_spout_spoils_are_in_the_next(tmp_path):
    for name in "12":
        put(tmp_path / "in" / name, "line\n")
    topology = TridentTopology("files")
    lines = topology.new_stream("lines", FileSpout(tmp_path / "in", max_files=1))
    other = topology.new_stream("other", Stumbling("value string", 1, [["line"]]))
    merged = topology.merge(lines, other).group_by("value")
    counts = merged.persistent_aggregate(MemoryMapState(), Count(), out="n")
    run = LocalRun(topology, Config(retry_backoff_millis=0))

    run.finish()
    run.close()

    assert counts.get(["line"]) == 3


def test_a_file_whose_name_is_no_text_is_refused_before_it_is_in_a_batch(tmp_path):
    world = World(tmp_path)
    world.put("1", 1)
    wrong = os.path.join(os.fsencode(world.source), b"2\xff")
    os.rename(world.source / "1", wrong)

    with pytest.raises(SourceError, match=r"in/2\\xff' is not UTF-8, .* Rename the file"):
        world.run()

    os.rename(wrong, world.source / "1")
    assert world.run() == {"all": 1, "1": 1}


def files_of(world: World) -> list[str]:
    return [str(world.source / name) for name in "123"]


def test_an_audit_counts_the_files_of_committed_batches_or_says_that_it_cannot(world):
    spout, ledger = FileSpout(world.source, max_files=1), world.store().peek()
    last, folder = ledger.committed_metadata["lines"], world.list.parent

    everything = spout.so_far(last, folder, "lines")
    assert [name for name, _, _ in everything["files"]] == files_of(world)

    world.roll_back()  # its files stay in the list until the next run
    back = world.store().peek().committed_metadata["lines"]
    before = spout.so_far(back, folder, "lines")
    assert [name for name, _, _ in before["files"]] == files_of(world)[:2]
    world.list.unlink()
    with pytest.raises(DamagedStoreError, match="2 files were read, and it names 1"):
        spout.so_far(back, folder, "lines")


def test_a_list_that_is_adopted_is_tied_like_any_other(tmp_path):
    world = World(tmp_path)
    for age, name in enumerate("321"):
        world.put(name, age)
    spout, folder = FileSpout(world.source), tmp_path / "folder"
    folder.mkdir()
    given = dict(zip(files_of(world), (4, 4, 5), strict=True))
    for _ in range(2):  # it may be interrupted, and called again
        last = spout.adopt(folder, "lines", given)

    def opened() -> BatchPlanner:
        return spout.open(SpoutContext(Config(), "lines", folder, {5: last}, current=6))

    with closing(opened()) as planner:
        assert not planner.is_ready(last)
    with closing(sqlite3.connect(folder / "files-lines.db")) as db, db:
        db.execute("DELETE FROM seen WHERE txid = 4")
    world.put("0", 0)
    with pytest.raises(DamagedStoreError, match="3 files were read, and it names 1"):
        opened()
