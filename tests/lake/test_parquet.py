"""What is peculiar to Parquet files: what a reader of the folder sees, and one of the manifest."""

from __future__ import annotations

import os
from contextlib import suppress

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tests.lake.support import FIELDS, committed, head, put_down, rows_of, seen, store_of
from waterspout._schema import Schema
from waterspout.errors import FencedError, StoreError, TopologyError
from waterspout.state._head import Head
from waterspout.state.files._locations import ArrowFolder
from waterspout.state.parquet import ParquetState, committed_dataset, committed_files
from waterspout.state.parquet._store import ParquetRows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def open_store(path):
    return store_of("parquet", path)


def elsewhere(path):
    """Return a store that moves files one by one, as on an object store."""
    filesystem = SubTreeFileSystem(str(path), LocalFileSystem())
    path.mkdir(exist_ok=True)
    return ParquetRows(ArrowFolder(filesystem, "", f"arrow {path}"), FIELDS, f"(rows) -> {FIELDS}")


def folder_ids(path):
    return seen("parquet", path)


def manifest_ids(path):
    return sorted(committed_dataset(path).to_table().column("id").to_pylist())


def settled(at):
    return Head(at.stamp, committed=True)


def published(store, at, *ids):
    receipts = [put_down(store, at, n, partition=n % 3) for n in ids]
    store.publish(at.stamp, receipts)


