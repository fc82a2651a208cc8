"""SQLite states that are damaged, foreign, full or killed: exact, or a clear error."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.soaking import soaked, stepped
from tests.state.commit_child import LAST_TXID, commit_the_rest, load_ledger, partials
from tests.state_support import Add, Batches, committed, pairs_of
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import (
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    NewerFormatError,
    SerdeError,
    StateMismatchError,
    StoreError,
)
from waterspout.faults import ENVIRONMENT_VARIABLE, Fault, FaultPlan
from waterspout.state._base import StateKind
from waterspout.state._head import Stamp
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Sum

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("commit_child.py")


@pytest.fixture
def change(db):
    """Change the file behind the state's back."""

    def execute(sql, *parameters):
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute(sql, parameters)

    return execute


def word_counts(db, kind=StateKind.OPAQUE, table="word_counts"):
    return SQLiteState(str(db), table, kind=kind).bind(
        Schema.parse("word string"), Schema.parse("count bigint")
    )


def assert_refused(error, words, *, state, factory):
    """See that nothing gets through: no check, no reading, no claim, no write."""
    batches = Batches(state)
    for attempt in (
        factory.check,
        state.read_head,
        batches.claim,
        lambda: state.settle(1, 0),
        lambda: state.multi_get([("a",)]),
        lambda: state.multi_put([("a",)], [1]),
        lambda: pairs_of(state._backing),
        lambda: state._backing.multi_get([("a",)]),
        lambda: state._backing.multi_put([], []),
        lambda: state._backing.fenced_put(Stamp(batches.writer, 1, 0), [], []),
    ):
        with pytest.raises(error, match=words):
            attempt()


@pytest.mark.parametrize("column", ["head", "layout", "checksum"])
def test_a_head_that_was_changed_by_any_other_hand_stops_everything(
    make_state, db, change, select, column
):
    Batches(make_state()).commit({"a": 1})
    ((text,),) = select(f"SELECT {column} FROM _waterspout_heads")
    middle = len(text) // 2
    flipped = text[:middle] + chr(ord(text[middle]) ^ 1) + text[middle + 1 :]
    change(f"UPDATE _waterspout_heads SET {column} = ?", flipped)

    assert_refused(
        DamagedStoreError,
        "the head of table 'word_counts' in .* does not match its checksum",
        state=make_state(),
        factory=word_counts(db),
    )
    assert select("SELECT word, count FROM word_counts") == [("a", 1)]


def test_a_value_that_cannot_be_read_names_its_key(make_state, change):
    state = make_state(keys=None)
    committed(state, 1, {("a", 1): 1, "b": 2})
    change("""UPDATE word_counts SET value = '{"$":["number",' WHERE "key" = '["a",1]'""")

    with pytest.raises(DamagedStoreError, match=r"under key \('a', 1\)"):
        state.multi_get([("b",), ("a", 1)])
    with pytest.raises(DamagedStoreError, match=r"under key \('a', 1\)"):
        pairs_of(state._backing)
    assert state.multi_get([("b",)]) == [2]


@pytest.mark.parametrize(
    ("kind", "garbage"),
    [("date", "2024-02-30"), ("decimal(10,2)", "one"), ("double", "one"), ("timestamp", "now")],
)
def test_a_column_that_cannot_be_read_is_damage_never_none(make_state, change, kind, garbage):
    state = make_state("k string", f"v {kind}")
    state.multi_put([("a",)], [None])
    change("UPDATE word_counts SET v = ?", garbage)

    with pytest.raises(DamagedStoreError, match=r"under key \('a',\)"):
        state.multi_get([("a",)])


def test_a_key_that_cannot_be_read_is_damage(make_state, change):
    state = make_state(keys=None)
    committed(state, 1, {"a": 1})
    change("""UPDATE word_counts SET "key" = 'nonsense'""")

    with pytest.raises(DamagedStoreError, match=r"key \('nonsense', ''\) cannot be read"):
        pairs_of(state._backing)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(make_state, db):
    db.write_bytes(b"not a database, but a love letter\n" * 100)
    before = db.read_bytes()

    assert_refused(
        StoreError, "file is not a database", state=make_state(), factory=word_counts(db)
    )
    assert db.read_bytes() == before


def test_a_database_cut_short_is_refused(make_state, db):
    state = make_state()
    committed(state, 1, {f"word {n}": 1 for n in range(1000)})
    state.close()
    db.write_bytes(db.read_bytes()[:-8192])

    with pytest.raises(StoreError, match=r"counts.db cannot be used"):
        state.multi_get([(f"word {n}",) for n in range(1000)])


@pytest.mark.parametrize(
    "thing", ["TABLE word_counts (word, count)", "VIEW word_counts AS SELECT 1"]
)
def test_a_table_that_we_did_not_make_is_refused_and_left_as_it_is(
    make_state, db, change, select, thing
):
    change(f"CREATE {thing}")
    state, factory = make_state(), word_counts(db)

    for attempt in (
        factory.check,
        Batches(state).claim,
        lambda: state.multi_get([("a",)]),
        lambda: state.multi_put([("a",)], [1]),
    ):
        with pytest.raises(ForeignStoreError, match="exists, but waterspout did not make it"):
            attempt()
    assert select("SELECT name FROM sqlite_master") == [("word_counts",)]


