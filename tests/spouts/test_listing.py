"""Looks for new files: every file is found, and none that was read costs more than its name."""

from __future__ import annotations

import glob
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spouts.places import Entry, FakePlace
from tests.trident.support import put, wait_for
from waterspout.spouts import _listing
from waterspout.spouts._listing import UNFINISHED, FileListing, Look, Pattern
from waterspout.spouts._places import LOCAL


class World:
    """A place, what was read of it, and a clock."""

    def __init__(self, path="/in"):
        self.place, self.read, self.now = FakePlace(), set(), 0.0
        self.asked = []
        self.listing = FileListing(self.place, path, self.is_read, clock=lambda: self.now)

    def is_read(self, names):
        self.asked += names
        return self.read.intersection(names)

    def look(self, *, keep=True, **how):
        found = sorted(f[1] for step in self.listing.look(**how) for f in step)
        if keep:
            self.listing.keep()
        return found

    def settle(self):
        """Look until nothing of it is news: all is read, and the folders are known."""
        for _ in range(3):
            self.read.update(self.look())
            self.now += _listing._TICK_S
        self.place.asked.clear()
        self.asked.clear()


@pytest.fixture
def world():
    made = World()
    for name in ("/in/a", "/in/b", "/in/deep/c"):
        made.place.put(name)
    return made


def test_a_look_finds_what_was_not_read(world):
    world.read.add("/in/b")

    assert world.look() == ["/in/a", "/in/deep/c"]


def test_a_folder_that_has_not_changed_is_not_listed(world):
    world.settle()

    assert world.look() == []
    assert dict(world.place.asked) == {"mark": 2}


def test_a_folder_that_has_changed_is_listed_and_only_what_is_new_is_asked_for(world):
    world.settle()
    world.place.put("/in/deep/new")

    assert world.look() == ["/in/deep/new"]
    assert dict(world.place.asked) == {"mark": 2, "entries": 1, "stat": 1}
    assert world.asked == ["/in/deep/new"]


def test_what_comes_in_the_tick_of_a_look_is_found(world):
    world.read.update(world.look())
    world.place.still = True  # the folder's time is that of the look
    world.place.put("/in/new")
    world.now += _listing._TICK_S / 2

    assert world.look() == ["/in/new"]


def test_a_new_folder_is_walked(world):
    world.settle()
    world.place.put("/in/other/er/x")

    assert world.look() == ["/in/other/er/x"]


def test_a_look_that_was_not_kept_has_lost_nothing(world):
    world.settle()
    world.place.put("/in/new")

    assert world.look(keep=False) == ["/in/new"]
    assert world.look() == ["/in/new"]


def test_nor_one_that_would_have_believed_its_folder(world):
    world.look()
    world.now += _listing._TICK_S

    assert world.look(keep=False) == ["/in/a", "/in/b", "/in/deep/c"]
    assert world.look() == ["/in/a", "/in/b", "/in/deep/c"]


def test_files_that_wait_or_are_in_batches_are_not_asked_for_again(world):
    assert world.look(skip={"/in/a"}) == ["/in/b", "/in/deep/c"]
    assert world.place.asked["stat"] == 2


def test_a_look_anew_lists_all_folders_and_still_trusts_the_names_that_were_read(world):
    world.settle()

    assert world.look(anew=True) == []
    assert dict(world.place.asked) == {"mark": 2, "entries": 2}
    assert world.asked == []


def test_an_exact_look_trusts_nothing(world):
    world.settle()
    world.place.still = True  # a file system that does not tell
    world.place.put("/in/new")

    assert world.look() == []
    assert world.look(exact=True) == ["/in/new"]
    assert sorted(world.asked) == ["/in/a", "/in/b", "/in/deep/c", "/in/new"]


class Clashing(str):
    """A name whose hash is that of every other of its kind."""

    __slots__ = ()

    def __hash__(self):
        return 7


def test_a_name_that_is_taken_for_another_is_late_and_not_lost(world, monkeypatch):
    def entries(folder):
        yield from (Entry(Clashing(path[4:]), path) for path in list(world.place.files))

    monkeypatch.setattr(world.place, "entries", entries)
    world.place.files.clear()
    world.place.put("/in/first")
    world.settle()
    world.place.put("/in/second")

    assert world.look() == []
    assert world.look(exact=True) == ["/in/second"]


def test_names_that_are_gone_are_forgotten(world):
    world.settle()
    world.place.remove("/in/a")
    world.look()

    (folder,) = [f for f in world.listing._folders.values() if f.below]
    assert len(folder.read) == 1


