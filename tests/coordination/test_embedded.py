"""The embedded store: one file per topology that is old or new, never half, never another."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordination.drivers import (
    FINGERPRINT,
    ROOT,
    TOPOLOGY,
    Driver,
    command,
    ledger_at,
    metadata,
    realistic_ledger,
)
from tests.soaking import soaked, stepped
from waterspout._serde import checksum
from waterspout.coordination import embedded
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    LeaseHeldError,
    LeaseLostError,
    NewerFormatError,
    StoreError,
    TopologyError,
)
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

FILE = "coordination.db"


@pytest.fixture
def store(home):
    store = EmbeddedStore(home, TOPOLOGY, durable=False)
    yield store
    store.release()


@pytest.fixture
def stored(store):
    """The file of a store that was used and given up."""
    store.acquire(FINGERPRINT)
    store.save(realistic_ledger())
    store.release()
    return store.folder / FILE


def unnamed(ledger: Ledger | None) -> Ledger | None:
    """The ledger without the random name that no two have in common."""
    assert ledger is None or ledger.history
    return ledger and replace(ledger, history="")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(store: EmbeddedStore, error: type[Exception]) -> str:
    """Have every way into the store refused with this very error; return what it says."""
    texts = set()
    for way in (store.peek, store.load, lambda: store.acquire(FINGERPRINT)):
        with pytest.raises(error) as refusal:
            way()
        assert type(refusal.value) is error
        texts.add(str(refusal.value))
    return texts.pop()


def test_the_first_run_makes_folders_and_file_for_this_user_alone(store, home):
    old = os.umask(0)
    try:
        store.acquire(FINGERPRINT)
        store.save(ledger_at(1))
    finally:
        os.umask(old)

    assert {mode(home), mode(store.folder)} == {0o700}
    assert {path.name: mode(path) for path in store.folder.iterdir()} == {
        FILE: 0o600,
        f"{FILE}-journal": 0o600,
        "holder": 0o600,
    }


def test_the_first_run_starts_at_batch_1(store):
    assert store.acquire(FINGERPRINT) == 1
    assert unnamed(store.load()) == Ledger(TOPOLOGY, FINGERPRINT)


def test_the_next_run_goes_on_with_what_was_saved_last(store, stored, home):
    again = EmbeddedStore(home, TOPOLOGY)

    assert again.acquire(FINGERPRINT) == 2
    assert again.load() == realistic_ledger()
    again.release()


def test_peek_reads_without_lease_and_creates_nothing(store, home):
    assert store.peek() is None
    assert not home.exists()
    store.acquire(FINGERPRINT)
    store.save(ledger_at(2))

    assert EmbeddedStore(home, TOPOLOGY).peek() == ledger_at(2)
    store.renew()


def test_a_topology_does_not_see_its_neighbour(store, stored, home):
    other = EmbeddedStore(home, "other", durable=False)

    assert other.peek() is None
    other.acquire({})
    assert unnamed(other.load()) == Ledger("other")
    other.release()


def test_the_store_of_another_topology_moved_here_is_refused(store, stored, home):
    shutil.copytree(store.folder, home / "other")

    text = refused(EmbeddedStore(home, "other"), ForeignStoreError)

    assert f"belongs to topology {TOPOLOGY!r}, not 'other'" in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spouts": {"sentences": "opaque"}}, "Spouts had sentences transactional"),
        ({"states": None}, "States is not in the topology any more"),
        ({"partitions": 4}, "Partitions was not there, and is 4 now"),
    ],
)
def test_a_changed_graph_is_refused_by_name_and_nothing_changes(store, stored, change, told):
    given = {key: value for key, value in {**FINGERPRINT, **change}.items() if value is not None}
    before = stored.read_bytes()

    with pytest.raises(ForeignStoreError) as refusal:
        store.acquire(given)

    assert told in str(refusal.value)
    assert stored.read_bytes() == before


@pytest.mark.parametrize("topology", ["", ".", "..", "...", "a/b", "/a", "a\0b", "a b", "é", "a\n"])
def test_an_id_that_is_no_folder_name_is_refused(home, topology):
    with pytest.raises(TopologyError, match="cannot be an id"):
        EmbeddedStore(home, topology)


def test_an_id_has_up_to_128_characters(home):
    store = EmbeddedStore(home, "x" * 128, durable=False)

    store.acquire({})
    store.release()

    assert (home / ("x" * 128) / FILE).exists()
    with pytest.raises(TopologyError, match="1 to 128"):
        EmbeddedStore(home, "x" * 129)


@pytest.mark.parametrize("part", ["folder", "file", "dangling folder", "dangling file"])
def test_a_store_behind_a_symbolic_link_is_refused(store, stored, part, tmp_path):
    link = stored if part.endswith("file") else store.folder
    target = tmp_path / "elsewhere"
    link.rename(target)
    link.symlink_to("/nowhere" if part.startswith("dangling") else target)

    with pytest.raises(ForeignStoreError, match="is a symbolic link"):
        store.acquire(FINGERPRINT)

    assert not Path("/nowhere").exists()


def test_the_home_itself_may_be_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = EmbeddedStore(tmp_path / "link", TOPOLOGY, durable=False)

    assert store.acquire(FINGERPRINT) == 1
    store.release()


def test_a_home_may_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert EmbeddedStore(Path("~/w"), TOPOLOGY).folder == tmp_path / "w" / TOPOLOGY


def test_the_place_of_a_store_does_not_follow_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    store = EmbeddedStore(Path("relative"), TOPOLOGY, durable=False)
    monkeypatch.chdir(tmp_path / "b")

    store.acquire(FINGERPRINT)
    store.release()

    assert (tmp_path / "relative" / TOPOLOGY / FILE).exists()


# What may be left of a damaged store is an error or the very ledger: never another, never none.


def outcome(
    home: Path, *, whole: Ledger, acquire: bool = False, begun: Ledger | None = None
) -> str:
    store = EmbeddedStore(home, TOPOLOGY, durable=False)
    try:
        if acquire:
            store.acquire(FINGERPRINT)
            found: Ledger | None = store.load()
        else:
            found = store.peek()
    except StoreError as error:
        return type(error).__name__
    finally:
        store.release()
    if begun is not None and found == begun:
        return "the one being saved"
    return "the ledger" if found == whole else f"ANOTHER LEDGER: {found}"


@pytest.fixture
def golden(home):
    """A store after many saves, as bytes, and its ledger."""
    store = EmbeddedStore(home, TOPOLOGY, durable=False)
    store.acquire(FINGERPRINT)
    for step in range(40):
        store.save(ledger_at(step % 7))
    store.save(realistic_ledger())
    store.release()
    content = (home / TOPOLOGY / FILE).read_bytes()
    assert len(content) >= 4 * 4096, "overflow pages belong to the test"
    return content, realistic_ledger()


@stepped(5)
def test_a_store_cut_at_any_length_is_damaged_or_whole(golden, home, step):
    content, ledger = golden
    path = home / TOPOLOGY / FILE
    found: Counter[str] = Counter()
    lengths = range(0, len(content), step)
    for length in reversed(lengths):
        os.truncate(path, length)
        found[outcome(home, whole=ledger)] += 1

    assert set(found) <= {"DamagedStoreError", "ForeignStoreError", "the ledger"}
    # Only zeros at the very end may be missing without harm.
    needed = len(content.rstrip(b"\0"))
    assert found["the ledger"] == sum(length >= needed for length in lengths)
    assert path.stat().st_size == 0, "looking at it has not repaired it"


@pytest.mark.parametrize(
    "step", [pytest.param(25, id="sampled"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
def test_a_flipped_bit_at_any_byte_is_damage_or_harmless(golden, home, step):
    content, ledger = golden
    dice = random.Random(content)
    found: Counter[str] = Counter()
    # One open file for all: closing one would take SQLite's locks along.
    with open(home / TOPOLOGY / FILE, "rb+", buffering=0) as file:
        wanted = [at for at in range(len(content)) if at < 200 or at % step == 0]
        for at, byte in [(at, content[at]) for at in wanted]:
            os.pwrite(file.fileno(), bytes([byte ^ 1 << dice.randrange(8)]), at)
            found[outcome(home, whole=ledger)] += 1
            os.pwrite(file.fileno(), bytes([byte]), at)
        assert file.read() == content, "looking at it has changed nothing"

    errors = {"DamagedStoreError", "ForeignStoreError", "NewerFormatError"}
    assert set(found) == {*errors, "the ledger"}


@stepped(5)
def test_any_flipped_bit_of_the_header_is_damage_or_harmless_for_a_driver_too(golden, home, step):
    content, ledger = golden
    path = home / TOPOLOGY / FILE
    found: Counter[str] = Counter()
    for at in range(200):
        for bit in range(at % step, 8, step):
            path.write_bytes(flipped(content, at, bit))
            found[outcome(home, whole=ledger, acquire=True)] += 1

    # StoreError: a header that says read-only; a peek may still read what is behind it.
    errors = {"DamagedStoreError", "ForeignStoreError", "NewerFormatError", "StoreError"}
    assert set(found) == {*errors, "the ledger"}


def flipped(content: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return bytes(changed)


def test_an_old_ledger_leaves_no_trace_that_damage_could_bring_back(store):
    store.acquire(FINGERPRINT)
    for files in (200, 3, 60, 1, 30):
        ledger = Ledger(TOPOLOGY, FINGERPRINT)
        batch = {"files": [f"secret-{files}-{n:04}" for n in range(files)]}
        store.save(ledger.emit(TransactionAttempt(1, 0), batch))
    content = (store.folder / FILE).read_bytes()

    assert set(re.findall(rb"secret-(\d+)-", content)) == {b"30"}


def test_an_empty_file_is_damaged(store, stored):
    os.truncate(stored, 0)

    text = refused(store, DamagedStoreError)

    assert text.startswith(f"{stored} is empty; restore it from a copy.")
    assert stored.stat().st_size == 0


@pytest.mark.parametrize("content", [b"x", b"hello\n" * 2000, b"\0" * 8192], ids=len)
def test_a_file_that_is_no_database_is_refused_and_left_alone(store, stored, content):
    stored.write_bytes(content)

    with pytest.raises(StoreError, match=re.escape(str(stored))):
        store.acquire(FINGERPRINT)

    assert stored.read_bytes() == content


def edit(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def test_the_database_of_another_program_is_foreign(store, stored):
    edit(stored, "PRAGMA application_id = 7")

    assert "does not hold a waterspout coordination store" in refused(store, ForeignStoreError)


def test_a_newer_format_asks_for_an_upgrade(store, stored):
    edit(stored, "PRAGMA user_version = 2")

    text = refused(store, NewerFormatError)

    assert f"{stored} was written by a newer waterspout (format 2, this one knows 1)" in text


@pytest.mark.parametrize("name", ["ledger", "lease"])
def test_a_missing_record_is_damage_and_not_made_anew(store, stored, name):
    edit(stored, f"DELETE FROM records WHERE name = '{name}'")

    with pytest.raises(DamagedStoreError, match=f"has no {name}; restore it from a copy"):
        store.acquire(FINGERPRINT)


@pytest.mark.parametrize("statement", ["DELETE FROM records", "DROP TABLE records"])
def test_a_store_without_records_is_damaged(store, stored, statement):
    edit(stored, statement)

    assert "restore it from a copy" in refused(store, DamagedStoreError)


@pytest.mark.parametrize("name", ["ledger", "lease"])
def test_a_record_changed_by_hand_does_not_match_its_checksum(store, stored, name):
    edit(stored, f"UPDATE records SET body = replace(body, '1', '2') WHERE name = '{name}'")

    with pytest.raises(DamagedStoreError, match=f"the {name} in .* is damaged"):
        store.acquire(FINGERPRINT)


def test_records_that_were_swapped_do_not_match_their_checksums(store, stored):
    edit(
        stored,
        "UPDATE records SET name = 'x' WHERE name = 'ledger'",
        "UPDATE records SET name = 'ledger' WHERE name = 'lease'",
        "UPDATE records SET name = 'lease' WHERE name = 'x'",
    )

    refused(store, DamagedStoreError)


@pytest.mark.parametrize("body", ["", "{", "null", "[]", "{}", '"x"', "Infinity", '{"epoch": 1}'])
@pytest.mark.parametrize("name", ["ledger", "lease"])
def test_a_record_with_a_right_checksum_over_nonsense_is_damaged(store, stored, name, body):
    db = sqlite3.connect(stored)
    record = (body, checksum(f"{name}|{body}"), name)
    db.execute("UPDATE records SET body = ?, checksum = ? WHERE name = ?", record)
    db.commit()
    db.close()

    with pytest.raises(DamagedStoreError):
        store.acquire(FINGERPRINT)


def test_what_a_damaged_store_says_does_not_quote_the_data(store, stored):
    content = stored.read_bytes()
    # The ledger has it, and so has what is remembered of the last batch, in whichever order.
    assert b"/data/incoming" in content
    stored.write_bytes(content.replace(b"/data/incoming", b"\xafdata/incoming"))

    assert len(refused(store, DamagedStoreError)) < 400


def test_a_journal_without_its_store_is_not_rolled_into_a_new_one(store, stored):
    stored.unlink()
    journal = stored.with_name(f"{FILE}-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))

    with pytest.raises(DamagedStoreError, match=r"is gone, but .*-journal is not"):
        store.acquire(FINGERPRINT)

    assert not stored.exists()


def test_a_store_that_vanishes_under_its_driver_is_noticed_at_the_next_save(store, home):
    store.acquire(FINGERPRINT)
    shutil.rmtree(store.folder)

    for write in (lambda: store.save(ledger_at(1)), store.renew):
        with pytest.raises(DamagedStoreError, match="was removed or replaced while this driver"):
            write()

    assert not store.folder.exists()


def test_a_driver_whose_store_was_replaced_cannot_write_into_the_new_one(store, home):
    store.acquire(FINGERPRINT)
    shutil.rmtree(store.folder)
    other = EmbeddedStore(home, TOPOLOGY, durable=False)
    assert other.acquire(FINGERPRINT) == 1

    for write in (lambda: store.save(ledger_at(1)), store.renew, lambda: store.save(ledger_at(1))):
        with pytest.raises(DamagedStoreError, match="was removed or replaced"):
            write()
    store.release()

    other.renew()
    assert unnamed(other.load()) == Ledger(TOPOLOGY, FINGERPRINT)
    other.release()


# Kills, at every moment and at random ones.

POINTS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "link", "unlink")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def traced(
    home: Path, orders: list[str], inject: str | None = None
) -> tuple[list[dict[str, object]], Counter[str]]:
    """Run a driver under strace; return its answers and how often it passed each point."""
    log = home.with_name(f"{home.name}.log")
    options = ["-f", "-o", str(log), "-e", f"trace={','.join(POINTS)}"]
    options += [] if inject is None else ["-e", f"inject={inject}"]
    done = subprocess.run(
        ["strace", *options, *command(home)],
        input="".join(f"{order}\n" for order in orders),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    passed = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    return answers, Counter(passed)


def points_of(passed: Counter[str]) -> list[tuple[str, int]]:
    return [(name, nth) for name in POINTS for nth in range(1, passed[name] + 1)]


@needs_strace
@stepped(12)
def test_a_driver_killed_at_any_system_call_leaves_the_old_ledger_or_the_new(tmp_path, step):
    first, orders = tmp_path / "first", ["acquire", "save 1", "save 2"]
    with Driver(first) as driver:
        driver.ask("acquire")
        driver.ask("save 0")
        driver.ask("release")
    whole = tmp_path / "whole"
    shutil.copytree(first, whole)
    answers, passed = traced(whole, orders)
    assert [answer.get("error") for answer in answers] == [None] * 3
    # Two of the three transactions: the lease and one save; the third would be the same again.
    points = [p for p in points_of(passed) if p[1] <= -(-2 * passed[p[0]] // 3)][::step]

    def kill_at(point: tuple[str, int]) -> str | None:
        home = tmp_path / f"{point[0]}-{point[1]}"
        shutil.copytree(first, home)
        answers, _ = traced(home, orders, f"{point[0]}:signal=KILL:when={point[1]}")
        saved = sum(str(answer["order"]).startswith("save") for answer in answers)
        store = EmbeddedStore(home, TOPOLOGY, durable=False)
        epoch, found = store.acquire(FINGERPRINT), store.load()
        store.release()
        if len(answers) == 3:
            return f"{point}: was not killed"
        if found not in (ledger_at(saved), ledger_at(saved + 1)):
            return f"{point}: batch {found.current} after {saved} saves"
        if epoch not in ((3,) if answers else (2, 3)):
            return f"{point}: epoch {epoch} after {len(answers)} answers"
        return None

    with ThreadPoolExecutor(4) as pool:
        wrong = [text for text in pool.map(kill_at, points) if text is not None]

    assert len(points) >= 25 // step
    assert wrong == []


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("step", [1])
def test_a_first_run_killed_at_any_system_call_leaves_no_store_or_a_whole_one(tmp_path, step):
    _, passed = traced(tmp_path / "whole", ["acquire"])
    # Those before the file is in its place, in steps; and all around that moment.
    around = ("link", "unlink", "fsync")
    points = [p for p in points_of(passed) if p[0] in around or p[1] % (4 * step) == 1]

    def kill_at(point: tuple[str, int]) -> str | None:
        home = tmp_path / f"{point[0]}-{point[1]}"
        traced(home, ["acquire"], f"{point[0]}:signal=KILL:when={point[1]}")
        store = EmbeddedStore(home, TOPOLOGY, durable=False)
        left = store.peek()
        store.acquire(FINGERPRINT)
        found = store.load()
        store.release()
        fresh = Ledger(TOPOLOGY, FINGERPRINT)
        left, found = unnamed(left), unnamed(found)
        return None if left in (None, fresh) and found == fresh else f"{point}: {left}, {found}"

    with ThreadPoolExecutor(4) as pool:
        wrong = [text for text in pool.map(kill_at, points) if text is not None]

    assert {"link", "unlink", "fsync", "pwrite64"} <= {name for name, _ in points}
    assert wrong == []


@pytest.mark.soak
@needs_strace
def test_a_damaged_journal_of_a_killed_writer_never_makes_a_third_ledger(golden, home, tmp_path):
    _, old = golden
    shutil.copytree(home, tmp_path / "whole")
    _, passed = traced(tmp_path / "whole", ["acquire", "save 5"])
    # Some pages of the save are in the file, the last two are not.
    traced(home, ["acquire", "save 5"], f"pwrite64:signal=KILL:when={passed['pwrite64'] - 1}")
    file, journal_file = home / TOPOLOGY / FILE, home / TOPOLOGY / f"{FILE}-journal"
    half, journal = file.read_bytes(), journal_file.read_bytes()

    def after(damaged: bytes) -> str:
        file.write_bytes(half)
        journal_file.write_bytes(damaged)
        return outcome(home, whole=old, begun=ledger_at(5))

    dice = random.Random(journal)
    cut = {after(journal[:length]) for length in range(0, len(journal), 307)}
    flips = {after(flipped(journal, at, dice.randrange(8))) for at in range(0, len(journal), 197)}

    # SQLite goes back no further than to the first page whose checksum is wrong: none at all here.
    sector, page = (int.from_bytes(journal[at : at + 4]) for at in (20, 24))
    of_first_page = sector + 4 + page

    assert after(journal) == "the ledger"
    assert after(flipped(journal, of_first_page, 0)) == "DamagedStoreError"
    assert cut | flips <= {"DamagedStoreError", "the ledger", "the one being saved"}


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("step", [1])
def test_a_disk_error_at_any_system_call_is_told_and_loses_nothing_that_was_saved(tmp_path, step):
    first, orders = tmp_path / "first", ["acquire", "save 1", "save 2", "save 3"]
    with Driver(first) as driver:
        driver.ask("acquire")
        driver.ask("save 0")
        driver.ask("release")
    whole = tmp_path / "whole"
    shutil.copytree(first, whole)
    _, passed = traced(whole, orders)
    # Those of the second transaction, the first save.
    later = [p for p in points_of(passed) if p[1] > passed[p[0]] // 4]
    points = [p for p in later if p[1] <= -(-passed[p[0]] // 2)][::step]
    errors = {"pwrite64": "ENOSPC", "fdatasync": "EIO", "ftruncate": "EIO"}

    def fail_at(point: tuple[str, int]) -> str | None:
        home = tmp_path / f"{point[0]}-{point[1]}"
        shutil.copytree(first, home)
        inject = f"{point[0]}:error={errors[point[0]]}:when={point[1]}"
        answers, _ = traced(home, orders, inject)
        told = [(a["error"], a["message"]) for a in answers if "error" in a]
        store = EmbeddedStore(home, TOPOLOGY, durable=False)
        found = store.peek()
        if [name for name, _ in told] not in ([], ["StoreError"]):
            return f"{point}: {told}"
        if told and "the same command goes on" not in str(told[0][1]):
            return f"{point}: no remedy in {told}"
        if len(answers) != 4 or found != ledger_at(3):
            return f"{point}: {answers}, batch {found and found.current}"
        return None if told else "nothing was told"

    with ThreadPoolExecutor(4) as pool:
        wrong = [text for text in pool.map(fail_at, points) if text is not None]

    assert len(points) >= 15 // step
    # SQLite does not ask whether its sync of the folder succeeded.
    assert wrong in ([], ["nothing was told"])


@pytest.mark.soak
def test_a_writer_killed_at_a_random_moment_leaves_the_old_ledger_or_the_new(home):
    dice = random.Random(7)
    step = 0
    for round_ in range(5 if shutil.which("strace") else 30):
        with Driver(home) as driver:
            assert driver.ask("acquire")["value"] == round_ + 1
            last = step + dice.randint(1, 12)
            for n in range(step + 1, last + 20):
                driver.tell(f"save {n}")
            for n in range(step + 1, last + 1):
                assert driver.answer() == {"order": f"save {n}", "value": None}
            driver.kill()
        found = EmbeddedStore(home, TOPOLOGY).peek()
        assert found is not None
        assert last <= found.current - 1 < last + 20
        assert found == ledger_at(found.current - 1)
        step = found.current - 1 if found.current < 60 else 0


def test_of_two_drivers_that_start_together_exactly_one_runs(tmp_path):
    outcomes = []
    with Driver(tmp_path) as one, Driver(tmp_path) as two:
        for round_ in range(20):
            barrier = tmp_path / f"go-{round_}"
            for driver in (one, two):
                assert driver.ask(f"race {barrier} {tmp_path / f'home-{round_}'}") == {
                    "ready": True
                }
            barrier.touch()
            answers = {driver.pid: driver.answer() for driver in (one, two)}
            (winner,) = (pid for pid, answer in answers.items() if "value" in answer)
            (loser,) = (answer for answer in answers.values() if "error" in answer)
            outcomes.append((answers[winner]["value"], loser["error"]))
            assert f"process {winner} " in loser["message"]
            assert not list((tmp_path / f"home-{round_}").rglob(".*")), "no draft is left"

    assert outcomes == [(1, "LeaseHeldError")] * 20


# Disks that are full, read-only or not ours.


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 128 KiB, and a way to make it read-only or writable."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(*options: str) -> None:
        done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
        if done.returncode != 0:
            raise PermissionError(done.stderr.strip())

    try:
        mount("-t", "tmpfs", "-o", "size=128k", "tmpfs")
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"mounting is not permitted here: {error}")
    try:
        yield place, lambda access: mount("-o", f"remount,{access}")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all space that is left; return the file to remove."""
    filler = place / "filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    assert os.statvfs(place).f_bavail == 0
    return filler


