"""File states when the world fails: kills, damage, full disks, and drivers that meet."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from pyarrow.fs import _MockFileSystem

from tests.soaking import stepped
from tests.state.file_state_child import commit_the_rest, load_ledger, open_state, partials
from tests.state_support import OWNER, Batches
from waterspout.errors import (
    DamagedStoreError,
    FencedError,
    StateMismatchError,
    StoreError,
    WaterspoutError,
)
from waterspout.state._base import StateKind
from waterspout.state._columns import Layout
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueMap, OpaqueValue
from waterspout.state._store import ANY_VALUE
from waterspout.state.files import FileState
from waterspout.state.files._locations import ArrowFolder, Folder, LocalFolder
from waterspout.state.files._state import FileMap
from waterspout.transactional._ledger import Ledger

ROOT = Path(__file__).parents[2]
LAYOUT = Layout(None, ANY_VALUE)
OPAQUE = StateKind.OPAQUE


LAST_TXID = 4
CHILD = [sys.executable, "-B", "-m", "tests.state.file_state_child"]


@pytest.fixture
def killed(tmp_path):
    """Two batches, and a lost attempt at the third."""
    folder = tmp_path / "killed"
    folder.mkdir()
    batches = commit_the_rest(folder, 1, 2)
    batches.lose(partials(3, batches.attempt + 1))
    batches.state.close()
    return folder


def wrong_after(folder: Path) -> str | None:
    """Say what is wrong with what a killed driver of epoch 2 has left."""
    ledger = load_ledger(folder)
    state = open_state(folder)
    head = state.read_head()
    seen = dict(pair for chunk in state.scan() for pair in chunk)
    state.close()
    allowed = [truth(ledger, ledger.current - 1)]
    if head is not None and not head.committed and head.stamp.txid == ledger.current - 1:
        # Marked, but the state was not told yet.
        allowed = [truth(ledger, ledger.current - 2)]
    if seen not in allowed:
        return f"{folder.name}: {seen} instead of {allowed}"
    batches = commit_the_rest(folder, 3, LAST_TXID)
    end = dict(pair for chunk in batches.state.scan() for pair in chunk)
    batches.state.close()
    left = Counter(path.name.split("-")[0] for path in (folder / "counts").iterdir())
    if end != truth(batches.ledger, LAST_TXID):
        return f"{folder.name}: {end} in the end"
    return None if set(left) == {"head", "data"} and left["head"] == 1 else f"{folder.name}: {left}"


def truth(ledger: Ledger, last_txid: int) -> dict[tuple[str, ...], int]:
    """Return what a state must hold, by the attempts that have committed."""
    attempts = {int(t): a for t, a in (ledger.committed_metadata or {}).items()}
    whole: Counter[tuple[str, ...]] = Counter()
    for txid in range(1, last_txid + 1):
        whole.update({(key,): n for key, n in partials(txid, attempts[txid]).items()})
    return dict(whole)


@pytest.mark.soak
def test_a_driver_killed_at_any_operation_on_any_file_loses_nothing(killed, tmp_path):
    done = subprocess.run(
        [*CHILD, tmp_path, "2", str(LAST_TXID), "--every-operation"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folders = [tmp_path / str(n) for n in range(1, 1000) if (tmp_path / str(n)).exists()]

    wrong = [text for text in map(wrong_after, folders) if text is not None]

    assert len(folders) > 60
    assert wrong == []


CALLS = ("fsync", "link", "unlink", "write", "rename")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def traced(folder: Path, inject: str | None = None) -> tuple[bool, str, Counter[str]]:
    """Let a driver go on under strace; return whether it came through, and the calls it made."""
    log = folder.with_name(f"{folder.name}.log")
    options = ["-f", "-o", str(log), "-e", f"trace={','.join(CALLS)}"]
    options += [] if inject is None else ["-e", f"inject={inject}"]
    child = [
        sys.executable,
        "-B",
        "-m",
        "tests.state.file_state_child",
        folder,
        "2",
        str(LAST_TXID),
    ]
    done = subprocess.run(
        ["strace", *options, *child], capture_output=True, text=True, cwd=ROOT, check=False
    )
    calls = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    return done.stdout == "done\n", done.stderr, Counter(calls)


@needs_strace
@stepped(150)
def test_a_driver_killed_at_system_calls_loses_nothing(killed, tmp_path, step):
    shutil.copytree(killed, tmp_path / "whole")
    whole, _, passed = traced(tmp_path / "whole")
    assert whole
    points = [(name, n) for name in CALLS for n in range(1, passed[name] + 1, step)]

    def kill_at(point: tuple[str, int]) -> Path:
        folder = tmp_path / f"{point[0]}-{point[1]}"
        shutil.copytree(killed, folder)
        traced(folder, f"{point[0]}:signal=KILL:when={point[1]}")
        return folder

    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(kill_at, points))

    assert {name for name, _ in points} >= {"fsync", "link", "unlink", "write"}
    assert [text for text in map(wrong_after, folders) if text is not None] == []


@pytest.mark.soak
@needs_strace
def test_a_real_disk_error_is_told_and_loses_nothing(killed, tmp_path):
    points = [f"{call}:error={error}:when={n}" for call, error, n in ERRORS]

    def fail_at(point: str) -> tuple[Path, str]:
        folder = tmp_path / point.replace(":", "-")
        shutil.copytree(killed, folder)
        whole, told, _ = traced(folder, point)
        assert not whole
        return folder, told

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(fail_at, points))

    assert all("StoreError: the files in" in told for _, told in ended), ended
    assert [text for folder, _ in ended if (text := wrong_after(folder)) is not None] == []


ERRORS = [("fsync", "EIO", n) for n in (1, 2, 3, 6)] + [("link", "ENOSPC", n) for n in (1, 3)]


class HookedFolder(Folder):
    """A folder that tells of every operation before it is done."""

    def __init__(self, inner, hook=lambda: None):
        self.inner, self.hook = inner, hook
        self.key, self.exclusive = f"{inner.key} {id(self)}", inner.exclusive

    def names(self):
        self.hook()
        return self.inner.names()

    def read(self, name):
        self.hook()
        return self.inner.read(name)

    def write(self, name, chunks):
        self.hook()
        self.inner.write(name, chunks)

    def write_whole(self, name, temporary, content):
        self.hook()
        self.inner.write_whole(name, temporary, content)

    def remove(self, name):
        self.hook()
        self.inner.remove(name)

    def create(self):
        self.hook()
        self.inner.create()

    def inside(self, name):
        return HookedFolder(self.inner.inside(name), self.hook)

    def size(self, name):
        self.hook()
        return self.inner.size(name)


@pytest.fixture(params=["local", "mock"])
def make_folder(request, tmp_path):
    """Return another process's view of the same folder each time it is called."""
    filesystem = _MockFileSystem()

    def make():
        if request.param == "local":
            return HookedFolder(LocalFolder(tmp_path / "state"))
        return HookedFolder(ArrowFolder(filesystem, "bucket/state", "mock"))

    return make


