"""Every file is read once: whenever it comes, however old it says it is, whoever crashes."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spouts.places import FakePlace
from tests.trident.support import capture, put, wait_for
from waterspout import Config
from waterspout.errors import DataLossError, TopologyError
from waterspout.spouts import _finding, _listing
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._places import FileStat
from waterspout.spouts.files import FileSpout
from waterspout.testing import LocalRun
from waterspout.trident import TridentTopology


class Life:
    """A planner over a file system in memory, as the loop drives it; dies and comes back."""

    def __init__(self, path="/in"):
        self.place, self.kept = FakePlace(), {}
        self.spout = FileSpout(path, max_files=2)
        self.spout.__dict__["_at"] = (self.place, path)
        self.batches, self.committed = {}, 0
        self.start()

    def start(self):
        last = self.committed
        known = {t: m for t, m in self.batches.items() if t >= last}
        context = SpoutContext(Config(), "in", None, known, last + 1, kept=self.kept)
        self.planner = self.spout.open(context)

    def batch(self):
        if not self.planner.is_ready(None):
            return False
        txid = max(self.batches, default=0) + 1
        self.batches[txid] = self.planner.plan(txid, None)
        return True

    def commit(self, told=True):
        if self.committed < max(self.batches, default=0):
            self.committed += 1
            if told:
                self.planner.succeeded(self.committed, self.batches[self.committed])

    def read(self):
        """Return the files of all batches, those in flight included."""
        return sorted(f[0] for m in self.batches.values() for f in m["files"])


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Let every look be due, and folders be believed at once: they say when they change."""
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 0)
    monkeypatch.setattr(_listing, "_TICK_S", 0.0)


def test_who_waits_for_all_there_is_waits_for_a_file_that_has_just_come(monkeypatch):
    # A look is followed by a rest; the file comes in the middle of it.
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 10**9)
    life = Life()
    assert not life.planner.is_ready(None)
    life.place.put("/in/1", 0)
    assert not life.planner.is_ready(None)
    assert life.planner.is_drained(), "as far as is known"

    life.planner.look_anew()

    assert not life.planner.is_drained()
    assert life.batch()
    assert life.planner.is_drained()
    assert life.read() == ["/in/1"]


def test_a_look_that_began_before_somebody_waits_does_not_count(monkeypatch):
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 10**9)
    finder = _finding.FileFinder(FakePlace(), "/in", lambda names: [])
    finder.begin(())
    finder.look_anew()

    finder.go_on()
    assert finder.may_list
    assert not finder.is_drained
    finder.begin(())
    finder.go_on()

    assert not finder.may_list
    assert finder.is_drained


def test_a_run_that_is_finished_again_reads_what_has_come_since(tmp_path, monkeypatch):
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 10**9)
    topology = TridentTopology("files")
    kept = capture(topology.new_stream("lines", FileSpout(tmp_path / "in")))
    put(tmp_path / "in" / "1.txt", "one\n")
    run = LocalRun(topology, Config())

    run.finish()
    put(tmp_path / "in" / "2.txt", "two\n")
    run.finish()
    run.close()

    assert kept.rows == [("one",), ("two",)]


ACTS = st.one_of(
    st.tuples(
        st.just("put"), st.sampled_from(["", "a/", "a/b/", "z/"]), st.integers(0, 40),
        st.integers(0, 3),
    ),
    st.sampled_from([("batch",), ("commit",), ("crash",), ("lost telling",), ("tidy",), ("lag",)]),
)  # fmt: skip


@given(st.lists(ACTS, max_size=40), st.sampled_from([1, 2, 200]))
def test_every_file_is_in_one_batch_whatever_happens(acts, keep_max):
    kept, _finding.KEEP_MAX = _finding.KEEP_MAX, keep_max
    try:
        life, put_there = Life(), set()
        for act in acts:
            match act:
                case ("put", folder, number, when):
                    path = f"/in/{folder}{number}"
                    if path not in put_there:
                        put_there.add(life.place.put(path, when))
                case ("batch",):
                    life.batch()
                case ("commit",):
                    life.commit()
                case ("lost telling",):
                    life.commit(told=False)
                    life.start()
                case ("crash",):
                    life.start()
                case ("tidy",):
                    done = [f[0] for t in range(1, life.committed + 1)
                            for f in life.batches[t]["files"]]  # fmt: skip
                    for path in set(done) & set(life.place.files):
                        life.place.remove(path)
                case ("lag",):
                    life.planner.lag(None)
        for _ in range(100):
            if not life.batch() and life.planner.is_drained():
                break

        assert life.read() == sorted(put_there)
    finally:
        _finding.KEEP_MAX = kept


def test_a_file_that_comes_again_before_it_was_read_is_read():
    life = Life()
    path = life.place.put("/in/a")
    for _ in range(3):
        assert life.planner.is_ready(None)
        life.planner._finder.begin(())  # a folder that is believed
        life.planner._finder.go_on()
    life.place.remove(path)
    life.place.changes.subtract(["/in"])  # nothing tells that it went, as with a link's target
    assert life.batch()
    assert life.read() == []

    life.place.files[path] = FileStat(1, 0)

    assert life.batch()
    assert life.read() == [path]


def test_ten_new_files_among_many_that_were_read_cost_ten_looks():
    life = Life()
    for n in range(500):
        life.place.put(f"/in/{n:03}")
    life.spout.max_files = 1000
    while life.batch():
        life.commit()
    for _ in range(3):
        assert not life.planner.is_ready(None)
    life.place.asked.clear()
    new = [life.place.put(f"/in/new-{n}", time_ns=-n) for n in range(10)]

    assert life.batch()

    assert sorted(f[0] for f in life.batches[2]["files"]) == new
    # Once when they are found, and once when they are put into a batch.
    assert dict(life.place.asked) == {"mark": 1, "entries": 1, "stat": 20}