def test_a_full_disk_is_told_with_its_remedy_and_the_old_ledger_stays(small_disk):
    place, _ = small_disk
    store = EmbeddedStore(place, TOPOLOGY)
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))
    filler = fill(place)

    for _ in range(3):
        with pytest.raises(StoreError, match="the disk is full; free some space, and the same"):
            store.save(ledger_at(2))
        assert store.load() == ledger_at(1)
    with pytest.raises(StoreError, match="the disk is full"):
        store.renew()
    filler.unlink()

    store.save(ledger_at(2))
    assert store.load() == ledger_at(2)
    store.release()


def test_a_lease_is_given_up_after_an_error_once_there_is_space_again(small_disk):
    place, _ = small_disk
    store = EmbeddedStore(place, TOPOLOGY)
    store.acquire(FINGERPRINT)
    filler = fill(place)
    with pytest.raises(StoreError):
        store.save(ledger_at(1))
    filler.unlink()

    store.release()

    again = EmbeddedStore(place, TOPOLOGY)
    assert again.acquire(FINGERPRINT) == 2
    again.release()


def test_a_release_on_a_full_disk_does_not_raise(small_disk):
    place, _ = small_disk
    store = EmbeddedStore(place, TOPOLOGY)
    store.acquire(FINGERPRINT)
    fill(place)

    store.release()

    with pytest.raises(LeaseLostError):
        store.renew()