def make_map(folder, snapshot_every=2):
    return FileMap(folder, OPAQUE, LAYOUT, title="the files", snapshot_every=snapshot_every)


@pytest.mark.parametrize("act", ["claim", "write", "settle"])
def test_an_error_at_any_operation_is_told_and_leaves_all_or_nothing(make_folder, act):
    for nth in count(1):
        folder = make_folder()
        batches = Batches(OpaqueMap(make_map(folder)))
        _clear(folder.inner)
        batches.commit({"x": 1, "y": 1})
        batches.commit({"x": 1})
        steps = {
            "claim": batches.claim,
            "write": lambda b=batches: b.write({"x": 1, "z": 1}),
            "settle": lambda b=batches: (b.mark(), b.settle()),
        }
        for name, step in steps.items():
            if name == act:
                break
            step()
        operations = count(1)

        def fail(operations=operations, nth=nth):
            if next(operations) == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder.hook = fail
        told = answer(steps[act])
        assert not isinstance(told, Exception) or (
            type(told) is StoreError and "No space left" in str(told)
        )
        folder.hook = lambda: None
        if next(operations) <= nth:
            break
        if act == "settle":
            batches.settle()
        else:
            batches.persist({"x": 1, "z": 1})
        assert batches.values("x", "y", "z") == [3, 1, 1], (nth, told)
    assert nth > 3