def test_a_look_that_a_batch_and_its_commit_overtake_finds_no_file_of_it(monkeypatch):
    life = Life()
    for name in "abcd":
        life.place.put(f"/in/{name}")
    assert life.batch()  # two of them
    finder = life.planner._finder
    finder.begin(life.planner._assigned)
    monkeypatch.setattr(_finding, "_HERE_CPU_S", float("inf"))
    life.batches[2] = life.planner.plan(2, None)  # while the look goes on
    life.commit()
    life.commit()

    assert not life.batch()
    assert life.read() == [f"/in/{name}" for name in "abcd"]


@pytest.mark.parametrize("keep_max", [1, 2, 3])
def test_more_files_than_are_kept_by_name_are_all_read(monkeypatch, keep_max):
    monkeypatch.setattr(_finding, "KEEP_MAX", keep_max)
    life = Life()
    names = [life.place.put(f"/in/{n % 3}/{n:02}", time_ns=-n) for n in range(20)]
    assert life.planner.lag(None)["files"] == 20

    wait_for(lambda: not life.batch() and life.planner.is_drained(), 10)

    assert life.read() == sorted(names)


def test_a_look_that_takes_long_does_not_block_and_is_not_taken_for_the_end(monkeypatch):
    monkeypatch.setattr(_finding, "_HERE_CPU_S", 0.0)
    life, may_end = Life(), threading.Event()
    for n in range(5):
        life.place.put(f"/in/{n}")

    def stat_entry(entry):
        assert may_end.wait(30)
        return life.place.files[entry.path]

    monkeypatch.setattr(life.place, "stat_entry", stat_entry)

    assert not life.planner.is_ready(None)
    assert not life.planner.is_drained()
    may_end.set()
    wait_for(life.batch, 30)
    assert len(life.batches[1]["files"]) == 2
    life.planner.close()


def test_once_in_a_while_a_look_believes_nothing():
    life = Life()
    life.place.put("/in/a")
    while life.batch():
        life.commit()
    for _ in range(3):
        assert not life.planner.is_ready(None)
    life.place.still = True  # a file system that does not tell that something has come
    life.place.put("/in/b")
    assert not life.planner.is_ready(None)

    life.planner._finder._exact_at = 0.0

    assert life.batch()
    assert life.read() == ["/in/a", "/in/b"]


def test_what_goes_wrong_in_a_look_is_told_and_nothing_is_lost():
    life = Life()
    life.place.put("/in/a")
    life.place.error = ConnectionResetError("the server is gone")

    with pytest.raises(ConnectionResetError, match="the server is gone"):
        life.planner.is_ready(None)

    life.place.error = None
    assert life.batch()
    assert life.read() == ["/in/a"]


def young(path, seconds, text="line\n"):
    """A file that was changed so many seconds ago."""
    path.write_text(text)
    then = time.time_ns() - int(seconds * 1e9)
    os.utime(path, ns=(then, then))
    return path


def test_a_young_file_waits_and_is_told(tmp_path):
    young(tmp_path / "old", 1000)
    path = young(tmp_path / "new", 0)
    planner = FileSpout(tmp_path, min_age_secs=60).open(SpoutContext(Config(), "in", None, {}, 1))

    assert planner.is_ready(None)
    assert planner.lag(None) == {"files": 2, "bytes": 10, "young_files": 1}
    (found,) = planner.plan(1, None)["files"]
    assert found[0] == str(tmp_path / "old")
    assert not planner.is_ready(None)
    assert not planner.is_drained()

    young(path, 61)
    planner._finder._young_at = 0.0
    planner._finder._waiting._young[str(path)].since -= 61  # it was first seen then
    planner.is_ready(None)
    planner._finder._young_at = 0.0
    assert planner.is_ready(None)


def test_a_file_that_is_written_slowly_is_read_once_and_whole(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    topology = TridentTopology("slow")
    kept = capture(topology.new_stream("lines", FileSpout(source, min_age_secs=0.3)))
    run = LocalRun(topology, Config(max_retries=0))
    try:
        with (source / "slow.txt").open("w") as file:
            for n in range(20):
                file.write(f"{n}\n")
                file.flush()
                run.step()
        run.finish()
    finally:
        run.close()

    assert [int(row[0]) for row in kept.in_order] == list(range(20))


def test_without_an_age_a_file_that_grows_is_found_out_and_the_way_out_is_said(tmp_path):
    path = put(tmp_path / "a", "one\n")
    spout = FileSpout(tmp_path)
    planner = spout.open(SpoutContext(Config(), "in", None, {}, 1))
    assert planner.is_ready(None)
    metadata = planner.plan(1, None)
    path.write_text("one\ntwo\n")

    with pytest.raises(DataLossError, match=r"min_age_secs=\.\.\. lets files .* wait first"):
        planner.confirm(metadata)


def test_files_with_unfinished_names_are_told(tmp_path):
    put(tmp_path / "a.txt", "x")
    put(tmp_path / "b.txt.part", "x")
    planner = FileSpout(tmp_path).open(SpoutContext(Config(), "in", None, {}, 1))

    assert planner.lag(None) == {"files": 1, "bytes": 1, "unfinished_files": 1}

    os.rename(tmp_path / "b.txt.part", tmp_path / "b.txt")
    planner._finder._look_at = 0.0
    assert planner.lag(None) == {"files": 2, "bytes": 2}


@pytest.mark.parametrize("bad", [-1, "5", True, float("nan"), float("inf")])
def test_an_age_that_is_none_is_refused(tmp_path, bad):
    with pytest.raises(TopologyError, match="min_age_secs is a number of seconds, 0 for none, not"):
        FileSpout(tmp_path, min_age_secs=bad)