def test_checking_and_reading_leave_somebody_elses_file_as_it_is(make_state, db, change):
    change("CREATE TABLE theirs (a)")
    before = db.read_bytes()

    word_counts(db).check()
    make_state().multi_get([("a",)])
    make_state().read_head()

    assert db.read_bytes() == before
    assert [path.name for path in db.parent.iterdir() if path.name.startswith(db.name)] == [db.name]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"kind": StateKind.TRANSACTIONAL}, "opaque state .* wants a transactional state"),
        ({"kind": StateKind.NON_TRANSACTIONAL}, "opaque state .* wants a non-transactional"),
        ({"keys": "w string"}, "word string -> count bigint.* wants .* w string -> count"),
        ({"values": "count double"}, "count bigint.* wants .* count double"),
        ({"keys": None}, r"word string .* wants .* \(any key\) -> value"),
    ],
    ids=["transactional", "plain", "other key", "other type", "no schema"],
)
def test_a_table_of_another_kind_or_other_columns_is_refused(make_state, select, other, words):
    Batches(make_state()).commit({"a": 1})
    before = select("SELECT * FROM word_counts")
    state = make_state(**other)

    assert_refused(ForeignStoreError, words, state=state, factory=state._backing)
    assert select("SELECT * FROM word_counts") == before


def test_a_newer_format_is_refused(make_state, db, change):
    Batches(make_state()).commit({"a": 1})
    change("UPDATE _waterspout_heads SET format = 2")

    assert_refused(
        NewerFormatError,
        r"written by a newer waterspout \(format 2",
        state=make_state(),
        factory=word_counts(db),
    )


def test_a_table_that_another_topology_writes_is_refused(make_state):
    Batches(make_state()).commit({"a": 1})
    state = make_state()
    batches = Batches(state)
    state.enroll(type(batches.writer)("another", 7))

    with pytest.raises(ForeignStoreError, match="'word-count'; topology 'another'"):
        batches.claim()


def test_a_wiped_table_stops_the_topology_that_wrote_to_it(make_state, db, change):
    state = make_state()
    batches = Batches(state)
    batches.commit({"a": 1})
    state.close()
    for file in db.parent.glob("counts.db*"):
        file.unlink()

    with pytest.raises(StateMismatchError, match="is empty, but 1 batches were committed"):
        batches.claim()


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path):
    factory = word_counts(tmp_path / "missing" / "counts.db")

    with pytest.raises(StoreError, match=r"the folder .*missing.* is not there; create it"):
        factory.check()
    with pytest.raises(StoreError, match="unable to open database file"):
        factory.backing().multi_put([], [])
    assert not (tmp_path / "missing").exists()


def test_a_path_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "counts.db").mkdir()

    with pytest.raises(StoreError, match="unable to open database file"):
        word_counts(tmp_path / "counts.db").check()


@pytest.fixture
def mount():
    """Mount a small file system of memory, with options; only root can."""
    # Not in tmp_path, which pytest may move away or remove as a whole.
    where = Path(tempfile.mkdtemp(prefix="mounted-"))

    def run(*options):
        if os.geteuid() != 0:
            pytest.skip("only root can mount a file system")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(where)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"mount does not work here: {done.stderr.strip()}")
        return where

    yield run
    if where.is_mount():
        subprocess.run(["umount", "--lazy", str(where)], check=True)
    where.rmdir()


@pytest.mark.parametrize("there", [True, False], ids=["with the file", "without it"])
def test_a_read_only_file_system_is_refused_before_anything_runs(mount, there):
    where = mount("size=1m")
    factory = word_counts(where / "counts.db")
    if there:
        state = factory.make_state(Config(), 0, 1)
        committed(state, 1, {"a": 1})
        state.close()
    mount("remount", "ro")

    with pytest.raises(StoreError, match="is read-only, so SQLite cannot write"):
        factory.check()
    backing = factory.backing()
    with pytest.raises(StoreError, match="cannot be used"):
        backing.multi_put([], [])


@pytest.mark.parametrize("combine", [None, Sum()], ids=["folded", "combined"])
def test_a_full_disk_leaves_the_last_batch_intact_and_is_no_trouble_once_there_is_room(
    mount, combine
):
    where = mount("size=160k")
    factory = word_counts(where / "counts.db")
    state, reader = factory.make_state(Config(), 0, 1), factory.make_state(Config(), 0, 1)
    batches = Batches(state, combine=combine)
    batches.commit({"a": 1})
    large = {"a": 1} | {f"a word of some length, number {n}": 1 for n in range(3000)}
    batches.claim()

    with pytest.raises(StoreError, match="disk"):
        batches.write(large)
    assert reader.multi_get([("a",)]) == [1]
    with closing(sqlite3.connect(where / "counts.db")) as outside:
        assert outside.execute("SELECT word, count FROM word_counts").fetchall() == [("a", 1)]

    mount("remount", "size=8m")
    batches.commit(large)
    assert batches.values(*large) == [2] + [1] * 3000
    state.close()
    reader.close()