def test_a_first_run_on_a_full_disk_leaves_no_file_and_works_once_there_is_space(small_disk):
    place, _ = small_disk
    (place / TOPOLOGY).mkdir()
    filler = fill(place)
    store = EmbeddedStore(place, TOPOLOGY)

    with pytest.raises(StoreError, match=r"full|No space left"):
        store.acquire(FINGERPRINT)
    assert list((place / TOPOLOGY).iterdir()) == []
    filler.unlink()

    assert store.acquire(FINGERPRINT) == 1
    store.release()


def test_a_read_only_disk_can_be_read_and_is_told_to_a_driver_with_its_remedy(small_disk):
    place, make = small_disk
    store = EmbeddedStore(place, TOPOLOGY)
    store.acquire(FINGERPRINT)
    store.save(ledger_at(2))
    store.release()
    make("ro")

    assert store.peek() == ledger_at(2)
    with pytest.raises(
        StoreError, match=r"cannot be written .*check the permissions, or set WATER"
    ):
        store.acquire(FINGERPRINT)
    make("rw")

    assert store.acquire(FINGERPRINT) == 2
    assert store.load() == ledger_at(2)
    store.release()


def test_a_first_run_on_a_read_only_disk_asks_for_another_place(small_disk):
    place, make = small_disk
    make("ro")

    with pytest.raises(
        StoreError, match=r"Read-only file system\. Choose another folder with WATER"
    ):
        EmbeddedStore(place / "home", TOPOLOGY).acquire(FINGERPRINT)