def test_a_reader_of_the_folder_sees_all_files_of_a_batch_at_once(path, monkeypatch):
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    store.move_head(done, head(2))
    sights, rename = [], os.rename

    def watched(*args):
        sights.append(folder_ids(path))
        rename(*args)
        sights.append(folder_ids(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", watched)
        published(store, head(2), 2, 3, 4)

    assert {tuple(sight) for sight in sights} == {(1,), (1, 2, 3, 4)}


def test_a_reader_of_the_manifest_sees_committed_batches_alone(path):
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    store.move_head(done, head(2))
    published(store, head(2), 2, 3)

    assert manifest_ids(path) == [1]
    store.move_head(head(2), settled(head(2)))
    assert manifest_ids(path) == [1, 2, 3]
    assert [os.path.relpath(file, path).split("/")[0] for file in committed_files(path)] == [
        "txid=1",
        "txid=2",
        "txid=2",
    ]


def test_a_folder_without_a_manifest_is_not_read(path):
    path.mkdir()

    with pytest.raises(StoreError, match="has no _waterspout"):
        committed_files(path)


def test_a_topology_that_has_not_committed_has_no_rows_but_columns(path):
    store = open_store(path)
    store.move_head(None, head(1))
    published(store, head(1), 1)

    assert committed_dataset(path).to_table().schema == rows_of(1).schema
    assert manifest_ids(path) == []


@pytest.mark.parametrize("make", [open_store, elsewhere])
def test_a_driver_that_is_overtaken_before_it_shows_its_files_shows_none(path, make):
    old, new = make(path), make(path)
    old.move_head(None, head(1))
    show = old._places.show

    def overtaken(stamp, names):
        new.move_head(head(1), head(1, 1, epoch=2))
        show(stamp, names)

    old._places.show = overtaken

    with pytest.raises(FencedError, match="taken over"):
        published(old, head(1), 7, 8)

    assert folder_ids(path) == []
    published(new, head(1, 1, epoch=2), 1)
    assert folder_ids(path) == [1]


@pytest.mark.parametrize("nth", range(6))
def test_a_driver_that_is_overtaken_while_it_shows_its_files_shows_none(path, monkeypatch, nth):
    # Before each folder made or opened, and each file moved.
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    receipts = [put_down(old, head(1), n, partition=n) for n in (7, 8)]
    show, calls = old._places.show, []

    def overtaken(real):
        def act(*args, **options):
            calls.append(real)
            if len(calls) == nth + 1:
                with monkeypatch.context() as patch:
                    patch.undo()
                    new.move_head(head(1), head(1, 1, epoch=2))
            return real(*args, **options)

        return act

    def shown(stamp, names):
        with monkeypatch.context() as patch:
            for name in ("mkdir", "rename", "open"):
                patch.setattr(os, name, overtaken(getattr(os, name)))
            show(stamp, names)

    old._places.show = shown
    with pytest.raises(FencedError):
        old.publish(head(1).stamp, receipts)

    assert len(calls) > nth
    assert folder_ids(path) == []
    published(new, head(1, 1, epoch=2), 1)
    assert folder_ids(path) == [1]


def test_a_removal_leaves_the_folder_of_a_later_attempt_though_it_is_empty(path, monkeypatch):
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    published(old, head(1), 7)
    lost = old._places.shown(1)
    new.move_head(head(1), head(1, 1, epoch=2))
    rename = os.rename

    def waking(*args):
        # The overtaken driver takes its files back just when the folder was made.
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            old._places.hide(1, lost)
        rename(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", waking)
        published(new, head(1, 1, epoch=2), 1, 2)

    assert folder_ids(path) == [1, 2]


@pytest.mark.parametrize("make", [open_store, elsewhere])
def test_a_driver_that_is_overtaken_after_all_takes_its_files_back(path, make):
    # As if the one who took over had looked just before the files came.
    old, new = make(path), make(path)
    old.move_head(None, head(1))
    show = old._places.show

    def overtaken(stamp, names):
        new._places.hide_lost = lambda *args: None
        new.move_head(head(1), head(1, 1, epoch=2))
        show(stamp, names)

    old._places.show = overtaken

    with pytest.raises(FencedError):
        published(old, head(1), 7, 8)

    assert folder_ids(path) == []


@pytest.mark.parametrize("make", [open_store, elsewhere])
def test_a_claim_that_wakes_up_late_does_not_touch_what_a_later_one_has_shown(path, make):
    first, second, third = make(path), make(path), make(path)
    first.move_head(None, head(1))
    published(first, head(1), 7)
    hide = second._places.hide_lost

    def asleep(*args):
        third.move_head(head(1, 1, epoch=2), head(1, 2, epoch=3))
        published(third, head(1, 2, epoch=3), 1, 2)
        third.move_head(head(1, 2, epoch=3), settled(head(1, 2, epoch=3)))
        hide(*args)

    second._places.hide_lost = asleep

    second.move_head(head(1), head(1, 1, epoch=2))

    assert folder_ids(path) == [1, 2]
    assert manifest_ids(path) == [1, 2]


@pytest.mark.parametrize("make", [open_store, elsewhere])
def test_what_a_claim_could_not_hide_the_next_one_does(path, make):
    store = make(path)
    store.move_head(None, head(1))
    published(store, head(1), 7, 8)

    def killed(*args):
        raise KeyboardInterrupt

    hide, store._places.hide_lost = store._places.hide_lost, killed
    with suppress(KeyboardInterrupt):
        store.move_head(head(1), head(1, 1))
    assert folder_ids(path) == [7, 8]  # the manifest has them no more
    store._places.hide_lost = hide

    store.move_head(head(1, 1), head(1, 2))

    assert folder_ids(path) == []


@pytest.mark.parametrize("nth", range(6))
def test_a_file_is_removed_wherever_an_overtaken_driver_has_moved_it(path, monkeypatch, nth):
    # The overtaken driver shows its files in the middle of the removal of each of them.
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    receipts = [put_down(old, head(1), n, partition=n) for n in (7, 8)]
    show, unlink, names, calls = old._places.show, os.unlink, [], []
    old._places.show = lambda stamp, given: names.extend(given)
    old.publish(head(1).stamp, receipts)

    def waking(name, **options):
        calls.append(name)
        if len(calls) == nth + 1:
            with suppress(FencedError):
                show(head(1).stamp, names)
        return unlink(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", waking)
        new._places.hide(1, names)

    assert len(calls) > nth or nth > 3
    assert folder_ids(path) == []


def test_a_straggling_task_leaves_nothing_that_is_seen_and_nothing_for_long(path):
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    put_down(store, head(1), 7)  # long after its batch
    assert folder_ids(path) == [1]

    done = committed(store, done, head(2), 2)
    store.move_head(done, head(3))

    assert os.listdir(path / "_staging") == []
    assert folder_ids(path) == [1, 2]


def test_the_manifest_stays_small(path):
    store, done = open_store(path), None
    for txid in range(1, 101):
        done = committed(store, done, head(txid), txid)

    assert len(os.listdir(path / "_waterspout")) < 60
    assert manifest_ids(path) == list(range(1, 101))


def test_columns_that_were_added_are_null_in_older_files(path):
    committed(open_store(path), None, head(1), 1)
    more = Schema.parse(f"{FIELDS}, amount double")
    store = ParquetState(path).bind_rows(more).store()
    store.move_head(settled(head(1)), head(2))
    rows = rows_of(2).append_column("amount", pa.array([0.5]))
    store.publish(head(2).stamp, [store.write_rows(head(2).stamp, 0, rows)])
    store.move_head(head(2), settled(head(2)))

    found = committed_dataset(path).to_table().sort_by("id")

    assert found.column("amount").to_pylist() == [None, 0.5]


def test_upserts_are_refused_with_a_word_on_what_to_use(path):
    with pytest.raises(TopologyError, match=r"DeltaState\(path\)"):
        ParquetState(path).bind_rows(FIELDS, ("id",))


@pytest.mark.parametrize(
    ("fields", "told"),
    [("TXID bigint", "readers take for a column"), ("gone void", "needs a type")],
)
def test_fields_that_cannot_be_are_refused(path, fields, told):
    with pytest.raises(TopologyError, match=told):
        ParquetState(path).bind_rows(Schema.parse(fields))


def test_a_path_that_is_a_file_is_refused(path):
    path.write_text("mine")

    with pytest.raises(StoreError, match="is a file"):
        ParquetState(path).bind_rows(FIELDS).check()


def test_secrets_are_never_shown():
    state = ParquetState("s3://me:hunter2hunter2@lake/orders?region=eu").bind_rows(FIELDS)

    said = f"{state!r} {state.title} {state.location()} {state.identity()}"

    assert "hunter2" not in said
    assert "s3://lake/orders" in state.title