def answer(act, *args):
    """Return what an act returns or raises."""
    try:
        return act(*args)
    except WaterspoutError as error:
        return error


def _clear(folder):
    for name in folder.names():
        folder.remove(name)


def interleaved(make_folder, prepare, first, second):
    """Run `second` at every operation of `first`; yield what each did, and what is there then.

    A driver that is refused, or fails, has its error for an answer.
    """

    for nth in count(1):
        one, other = make_folder(), make_folder()
        _clear(one.inner)
        given = prepare(make_map(one), make_map(other))
        operations, answers = count(1), []

        def meet(operations=operations, nth=nth, answers=answers, given=given):
            if next(operations) == nth:
                answers.append(answer(second, given))

        one.hook = meet
        mine = answer(first, given)
        one.hook = lambda: None
        if not answers:
            assert nth > 3
            return
        yield given, mine, answers[0]


def old_and_new(olds, news):
    """An old driver that has claimed batch 2, and the one that takes over from it."""
    old = Batches(OpaqueMap(olds))
    old.commit({"x": 1, "y": 1})
    old.claim()
    return old, old.restarted(OpaqueMap(news))


def new_and_old(news, olds):
    return old_and_new(olds, news)


def take_over(pair):
    _, new = pair
    new.claim()
    new.write({"y": 1})
    new.mark()
    new.settle()
    return "done"


def old_writes(pair):
    pair[0].write({"x": 100, "z": 100})
    return "done"


def test_a_driver_that_is_overtaken_at_any_operation_of_a_write_changes_nothing(make_folder):
    answers = []
    for (_, new), mine, theirs in interleaved(make_folder, old_and_new, old_writes, take_over):
        assert theirs == "done"
        assert new.values("x", "y", "z") == [1, 2, None]
        new.commit({"x": 1})
        assert new.values("x", "y", "z") == [2, 2, None]
        answers.append(mine)

    assert isinstance(answers[0], FencedError)
    assert all(a == "done" or isinstance(a, FencedError) for a in answers)


def test_a_driver_that_is_overtaken_at_any_operation_of_settling_changes_nothing(make_folder):
    def marked(olds, news):
        old = Batches(OpaqueMap(olds))
        old.lose({"x": 1, "y": 1})
        old.mark()
        return old, old.restarted(OpaqueMap(news))

    def settle(pair):
        pair[0].settle()

    for (_, new), mine, theirs in interleaved(make_folder, marked, settle, take_over):
        assert theirs == "done"
        assert mine is None or isinstance(mine, FencedError)
        assert new.values("x", "y") == [1, 2]


def test_a_zombie_that_wakes_at_any_operation_of_a_takeover_changes_nothing(make_folder):
    answers = []
    for (_, new), mine, theirs in interleaved(make_folder, new_and_old, take_over, old_writes):
        assert mine == "done"
        assert theirs == "done" or isinstance(theirs, FencedError)
        assert new.values("x", "y", "z") == [1, 2, None]
        answers.append(theirs)

    assert answers[0] == "done"
    assert isinstance(answers[-1], FencedError)


@pytest.mark.parametrize("which", ["the put", "the takeover"])
def test_a_put_outside_of_batches_that_returned_is_there_after_a_takeover(make_folder, which):
    def put(pair):
        pair[0].state._backing.multi_put([("p",)], [OpaqueValue(0, 0, 5)])
        return "done"

    interrupted = which == "the put"
    acts = (old_and_new, put, take_over) if interrupted else (new_and_old, take_over, put)
    answers = set()
    for (_, new), mine, theirs in interleaved(make_folder, *acts):
        put_answer, takeover = (mine, theirs) if interrupted else (theirs, mine)
        assert takeover == "done"
        found = new.values("p")
        assert found == [5] if put_answer == "done" else found in ([5], [None])
        answers.add(put_answer == "done")

    assert answers == {True, False}