@contextmanager
def without_privileges():
    """Be nobody for a while, if we are root: root is refused nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_place():
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.mark.parametrize("bits", [0o000, 0o500])
def test_a_home_without_permission_is_told_with_its_remedy(open_place, bits):
    home = open_place / "home"
    home.mkdir(mode=bits)
    store = EmbeddedStore(home, TOPOLOGY)

    with (
        without_privileges(),
        pytest.raises(StoreError, match=r"Permission denied.*WATERSPOUT_HOME"),
    ):
        store.acquire(FINGERPRINT)

    home.chmod(0o700)
    assert list(home.iterdir()) == []


def test_the_store_of_another_user_is_told_with_its_remedy(open_place):
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    store = EmbeddedStore(open_place, TOPOLOGY, durable=False)
    store.acquire(FINGERPRINT)
    store.release()
    os.chmod(store.folder, 0o755)

    with without_privileges(), pytest.raises(StoreError, match=r"cannot be written.*permissions"):
        EmbeddedStore(open_place, TOPOLOGY).acquire(FINGERPRINT)


def test_a_home_that_is_a_file_is_told_with_its_remedy(tmp_path):
    (tmp_path / "home").write_text("")

    with pytest.raises(StoreError, match="Choose another folder with WATERSPOUT_HOME"):
        EmbeddedStore(tmp_path / "home", TOPOLOGY).acquire(FINGERPRINT)


def test_a_file_system_without_hard_links_is_refused_and_left_clean(store, monkeypatch):
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(StoreError, match=r"Operation not permitted\. Choose another folder"):
        store.acquire(FINGERPRINT)

    assert list(store.folder.iterdir()) == []


# Size, threads, and the life of a lease.


def run_batches(store: EmbeddedStore, batches: int, *, save_every: int) -> Ledger:
    """Emit, begin and commit; every hundredth batch at its second begun attempt."""
    ledger = store.load()
    for txid in range(1, batches + 1):
        attempts = range(2 if txid % 100 == 0 else 1)
        steps = []
        for number in attempts:
            attempt = TransactionAttempt(txid, number)
            steps.append(ledger := ledger.emit(attempt, {"s": {"end": txid}}))
            steps.append(ledger := ledger.begin(attempt))
        steps.append(ledger := ledger.commit(attempt, keep_resolved=False))
        if txid % save_every == 0:
            for step in steps:
                store.save(step)
    return ledger


@pytest.mark.parametrize("save_every", [500, soaked(25)])
def test_a_store_stays_small_over_100_000_batches(store, home, save_every):
    store.acquire(FINGERPRINT)

    ledger = run_batches(store, 100_000, save_every=save_every)
    store.release()

    assert ledger.current == 100_001
    assert EmbeddedStore(home, TOPOLOGY).peek() == ledger
    # What the last thousand batches held is kept, for `waterspout state explain`.
    assert sum(path.stat().st_size for path in store.folder.iterdir()) < 192 * 1024


def test_a_store_shrinks_back_to_use_after_a_large_batch(store):
    store.acquire(FINGERPRINT)
    first = TransactionAttempt(1, 0)
    store.save(store.load().emit(first, {"files": ["x" * 100] * 5000}))
    large = (store.folder / FILE).stat().st_size

    for step in range(50):
        store.save(ledger_at(step))

    assert (store.folder / FILE).stat().st_size <= large


def test_saves_and_renewals_from_two_threads_do_not_disturb_each_other(store, home):
    store.acquire(FINGERPRINT)
    done = threading.Event()
    wrong: list[object] = []
    seen: list[int] = []

    def guarded(work):
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            wrong.append(error)

    def look() -> None:
        found = EmbeddedStore(home, TOPOLOGY).peek()
        assert replace(found, history="") == ledger_at(found.current - 1)
        seen.append(found.current)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (store.renew, look)]
    for thread in threads:
        thread.start()
    for step in range(1, 40):
        store.save(ledger_at(step))
        assert store.load() == ledger_at(step)
    done.set()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert seen == sorted(seen)


def test_an_error_in_one_thread_does_not_close_the_file_under_another(store):
    store.acquire(FINGERPRINT)
    done = threading.Event()
    wrong: list[BaseException] = []
    renewals = 0

    def renew() -> None:
        nonlocal renewals
        try:
            while not done.is_set():
                store.renew()
                renewals += 1
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=renew)
    thread.start()
    large = store.load().emit(TransactionAttempt(1, 0), {"s": "x" * 100_000})
    for _ in range(100):
        with store._lock:
            store._open().execute("PRAGMA max_page_count = 3")
            with pytest.raises(StoreError, match="the disk is full"):
                store.save(large)
    done.set()
    thread.join()

    assert wrong == []
    assert unnamed(store.load()) == Ledger(TOPOLOGY, FINGERPRINT)


def test_a_store_that_holds_no_lease_writes_nothing(store, stored):
    before = stored.read_bytes()

    for write in (lambda: store.save(ledger_at(1)), store.renew):
        with pytest.raises(LeaseLostError, match="is not held by this driver"):
            write()
    store.release()

    assert stored.read_bytes() == before


def test_a_renewal_after_the_release_does_not_open_the_file_again(store, monkeypatch):
    store.acquire(FINGERPRINT)
    store.release()
    monkeypatch.setattr(embedded.sqlite3, "connect", None)

    with pytest.raises(LeaseLostError):
        store.renew()


@pytest.mark.parametrize("way", ["peek", "refused acquire"])
def test_only_the_holder_keeps_the_file_open(store, home, way):
    store.acquire(FINGERPRINT)
    other = EmbeddedStore(home, TOPOLOGY)

    if way == "peek":
        other.peek()
    else:
        with pytest.raises(LeaseHeldError):
            other.acquire(FINGERPRINT)

    assert other._db is None
    assert store._db is not None


def test_release_may_be_called_twice_and_without_acquire(store):
    store.release()
    store.acquire(FINGERPRINT)
    store.release()
    store.release()

    assert store.acquire(FINGERPRINT) == 2


def test_a_save_that_cannot_be_json_changes_nothing(store):
    store.acquire(FINGERPRINT)

    with pytest.raises(TypeError):
        store.save(store.load().emit(TransactionAttempt(1, 0), {"s": object()}))

    store.save(ledger_at(1))
    assert store.load() == ledger_at(1)


def test_every_save_is_synced_to_the_disk_unless_asked_otherwise(home):
    for durable, level in ((True, 2), (False, 0)):
        store = EmbeddedStore(home, TOPOLOGY, durable=durable)
        store.acquire(FINGERPRINT)
        db = store._open()
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        assert db.execute("PRAGMA secure_delete").fetchone() == (1,)
        store.release()


def test_metadata_of_any_text_comes_back_as_it_was(store):
    store.acquire(FINGERPRINT)
    odd = {"s": {"ünïcödé ☃": ["\0", "\ud800", "'; DROP TABLE records; --", "\n", 1e300, -0.0]}}
    ledger = store.load().emit(TransactionAttempt(1, 0), {**odd, **metadata(1)})

    store.save(ledger)

    assert store.load() == ledger


# The note that the last batch is settled.

NOTE = "settled"


def marked(store: EmbeddedStore, number: int = 3) -> Ledger:
    """Take the lease and save a ledger of the store's own, at the mark of a batch."""
    store.acquire(FINGERPRINT)
    ledger = replace(ledger_at(number), history=store.load().history)
    store.save(ledger)
    return ledger