def test_a_link_that_gets_its_target_later_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(_listing, "_TICK_S", 0.0)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "target")
    listing = FileListing(LOCAL, str(tmp_path / "in"), lambda names: ())
    for _ in range(3):
        assert [f for step in listing.look() for f in step] == []
        listing.keep()

    (tmp_path / "target").write_text("here now")

    assert [f[1] for step in listing.look() for f in step] == [str(tmp_path / "in" / "link")]


@pytest.mark.parametrize("name", [f"big.csv{end}" for end in UNFINISHED] + ["BIG.TMP"])
def test_names_of_unfinished_files_are_left_alone_and_counted(world, name):
    world.place.put(f"/in/{name}")

    assert world.look() == ["/in/a", "/in/b", "/in/deep/c"]
    assert world.listing.unfinished == 1


def test_a_glob_that_spells_out_such_a_name_takes_it():
    world = World("/in/*.part")
    world.place.put("/in/x.part")
    world.place.put("/in/x.tmp")

    assert world.look() == ["/in/x.part"]


def test_links_that_lead_in_a_circle_end(tmp_path):
    put(tmp_path / "a" / "x.txt", "x")
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    listing = FileListing(LOCAL, f"{tmp_path}/**/*.txt", lambda names: ())

    assert [f[1] for step in listing.look() for f in step] == [f"{tmp_path}/a/x.txt"]


TREE = ["a.txt", "b.log", "_x/a.txt", ".h.txt", "d/a.txt", "d/e/a.txt", "d/e/b.log", "d/_y.txt"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    base = tmp_path_factory.mktemp("tree")
    for name in TREE:
        put(base / name, "x")
    return base


PARTS = st.sampled_from(["**", "*", "*.txt", "d", "e", "?", "[ab]*", "_x", "a.txt", "d*"])


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_a_pattern_takes_what_glob_takes(tree, parts):
    pattern = f"{tree}/{'/'.join(parts)}"
    spelled = set(pattern.split("/"))

    def visible(name):
        return not any(p.startswith(("_", ".")) for p in set(name.split("/")) - spelled)

    if not _listing.has_glob(pattern):
        return
    want = {n for n in glob.glob(pattern, recursive=True) if os.path.isfile(n) and visible(n)}

    listing = FileListing(LOCAL, pattern, lambda names: ())

    assert {f[1] for step in listing.look() for f in step} == want


def test_the_base_of_a_pattern_is_where_the_walk_begins():
    assert [Pattern(p).base for p in ("/a/b", "/a/*/c", "/*", "bucket/in/**")] == [
        *("/a/b", "/a", "/", "bucket/in")
    ]


def looked(look):
    look.go_on(0.1, 2.0)
    wait_for(lambda: look.is_over, 10)
    return look


def test_a_quick_look_needs_no_thread():
    look = looked(Look(iter([[(2, "b", 1)], [(1, "a", 1)]]), 10, anew=False))

    assert (look.found, look._thread) == ([(1, "a", 1), (2, "b", 1)], None)


def test_a_long_look_does_not_hold_up_the_caller():
    may_end = threading.Event()

    def steps():
        yield [(1, "a", 1)]
        assert threading.current_thread().name == "waterspout-files"
        assert may_end.wait(10)
        yield [(0, "b", 1)]

    look = Look(steps(), 10, anew=False)
    look.go_on(0.0, 0.0)
    assert not look.is_over
    may_end.set()

    wait_for(lambda: look.is_over, 10)
    assert (look.found, look.error) == ([(0, "b", 1), (1, "a", 1)], None)


def test_an_error_in_the_thread_of_a_look_is_kept():
    def steps():
        yield []
        raise OSError("gone")

    look = Look(steps(), 10, anew=False)
    look.go_on(0.0, 0.0)
    wait_for(lambda: look.is_over, 10)

    assert str(look.error) == "gone"


def test_a_look_that_is_left_ends():
    def steps():
        while True:
            yield []

    look = Look(steps(), 10, anew=False)
    look.go_on(0.0, 0.0)

    look.leave()

    assert not look._thread.is_alive()


def test_a_look_keeps_the_oldest_and_counts_the_others():
    found = [[(time, f"{time}", 10)] for time in (5, 3, 9, 1, 7, 2, 8)]

    look = looked(Look(iter(found), 3, anew=False))

    assert [f[0] for f in look.found] == [1, 2, 3]
    assert (look.beyond_files, look.beyond_bytes) == (4, 40)