def test_of_two_homes_with_one_epoch_that_meet_at_any_operation_one_at_most_goes_on(make_folder):
    def two_homes(one, other):
        return [
            Batches(OpaqueMap(one), home="here", lease="a"),
            Batches(OpaqueMap(other), home="there", lease="b"),
        ]

    def commits(n):
        def commit(pair):
            pair[n].commit({"x": 10**n})
            return n

        return commit

    outcomes = set()
    for pair, *answers in interleaved(make_folder, two_homes, commits(0), commits(1)):
        won = [a for a in answers if type(a) is int]
        assert len(won) <= 1, answers
        refused = [a for a in answers if type(a) is not int]
        assert all(isinstance(a, FencedError) for a in refused), refused
        if won:
            # The other one stays refused, and the winner goes on.
            with pytest.raises(FencedError):
                pair[1 - won[0]].claim()
            pair[won[0]].commit({"x": 10 ** won[0]})
            assert pair[won[0]].values("x") == [2 * 10 ** won[0]]
        outcomes.add(tuple(won))
    assert (1,) in outcomes


class Turns:
    """Lets two threads do their operations in a given order: so many of one, so many of the other,
    and so on, then the rest of the one, then the rest of the other.
    """

    def __init__(self, *turns):
        rest = [(who % 2, math.inf) for who in (len(turns), len(turns) + 1)]
        self.left = [*((who % 2, many) for who, many in enumerate(turns)), *rest]
        self.changed = threading.Condition()

    def take(self, who):
        with self.changed:
            assert self.changed.wait_for(lambda: self.left[0][0] == who, timeout=30)
            turn, left = self.left[0]
            self.left[0] = (turn, left - 1)
            self._pass_on()

    def end(self, who):
        with self.changed:
            self.left = [turn for turn in self.left if turn[0] != who]
            self._pass_on()

    def _pass_on(self):
        while self.left and self.left[0][1] == 0:
            self.left.pop(0)
        self.changed.notify_all()