def test_a_note_is_read_with_the_ledger_and_is_for_this_user_alone(store, home):
    ledger = marked(store)
    store.note(ledger.settle())

    other = EmbeddedStore(home, TOPOLOGY, durable=False)
    assert [store.load(), other.peek()] == [ledger.settle()] * 2
    assert mode(store.folder / NOTE) == 0o600


def test_the_next_driver_moves_the_note_into_the_ledger(store, home):
    ledger = marked(store)
    store.note(ledger.settle())
    store.release()

    next_store = EmbeddedStore(home, TOPOLOGY, durable=False)
    next_store.acquire(FINGERPRINT)
    next_store.release()

    assert (store.folder / NOTE).read_bytes() == b""
    assert store.peek() == ledger.settle()


def test_a_note_is_about_one_batch_of_one_attempt_of_one_ledger(store):
    ledger = marked(store)
    store.note(ledger.settle())
    others = [
        replace(ledger, current=ledger.current + 1, emitted={}, begun=()),
        replace(ledger, committed_attempt=7),
        replace(ledger, history="another"),
    ]

    for other in others:
        store.save(other)
        assert not store.load().settled
    store.save(ledger)
    assert store.load().settled


def test_a_note_that_is_damaged_or_cut_says_nothing(store):
    ledger = marked(store)
    store.note(ledger.settle())
    whole = (store.folder / NOTE).read_bytes()

    for content in (b"", whole[:-1], b"x" + whole[1:], whole.replace(b"3", b"4")):
        (store.folder / NOTE).write_bytes(content)
        assert store.load() == ledger
    (store.folder / NOTE).write_bytes(whole + b"the end of a longer one")
    assert store.load() == ledger.settle()


