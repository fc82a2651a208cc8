"""File states: the recipe, what lies in the folder, sharing, merging, and any history."""

from __future__ import annotations

import gc
import math
import os
import pickle
import random
import stat
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import OWNER, Add, Batches, examples
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    NewerFormatError,
    StoreError,
)
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueMap, OpaqueValue
from waterspout.state.files import FileState
from waterspout.state.files import _log as file_log
from waterspout.state.files._format import Manifest, Name, StateShape, _digest, _ending
from waterspout.state.files._locations import LocalFolder, local_path, open_folder
from waterspout.state.files._log import first_to_merge
from waterspout.state.files._state import FileMap

A, B = ("a",), ("b",)
ROOT = Path(__file__).parents[2]


def value(n, txid=0, prev=None):
    return OpaqueValue(txid, 0, n, prev)


@pytest.fixture
def fast(monkeypatch):
    """Without the wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "counts"


def elsewhere(folder, **options):
    """Return a map as another process would have it."""
    there = LocalFolder(folder)
    there.key += f" elsewhere {next(numbers)}"
    state = FileState.opaque(folder)
    return FileMap(there, state.kind, state.columns, title=state.title, **options)


numbers = count()


def test_a_recipe_travels_and_touches_nothing(folder):
    state = FileState.opaque(folder, snapshot_every=7).bind(
        Schema.parse("word string"), Schema.parse("count bigint")
    )

    assert pickle.loads(pickle.dumps(state)) == state
    assert (state.kind, state.driver_only, state.snapshot_every) == (StateKind.OPAQUE, True, 7)
    assert state.identity() == {
        "backend": "files",
        "kind": "opaque",
        "layout": "word string -> count bigint",
    }
    assert not folder.exists()


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "50", 10_001])
def test_a_number_of_deltas_that_is_none_is_refused(every):
    with pytest.raises(ConfigError, match="snapshot_every is a number of deltas"):
        FileState.opaque("counts", snapshot_every=every)


def test_a_path_is_needed():
    with pytest.raises(ConfigError, match="needs the path"):
        FileState.opaque("")


def test_one_folder_has_one_location_however_it_is_written(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    spellings = [folder, str(folder), "counts", "./x/../counts", folder.as_uri(), f"{folder}/"]

    assert {FileState.opaque(s).location() for s in spellings} == {f"files:{folder}"}


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://me:hunter2@bucket/a/b/?region=eu-west-1", "files:s3://bucket/a/b"),
        ("S3://bucket/a/b", "files:s3://bucket/a/b"),
        ("hdfs://name:9000/a", "files:hdfs://name:9000/a"),
    ],
)
def test_a_secret_in_a_uri_is_never_shown(uri, location):
    state = FileState.opaque(uri)

    assert state.location() == location
    for shown in (repr(state), state.title, str(state.identity())):
        assert "hunter2" not in shown


def test_a_file_system_that_is_not_known_is_told_without_its_secrets():
    with pytest.raises(StoreError, match=r"foo://host/a cannot be reached") as told:
        FileState.opaque("foo://me:hunter2@host/a").backing()

    assert "hunter2" not in f"{told.value}{told.value.__cause__}"


def test_the_address_may_name_the_environment(folder, monkeypatch):
    monkeypatch.setenv("STATES", str(folder.parent))
    state = FileState.opaque("${STATES}/counts")
    state.backing().multi_put([A], [value(1)])

    assert FileState.opaque(folder).backing().multi_get([A]) == [value(1)]


def test_a_folder_is_found_again_by_its_uri(tmp_path):
    folder = tmp_path / "word counts é%"
    FileState.opaque(folder).backing().multi_put([A], [value(1)])

    assert local_path(folder.as_uri()) == folder
    assert FileState.opaque(folder.as_uri()).backing().multi_get([A]) == [value(1)]


def test_a_mock_uri_is_opened_by_pyarrow():
    backing = FileState.opaque("mock:///bucket/counts").backing()
    backing.multi_put([A], [value(1)])

    assert backing.multi_get([A]) == [value(1)]


def test_a_folder_with_other_files_is_refused_and_left_alone(folder):
    folder.mkdir()
    (folder / "letter.txt").write_text("dear all")
    state = FileState.opaque(folder)

    for act in (state.check, lambda: state.backing().multi_put([A], [value(1)])):
        with pytest.raises(ForeignStoreError, match="files that waterspout did not make"):
            act()

    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


def test_a_file_that_comes_later_is_no_trouble(folder):
    backing = FileState.opaque(folder).backing()
    backing.multi_put([A], [value(1)])
    (folder / ".DS_Store").write_text("")

    backing.multi_put([B], [value(2)])

    assert elsewhere(folder).multi_get([A, B]) == [value(1), value(2)]
    assert (folder / ".DS_Store").exists()


def test_a_topology_may_not_write_to_the_folder_of_another(folder):
    Batches(FileState.opaque(folder).make_state(Config(), 0, 1)).commit({"x": 1})
    other = Batches(OpaqueMap(elsewhere(folder)), owner="another", epoch=7)

    with pytest.raises(ForeignStoreError, match=f"belongs to topology '{OWNER}'"):
        other.claim()


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: FileState.transactional(folder),
        lambda folder: FileState.opaque(folder).bind(
            Schema.parse("word string"), Schema.parse("count bigint")
        ),
    ],
    ids=["kind", "layout"],
)
def test_a_state_of_another_kind_or_layout_is_refused(folder, other):
    FileState.opaque(folder).backing().multi_put([A], [value(1)])
    state = other(folder)

    acts = [
        state.check,
        lambda: state.backing().multi_get([A]),
        lambda: state.backing().multi_put([B], [value(1)]),
        lambda: list(state.backing().scan()),
    ]
    for act in acts:
        with pytest.raises(ForeignStoreError, match="this is an opaque state of"):
            act()


def test_a_path_that_is_a_file_is_told_before_a_run(folder):
    folder.write_text("")

    with pytest.raises(StoreError, match="is a file; a file state needs a folder"):
        FileState.opaque(folder / "below").check()


def test_looking_and_checking_write_nothing(folder):
    state = FileState.opaque(folder)
    state.check()

    assert state.backing().read_head() is None
    assert state.backing().multi_get([A]) == [None]
    assert list(state.backing().scan()) == []
    assert not folder.exists()


def test_a_newer_format_is_told(folder):
    backing = FileState.opaque(folder).backing()
    backing.multi_put([A], [value(1)])
    backing.close()
    (head,) = folder.glob("head-*")
    line = head.read_bytes()[:-34].replace(b'"format":1', b'"format":2')
    head.write_bytes(line + _ending(_digest(line)))

    with pytest.raises(NewerFormatError, match="Upgrade waterspout"):
        backing.read_head()


def test_the_files_can_be_read_with_any_tool(folder):
    batches = Batches(FileState.opaque(folder).make_state(Config(), 0, 1))
    batches.commit({"the": 2, "cow": 1})
    (data,) = folder.glob("data-*")
    (head,) = folder.glob("head-*")

    header, *lines, check = data.read_text().splitlines()

    assert header == (
        '{"waterspout":"records","format":1,"kind":"opaque","layout":"(any key) -> value",'
        '"written_by":"word-count, batch 1 attempt 0 (epoch 1)","records":2,"removed":0}'
    )
    assert lines == ['["the"]\t[1,0,2,null]', '["cow"]\t[1,0,1,null]']
    assert len(check) == 33
    manifest = Manifest.from_bytes(head.read_bytes(), where="the head")
    assert manifest.shape == StateShape("opaque", "(any key) -> value")
    named = ((1, '["cow"]'),)
    assert manifest.head == Head(Stamp(Writer(OWNER, 1), 1, 0), True, witnesses=named)
    assert [(part.name, part.size, part.check) for part in manifest.files] == [
        (data.name, data.stat().st_size, check[1:])
    ]
    assert Name.parse(head.name).position == (1, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "head",
        "head-1-2-0000000000000000.json",
        "data-000000000001-000000000001-xyz.txt",
        "head-000000000001-000000000001-0000000000000000.txt",
        ".DS_Store",
        "../x",
    ],
)
def test_only_our_names_are_ours(text):
    assert Name.parse(text) is None


@pytest.mark.parametrize("epoch", [0, 1, 2**31, 2**63])
def test_a_name_is_read_back(epoch):
    name = Name("head", epoch, 12, "0123456789abcdef")

    assert Name.parse(str(name)) == name


@pytest.mark.soak
def test_a_thousand_batches_leave_a_bounded_number_of_files(folder, fast):
    state = FileState.opaque(folder, snapshot_every=20).make_state(Config(), 0, 1)
    batches, most = Batches(state), 0
    for n in range(1, 1001):
        batches.commit({f"k{n % 100}": 1, f"new {n // 10}": 1})
        most = max(most, len(os.listdir(folder)))

    # The deltas, the snapshot, and the head.
    assert most <= 22
    assert sum(path.stat().st_size for path in folder.iterdir()) < 60_000
    found = OpaqueMap(elsewhere(folder))
    assert dict(pair for chunk in found.scan() for pair in chunk) == {
        **{(f"k{n}",): 10 for n in range(100)},
        **{(f"new {n}",): 9 if n == 0 else 10 for n in range(100)},
        ("new 100",): 1,
    }


def test_what_a_head_names_is_on_the_disk_before_the_head_and_the_head_before_the_answer(
    folder, monkeypatch
):
    backing = FileState.opaque(folder).backing()
    backing.multi_put([A], [value(1)])
    done, real_sync, real_link = [], os.fsync, os.link

    def sync(fd):
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else _file_of(fd))
        real_sync(fd)

    def link(source, target):
        done.append("link")
        real_link(source, target)

    def _file_of(fd):
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name.split("-")[0]

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    backing.multi_put([B], [value(2)])

    assert done == ["data", "folder", "temp", "link", "folder"]


def test_small_deltas_of_a_large_state_do_not_write_it_again(folder, fast, monkeypatch):
    written = []
    real = LocalFolder.write

    def write(self, name, chunks):
        chunks = list(chunks)
        written.append(sum(map(len, chunks)))
        real(self, name, chunks)

    monkeypatch.setattr(LocalFolder, "write", write)
    backing = FileState.opaque(folder, snapshot_every=10).backing()
    many = [(f"key {n}",) for n in range(20_000)]
    for _ in range(2):
        backing.multi_put(many, [value(n) for n in range(20_000)])
    size = max(written)
    written.clear()

    for n in range(200):
        backing.multi_put([(f"key {n}",)], [value(-n)])

    assert max(written) < size / 10
    assert backing.multi_get([("key 7",), ("key 19999",)]) == [value(-7), value(19999)]
    assert elsewhere(folder).multi_get([("key 7",)]) == [value(-7)]


def test_deltas_that_outgrow_the_state_become_a_snapshot(folder, fast, monkeypatch):
    monkeypatch.setattr(file_log, "_LEAST_SNAPSHOT", 0)
    backing = FileState.opaque(folder, snapshot_every=1000).backing()
    keys = [(n,) for n in range(1000)]
    for n in range(20):
        backing.multi_put(keys, [value(n)] * 1000)
        # The state once, and what was written since: at most as much again.
        assert len(list(folder.glob("data-*"))) <= 2

    assert elsewhere(folder).multi_get(keys) == [value(19)] * 1000


def test_a_snapshot_of_many_records_is_several_files(folder, fast, monkeypatch):
    monkeypatch.setattr(file_log, "_SNAPSHOT_RECORDS", 300)
    monkeypatch.setattr(file_log, "_LEAST_SNAPSHOT", 0)
    backing = FileState.opaque(folder).backing()
    keys = [(n,) for n in range(1000)]

    backing.multi_put(keys, [value(n) for n in range(1000)])

    assert len(list(folder.glob("data-*"))) == 4
    assert elsewhere(folder).multi_get(keys) == [value(n) for n in range(1000)]


def test_what_a_lost_attempt_wrote_is_gone_after_merging_too(folder, fast):
    batches = Batches(FileState.opaque(folder, snapshot_every=2).make_state(Config(), 0, 1))
    batches.commit({f"k{n}": 1 for n in range(100)})
    for n in range(10):
        batches.lose({f"lost {n}": 1, "k1": 1})
        batches.commit({"k2": 1})

    found = OpaqueMap(elsewhere(folder))
    counts = dict(pair for chunk in found.scan() for pair in chunk)
    assert counts == {(f"k{n}",): 11 if n == 2 else 1 for n in range(100)}
    # Not only to readers: no record of it is left.
    records = [key for chunk in elsewhere(folder).scan() for key, _ in chunk]
    assert len(records) == 100


@examples(200)
@given(
    st.integers(0, 10_000_000),
    st.lists(st.integers(1, 3_000_000), min_size=1, max_size=200),
    st.integers(1, 30),
)
def test_merging_keeps_few_files_and_writes_each_byte_a_few_times(snapshot, writes, every):
    sizes, rewritten = [snapshot], 0
    for size in writes:
        first = first_to_merge([*sizes, size], every)
        merged = sum(sizes[first:]) + size
        rewritten += merged - size
        sizes = [*sizes[:first], merged]
        assert len(sizes) - 1 <= every
        assert sum(sizes[1:]) <= max(sizes[0], 1 << 20)
    if every >= 25:
        total = snapshot + sum(writes)
        assert rewritten <= total * (2 + math.log2(total))


def test_all_maps_of_a_folder_in_a_process_share_one_memory(folder):
    one, other = FileState.opaque(folder).backing(), FileState.opaque(folder.as_uri()).backing()
    one.multi_put([A], [value(1)])
    read = []
    real = LocalFolder.read
    other._folder.read = lambda name: read.append(name) or real(other._folder, name)

    assert other.multi_get([A]) == [value(1)]
    assert one._log is other._log
    assert read == []


def test_the_memory_is_given_back_when_the_last_map_is_closed(folder):
    one, other = FileState.opaque(folder).backing(), FileState.opaque(folder).backing()
    one.multi_put([A], [value(1)])
    other.multi_get([A])
    key, logs = one._folder.key, file_log._logs.get()
    one.close()
    assert key in logs.open

    other.close()
    gc.collect()

    assert key not in logs.open
    assert one.multi_get([A]) == [value(1)]


def test_another_process_sees_each_commit_and_reads_only_what_is_new(folder):
    batches = Batches(FileState.opaque(folder).make_state(Config(), 0, 1))
    reader = OpaqueMap(elsewhere(folder))
    read = []
    there = reader._backing._folder
    real = there.read
    there.read = lambda name: read.append(name) or real(name)
    for n in range(1, 6):
        batches.commit({"x": 1})
        assert reader.multi_get([("x",)]) == [n]

    names = [name for name in read if name.startswith("data")]
    assert len(names) == len(set(names)) == 5


def test_a_real_other_process_reads_and_amends(folder):
    batches = Batches(FileState.opaque(folder).make_state(Config(), 0, 1))
    batches.commit({"x": 1})
    script = (
        "import sys\n"
        "from tests.state_support import Add\n"
        "from waterspout._config import Config\n"
        "from waterspout.state.files._state import FileState\n"
        "state = FileState.opaque(sys.argv[1]).make_state(Config(), 0, 1)\n"
        "print(state.multi_get([('x',)]), state.multi_update([('x',)], [Add(10)]))\n"
    )
    command = [sys.executable, "-c", script, folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1] [11]\n", "")

    batches.commit({"x": 100})

    assert batches.values("x") == [111]


def test_a_forked_child_has_a_memory_of_its_own(folder, monkeypatch):
    backing = FileState.opaque(folder).backing()
    backing.multi_put([A], [value(1)])
    before = backing._log

    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert backing.multi_get([A]) == [value(1)]
    assert backing._log is not before


def test_a_reader_whose_files_are_merged_away_while_it_reads_starts_again(folder, fast):
    writer = FileState.opaque(folder, snapshot_every=2).backing()
    writer.multi_put([A], [value(1)])
    reader = elsewhere(folder)
    there = reader._folder
    real = there.read

    def read(name):
        if name.startswith("data"):
            there.read = real
            for n in range(10):
                writer.multi_put([A], [value(n)])
        return real(name)

    there.read = read

    assert reader.multi_get([A]) == [value(9)]


def test_files_that_never_stay_are_given_up_on(folder, fast):
    writer = FileState.opaque(folder, snapshot_every=1).backing()
    writer.multi_put([A], [value(1)])
    reader = elsewhere(folder)
    there = reader._folder
    real = there.read

    def read(name):
        for n in range(3):
            writer.multi_put([A], [value(n)])
        return real(name)

    there.read = read

    with pytest.raises(StoreError, match="change faster than they can be read"):
        reader.multi_get([A])


def test_where_names_are_no_fence_only_the_drivers_process_writes_outside_of_batches(tmp_path):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    from waterspout.state.files._locations import ArrowFolder

    def process(name):
        filesystem = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
        state = FileState.opaque("unused")
        return FileMap(ArrowFolder(filesystem, "counts", name), state.kind, state.columns)

    driver, other = process("driver"), process("other")
    batches = Batches(OpaqueMap(driver))
    batches.commit({"x": 1})

    with pytest.raises(FencedError, match="Write outside of batches from the driver's process"):
        OpaqueMap(other).multi_update([("x",)], [Add(1)])
    assert batches.state.multi_update([("x",)], [Add(10)]) == [11]
    assert OpaqueMap(other).multi_get([("x",)]) == [11]


def test_parts_of_a_scan_are_the_same_in_every_process(folder, fast):
    keys = [(n, f"key {n}") for n in range(500)]
    one = FileState.opaque(folder, snapshot_every=3).backing()
    for n in range(0, 500, 50):
        one.multi_put(keys[n : n + 50], [value(i) for i in range(50)])
    other = elsewhere(folder)
    one.multi_put(keys[:1], [value(7)])

    maps = [one, other, one]
    parts = [[k for chunk in maps[i].scan(i, 3) for k, _ in chunk] for i in range(3)]

    assert sorted(key for part in parts for key in part) == keys
    assert all(len(part) > 100 for part in parts)


@pytest.mark.parametrize(
    "record",
    [
        value(5, prev=4),
        value(-5, prev=None),
        value(2**80, prev=-(2**80)),
        value(None, prev=7),
        value("5", prev="a,b"),
        value(True, prev=False),
        value(1.0, prev=2.5),
        value([1, 2], prev=[3]),
        value("a\tb\nc", prev="é\ud800"),
        value(math.inf, prev=b"\x00"),
    ],
    ids=repr,
)
def test_a_record_is_read_back_from_the_files_as_it_was(folder, record):
    FileState.opaque(folder).backing().multi_put([("a\tb\nc",)], [record])

    (found,) = elsewhere(folder).multi_get([("a\tb\nc",)])
    assert repr(found) == repr(record)


def test_a_record_that_is_none_names_its_key(folder):
    backing = FileState.opaque(folder).backing()
    backing.multi_put([A], [value(1)])
    backing._log.records['["a"]'] = "[1,2]"

    with pytest.raises(DamagedStoreError, match=r'cannot be read, under key \["a"\]'):
        backing.multi_get([A])


updates = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), updates),
        st.tuples(st.just("lose"), updates),
        st.tuples(st.just("unsettled"), updates),
        st.tuples(st.just("amend"), updates),
        st.tuples(st.just("restart"), st.just({})),
    ),
    max_size=12,
)
places = count()


@examples(60)
@given(steps, st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_history_with_restarts_is_that_of_a_dict(tmp_path, fast, history, every, dice):
    folder = tmp_path / f"state{next(places)}"
    batches = Batches(OpaqueMap(elsewhere(folder, snapshot_every=every)))
    model: dict[str, int] = {}

    def add(amounts):
        for key, amount in amounts.items():
            model[key] = model.get(key, 0) + amount

    for step, amounts in history:
        if step == "amend":
            batches.state.multi_update([(k,) for k in amounts], [Add(n) for n in amounts.values()])
            add(amounts)
        elif step == "restart":
            batches = batches.restarted(OpaqueMap(elsewhere(folder, snapshot_every=every)))
        else:
            batches.lose(amounts)
            if step != "lose":
                batches.mark()
                add(amounts)
            if step == "commit" or (step == "unsettled" and dice.random() < 0.5):
                batches.settle()
    batches.commit({})

    for backing in (batches.state._backing, elsewhere(folder)):
        state = OpaqueMap(backing)
        assert [state.multi_get([(k,)])[0] for k in "abcd"] == [model.get(k) for k in "abcd"]


def test_a_long_random_history_equals_a_dict(folder, fast):
    dice, model = random.Random(7), {}
    batches = Batches(OpaqueMap(elsewhere(folder, snapshot_every=5)))
    for _ in range(150):
        amounts = {dice.randrange(400): dice.randrange(100) for _ in range(dice.randrange(60))}
        if dice.random() < 0.2:
            batches.lose(dict.fromkeys(amounts, 1000))
        if dice.random() < 0.1:
            batches = batches.restarted(OpaqueMap(elsewhere(folder, snapshot_every=5)))
        batches.commit(amounts)
        for key, amount in amounts.items():
            model[key] = model.get(key, 0) + amount

    counts = dict(pair for chunk in OpaqueMap(elsewhere(folder)).scan() for pair in chunk)
    assert counts == {(key,): n for key, n in model.items()}


def test_folders_are_opened_by_what_they_are(tmp_path):
    assert isinstance(open_folder(str(tmp_path)), LocalFolder)
    assert isinstance(open_folder(tmp_path.as_uri()), LocalFolder)
    assert open_folder("mock:///a").exclusive is False