@pytest.mark.parametrize("epochs", [(1, 1), (1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("make_folder", ["mock"], indirect=True)
def test_of_two_homes_that_start_together_one_at_most_commits_whatever_the_order(
    make_folder, epochs
):
    together = 0
    for turns in itertools.product(range(1, 14), range(1, 14)):
        errors = start_together(make_folder, epochs, turns)
        together += len(errors) == 2
    assert together < 100


@pytest.mark.parametrize("make_folder", ["mock"], indirect=True)
def test_an_old_driver_waits_until_a_new_one_has_taken_back_its_claim(make_folder):
    """Each has seen the other, and the new one goes on while the old one looks again."""
    for turns in itertools.product(range(1, 9), range(1, 9), range(1, 4)):
        assert len(start_together(make_folder, (1, 2), turns)) < 2, turns


def start_together(make_folder, epochs, order):
    """Let two homes claim in this order; return the errors. One at most may write afterwards."""
    turns, answers = Turns(*order), [None, None]
    folders = [make_folder(), make_folder()]
    _clear(folders[0].inner)
    homes = [
        Batches(OpaqueMap(make_map(folder)), epoch, home=str(n), lease=str(n))
        for n, (folder, epoch) in enumerate(zip(folders, epochs, strict=True))
    ]

    def start(who):
        folders[who].hook = lambda: turns.take(who)
        answers[who] = answer(homes[who].claim)
        folders[who].hook = lambda: None
        turns.end(who)

    threads = [threading.Thread(target=start, args=[who]) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [a for a in answers if isinstance(a, Exception)]
    assert all(isinstance(e, FencedError | StateMismatchError) for e in errors), errors
    # Whoever believes to have claimed may write; a later epoch may have taken it from him.
    wrote = [answer(home.write, {"x": 10**n}) for n, home in enumerate(homes)]
    assert wrote.count(None) <= 1, (order, answers, wrote)
    assert not any(isinstance(w, StoreError) for w in wrote), (order, wrote)
    return errors


@pytest.fixture
def golden(tmp_path):
    """A folder with a head, a snapshot and two deltas, and what it holds."""
    state = FileState.opaque(tmp_path / "golden", snapshot_every=1)
    batches = Batches(OpaqueMap(state.backing()))
    batches.commit({"a": 1, "b": 1})
    batches.commit({"a": 2})
    wider = FileState.opaque(tmp_path / "golden", snapshot_every=9)
    batches = batches.restarted(OpaqueMap(wider.backing()))
    batches.commit({"b": 7})
    batches.commit({"c": 1})
    return wider


def outcome(state):
    backing = state.backing()
    try:
        head = backing.read_head()
        found = backing.multi_get([("a",), ("b",), ("c",)])
    except StoreError as error:
        return type(error).__name__
    finally:
        backing.close()
    return head.stamp.txid, [record.value for record in found]


WHOLE = (4, [3, 8, 1])


def test_the_golden_state_is_whole(golden):
    names = sorted(path.name.split("-")[0] for path in Path(golden.path).iterdir())

    assert names == ["data", "data", "data", "head"]
    assert outcome(golden) == WHOLE


def test_a_file_cut_at_any_length_is_never_another_state(golden):
    for file in Path(golden.path).iterdir():
        raw = file.read_bytes()
        seen = set()
        for length in range(len(raw)):
            file.write_bytes(raw[:length])
            seen.add(outcome(golden))
        file.write_bytes(raw)
        assert seen == {"DamagedStoreError"}, file
    assert outcome(golden) == WHOLE


def test_a_flipped_bit_in_any_byte_is_never_another_state(golden):
    for file in Path(golden.path).iterdir():
        raw = file.read_bytes()
        seen = set()
        for at in range(len(raw)):
            file.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
            seen.add(outcome(golden))
        file.write_bytes(raw)
        assert seen == {"DamagedStoreError"}, file
    assert outcome(golden) == WHOLE


def test_a_missing_file_is_named(golden):
    for file in sorted(Path(golden.path).glob("data-*")):
        raw = file.read_bytes()
        file.unlink()
        for act in (lambda: golden.backing().multi_get([("a",)]), golden.check):
            with pytest.raises(DamagedStoreError, match=file.name):
                act()
        file.write_bytes(raw)


def test_a_folder_that_lost_its_head_is_not_an_empty_one(golden):
    next(Path(golden.path).glob("head-*")).unlink()

    with pytest.raises(DamagedStoreError, match="records but no head"):
        golden.backing().read_head()
    with pytest.raises(DamagedStoreError, match="records but no head"):
        golden.backing().move_head(None, Head(Stamp(Writer(OWNER, 9), 1, 0)))


def test_files_that_changed_places_are_found_out(golden):
    one, other = sorted(Path(golden.path).glob("data-*"))[:2]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)

    assert outcome(golden) == "DamagedStoreError"


def test_a_driver_that_has_lost_a_delta_is_told_when_it_merges(tmp_path):
    backing = FileState.opaque(tmp_path / "state", snapshot_every=2).backing()
    many = [(n,) for n in range(300)]
    for keys in (many, many, many, [("a",)], [("b",)]):
        backing.multi_put(keys, [OpaqueValue(0, 0, 1)] * len(keys))
    max((tmp_path / "state").glob("data-*")).unlink()

    told = answer(backing.multi_put, [("c",)], [OpaqueValue(0, 0, 1)])

    assert isinstance(told, DamagedStoreError)
    assert "names a file that is not there" in str(told)


def test_two_heads_of_one_number_are_not_chosen_from(golden):
    (head,) = Path(golden.path).glob("head-*")
    shutil.copy(head, head.with_name(f"{head.name[:-21]}{'f' * 16}.json"))

    assert outcome(golden) == "DamagedStoreError"


def test_leftovers_of_a_killed_driver_are_ignored_and_then_removed(golden):
    folder = Path(golden.path)
    before = {path.name for path in folder.iterdir()}
    for name in ("temp-000000000002-000000000001", "data-000000000002-000000000001"):
        suffix = "tmp" if name.startswith("temp") else "txt"
        (folder / f"{name}-{'0' * 16}.{suffix}").write_bytes(b"torn")
    (folder / f"claim-000000000001-000000000001-{'0' * 16}.json").write_bytes(b"")
    assert outcome(golden) == WHOLE

    golden.backing().multi_put([("d",)], [OpaqueValue(0, 0, 1)])

    after = {path.name for path in folder.iterdir()}
    assert len(after) == len(before) + 1
    assert not any(path.name.endswith("0" * 16 + ".tmp") for path in folder.iterdir())