def test_a_driver_that_lost_the_lease_by_releasing_it_notes_nothing(store):
    ledger = marked(store)
    store.release()

    with pytest.raises(LeaseLostError):
        store.note(ledger.settle())

    assert not (store.folder / NOTE).exists()


def test_a_note_is_never_written_through_a_link(store, tmp_path):
    ledger = marked(store)
    (tmp_path / "victim").write_text("mine")
    (store.folder / NOTE).symlink_to(tmp_path / "victim")

    with pytest.raises(StoreError):
        store.note(ledger.settle())

    assert (tmp_path / "victim").read_text() == "mine"


@needs_strace
def test_a_note_waits_for_no_disk(home):
    script = (
        "from tests.coordination.test_embedded import *\n"
        f"store = EmbeddedStore(Path({str(home)!r}), TOPOLOGY)\n"
        "ledger = marked(store)\n"
        "import os; os.write(2, b'FROM HERE\\n')\n"
        "for _ in range(3): store.note(ledger.settle())\n"
        "os.write(2, b'TO HERE\\n')\n"
    )
    calls = subprocess.run(
        [
            "strace",
            "-f",
            "-e",
            "trace=fsync,fdatasync,write,pwrite64",
            sys.executable,
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
    ).stderr
    between = calls.split("FROM HERE", 1)[1].split("TO HERE", 1)[0]
    assert between.count("pwrite64(") == 3
    assert "sync(" not in between