def test_an_error_of_the_database_leaves_no_broken_connection_behind(make_state, change):
    batches = Batches(make_state(), combine=Sum())
    batches.commit({"a": 1})
    batches.claim()
    change("ALTER TABLE word_counts RENAME TO gone")
    with pytest.raises(StoreError, match="no such table"):
        batches.write({"a": 1})
    change("ALTER TABLE gone RENAME TO word_counts")

    batches.commit({"a": 1})

    assert batches.values("a") == [2]


def test_a_value_that_cannot_be_bound_rolls_its_batch_back_and_the_next_one_works(make_state):
    state = make_state()
    state.begin_commit(1)
    state.multi_update([("a",), ("b",)], [Add(1), Add(2**63)])

    with pytest.raises(SerdeError, match=r"key \('b',\): column 'count' cannot hold"):
        state.commit(1)

    assert committed(state, 1, {"a": 1, "b": 2}, attempt=1) == [1, 2]
    assert state.multi_get([("a",), ("b",)]) == [1, 2]


def run_child(folder, kind, path, *options, plan=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if plan is not None:
        environment[ENVIRONMENT_VARIABLE] = FaultPlan([plan]).to_json()
    return subprocess.run(
        [sys.executable, str(CHILD), str(folder), kind.value, path, *options],
        env=environment,
        timeout=60,
    ).returncode


def assert_exact_after_going_on(folder, kind, path, epoch=2):
    commit_the_rest(folder, kind, path, epoch=epoch)

    history = load_ledger(folder).committed_metadata
    truth = {}
    for txid in range(1, LAST_TXID + 1):
        for word, amount in partials(kind, txid, history[str(txid)]).items():
            truth[word] = truth.get(word, 0) + amount
    with closing(sqlite3.connect(folder / "counts.db")) as outside:
        assert dict(outside.execute("SELECT word, count FROM word_counts").fetchall()) == truth
    return history


KILLED = [
    (kind, path, point)
    for kind, path in [
        (StateKind.OPAQUE, "folded"),
        (StateKind.OPAQUE, "combined"),
        (StateKind.TRANSACTIONAL, "folded"),
    ]
    for point in ("head.before", "head.after", "write.before", "write.after")
]


# Each point and each kind in each run; all pairs of them in soak.
@pytest.mark.parametrize(
    ("kind", "path", "point"),
    [case if at in (0, 3, 6, 9) else soaked(*case) for at, case in enumerate(KILLED)],
)
def test_killed_at_a_kill_point_the_next_attempt_makes_every_key_exact(tmp_path, kind, path, point):
    killed = run_child(tmp_path, kind, path, plan=Fault(point, "kill", where={"txid": 2}))
    assert killed == -signal.SIGKILL

    history = assert_exact_after_going_on(tmp_path, kind, path)

    first = 0 if point == "head.before" else 1
    assert history == {"1": 0, "2": first, "3": 0}


@stepped(8)
@pytest.mark.parametrize(
    ("kind", "path"), [(StateKind.OPAQUE, "folded"), soaked(StateKind.TRANSACTIONAL, "combined")]
)
def test_killed_again_before_any_sql_statement_of_the_recovery_every_key_is_exact(
    tmp_path, kind, path, step
):
    (tmp_path / "killed").mkdir()
    plan = Fault("write.after", "kill", where={"txid": 2})
    assert run_child(tmp_path / "killed", kind, path, plan=plan) == -signal.SIGKILL
    assert run_child(tmp_path, kind, path, "--statements") == 0

    folders = sorted(tmp_path.glob("[0-9]*"))
    assert len(folders) > 15
    for folder in folders[::step]:
        assert_exact_after_going_on(folder, kind, path, epoch=3)


def test_a_paused_driver_that_wakes_after_another_took_over_is_fenced(tmp_path):
    """The child stops itself before it writes; another driver goes on; the child goes on too."""
    plan = Fault("write.before", "stop", where={"txid": 2})
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        ENVIRONMENT_VARIABLE: FaultPlan([plan]).to_json(),
    }
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(tmp_path), "opaque", "folded"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        os.waitpid(child.pid, os.WUNTRACED)
        history = assert_exact_after_going_on(tmp_path, StateKind.OPAQUE, "folded")
        before = load_ledger(tmp_path)
        child.send_signal(signal.SIGCONT)
        _, complaint = child.communicate(timeout=60)
    finally:
        child.kill()

    assert child.returncode == 1
    assert FencedError.__name__ in complaint
    assert "batch 2 attempt 0 (epoch 1) was refused" in complaint
    assert history == {"1": 0, "2": 1, "3": 0}
    assert load_ledger(tmp_path) == before
    with closing(sqlite3.connect(tmp_path / "counts.db")) as outside:
        words = {word for (word,) in outside.execute("SELECT word FROM word_counts")}
    assert words == {"every", "batch 1 attempt 0", "batch 2 attempt 1", "batch 3 attempt 0"}
