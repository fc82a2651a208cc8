"""What is peculiar to Delta tables: the commit is the fence, and others write to them too."""

from __future__ import annotations

import json
import os
import shutil

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow import dataset

from tests.lake.support import (
    FIELDS,
    committed,
    head,
    put_down,
    recipe,
    rows_of,
    seen,
    store_of,
)
from waterspout._schema import Schema
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    OutageError,
    StoreError,
    TopologyError,
)
from waterspout.state._base import StateKind
from waterspout.state._head import Head
from waterspout.state.delta import DeltaState
from waterspout.state.delta._record import APP_ID, count_of, next_number
from waterspout.state.delta._stats import stats_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def open_store(path):
    return store_of("delta", path)


def table_ids(path):
    return seen("delta", path)


def foreign_rows(*ids):
    """Return rows that somebody else appends: no batch has written them."""
    rows = rows_of(*ids)
    for name in ("_txid", "_attempt"):
        rows = rows.append_column(name, pa.array([None] * len(ids), pa.int64()))
    return rows


def meanwhile(store, act):
    """Let something happen once between the next look at the table and the commit after it."""
    log = store._log
    looked, todo = log.look, [act]

    def look():
        record = looked()
        while todo:
            todo.pop()()
        return record

    log.look = look


# The commit is the fence.


def test_an_attempt_that_is_overtaken_before_its_commit_publishes_nothing(path):
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    receipt = put_down(old, head(1), 7)
    meanwhile(old, lambda: new.move_head(head(1), head(1, 1, epoch=2)))

    with pytest.raises(FencedError, match=r"batch 1 attempt 0 .* was refused"):
        old.publish(head(1).stamp, [receipt])

    assert table_ids(path) == []
    assert new.read_head() == head(1, 1, epoch=2)


def test_rows_that_are_published_before_a_claim_commits_go_with_it(path):
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    receipt = put_down(old, head(1), 7)
    meanwhile(new, lambda: old.publish(head(1).stamp, [receipt]))

    new.move_head(head(1), head(1, 1, epoch=2))

    assert table_ids(path) == []
    with pytest.raises(FencedError):
        old.publish(head(1).stamp, [receipt])


def test_of_two_claims_from_one_head_the_later_is_refused(path):
    one, other = open_store(path), open_store(path)
    done = committed(one, None, head(1), 1)
    other.read_head()
    meanwhile(other, lambda: one.move_head(done, head(2)))

    with pytest.raises(FencedError, match="another driver has moved the head"):
        other.move_head(done, head(2, epoch=2))

    assert one.read_head() == head(2)


def test_of_two_drivers_that_make_the_table_one_is_refused(path):
    one, other = open_store(path), open_store(path)
    meanwhile(other, lambda: one.move_head(None, head(1)))

    with pytest.raises(FencedError):
        other.move_head(None, head(1, epoch=2))

    assert other.read_head() == head(1)


def test_a_table_whose_maker_was_killed_is_made_by_the_next(path):
    (path / "_delta_log").mkdir(parents=True)
    store = open_store(path)
    assert store.read_head() is None

    committed(store, None, head(1), 1)

    assert table_ids(path) == [1]


def test_a_claim_that_finds_nothing_to_delete_is_still_overtaken(path):
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    old.publish(head(1).stamp, [put_down(old, head(1), 7)])
    DeltaTable(path).delete()  # somebody has removed the rows of the lost attempt
    meanwhile(old, lambda: new.move_head(head(1), head(1, 2, epoch=3)))

    with pytest.raises(FencedError):
        old.move_head(head(1), head(1, 1, epoch=2))

    assert new.read_head() == head(1, 2, epoch=3)


def test_an_answer_that_is_lost_is_found_in_the_log(path, monkeypatch):
    store = open_store(path)
    store.move_head(None, head(1))
    receipt = put_down(store, head(1), 1)
    real = DeltaTable.create_write_transaction

    def losing(self, *args, **options):
        real(self, *args, **options)
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", losing)
        store.publish(head(1).stamp, [receipt])

    assert table_ids(path) == [1]
    assert store.read_head() == head(1)


def test_an_error_before_the_commit_is_told_and_leaves_nothing(path, monkeypatch):
    store = open_store(path)
    store.move_head(None, head(1))
    receipt = put_down(store, head(1), 1)

    def failing(self, *args, **options):
        raise OSError("connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", failing)
        with pytest.raises(OutageError, match="connection reset"):
            store.publish(head(1).stamp, [receipt])

    assert table_ids(path) == []
    assert len(os.listdir(path / "_waterspout")) == 1
    store.publish(head(1).stamp, [receipt])
    assert table_ids(path) == [1]


# Others write to the table, too.


def test_somebody_elses_append_is_in_nobodys_way(path):
    store = open_store(path)
    store.move_head(None, head(1))
    receipt = put_down(store, head(1), 1)
    meanwhile(store, lambda: write_deltalake(path, foreign_rows(100), mode="append"))

    store.publish(head(1).stamp, [receipt])
    meanwhile(store, lambda: write_deltalake(path, foreign_rows(200), mode="append"))
    store.move_head(head(1), head(1, 1))

    assert table_ids(path) == [100, 200]


def test_rows_of_a_lost_attempt_go_though_somebody_has_compacted_the_files(path):
    store = open_store(path)
    done = committed(store, None, head(1), 1, 2)
    store.move_head(done, head(2))
    receipts = [put_down(store, head(2), 7), put_down(store, head(2), 8, partition=1)]
    store.publish(head(2).stamp, receipts)
    assert DeltaTable(path).optimize.compact()["numFilesRemoved"] == 3
    meanwhile(store, lambda: DeltaTable(path).optimize.z_order(["id"]))

    store.move_head(head(2), head(2, 1))

    assert table_ids(path) == [1, 2]


def test_the_head_outlives_checkpoints_and_the_cleaning_of_the_log(path):
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).cleanup_metadata()
    assert not (path / "_delta_log" / f"{0:020d}.json").exists()

    assert open_store(path).read_head() == done
    committed(store, done, head(2), 2)  # with what it knew before
    assert table_ids(path) == [1, 2]


def test_a_zombie_whose_part_of_the_log_was_cleaned_away_changes_nothing(path):
    old, new = open_store(path), open_store(path)
    old.move_head(None, head(1))
    receipt = put_down(old, head(1), 7)

    def overtaken():
        new.move_head(head(1), head(1, 1, epoch=2))
        DeltaTable(path).alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 0 days"}
        )
        DeltaTable(path).create_checkpoint()
        DeltaTable(path).cleanup_metadata()

    meanwhile(old, overtaken)

    with pytest.raises((FencedError, StoreError)):
        old.publish(head(1).stamp, [receipt])

    assert table_ids(path) == []


def test_a_compaction_that_began_before_a_batch_can_still_commit(path):
    # A head in the table's metadata would make every commit of ours a conflict for others.
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    done = committed(store, done, head(2), 2)
    others = DeltaTable(path)
    committed(store, done, head(3), 3)

    others.optimize.compact()

    assert table_ids(path) == [1, 2, 3]


# What lies in the folder.


def test_files_that_the_log_had_stay_for_those_who_travel_in_time(path):
    store = open_store(path)
    store.move_head(None, head(1))
    store.publish(head(1).stamp, [put_down(store, head(1), 7)])
    version = DeltaTable(path).version()
    store.move_head(head(1), head(1, 1))
    store.publish(head(1, 1).stamp, [put_down(store, head(1, 1), 1)])
    done = Head(head(1, 1).stamp, committed=True)
    store.move_head(head(1, 1), done)

    store.move_head(done, head(2))

    earlier = DeltaTable(path, version=version)
    assert earlier.to_pyarrow_table().column("id").to_pylist() == [7]


def test_heads_do_not_pile_up(path):
    store, done = open_store(path), None
    (path / "_waterspout").mkdir(parents=True)
    left = f"head-{next_number(None):019d}.json"  # by a driver that was killed
    (path / "_waterspout" / left).write_text("{}")

    for txid in range(1, 5):
        done = committed(store, done, head(txid), txid)

    assert len(os.listdir(path / "_waterspout")) == 1


def test_numbers_grow_and_never_meet():
    numbers = [next_number(None)]
    for _ in range(100):
        numbers.append(next_number(numbers[-1]))

    assert numbers == sorted(set(numbers))
    assert [count_of(n) for n in numbers] == list(range(1, 102))
    assert len({next_number(numbers[0]) for _ in range(20)}) > 1
    assert next_number((2**32 - 2) << 31) < 2**63


@pytest.mark.parametrize("damage", ["", "{}", "torn"])
def test_a_damaged_head_is_refused(path, damage):
    committed(open_store(path), None, head(1), 1)
    (file,) = (path / "_waterspout").iterdir()
    text = file.read_text()
    file.write_text(text.replace('"txid\\":1', '"txid\\":2') if damage == "torn" else damage)

    with pytest.raises(DamagedStoreError, match="head"):
        open_store(path).read_head()


def test_a_head_that_is_gone_is_refused(path):
    committed(open_store(path), None, head(1), 1)
    shutil.rmtree(path / "_waterspout")

    with pytest.raises(DamagedStoreError, match="which is not there"):
        open_store(path).read_head()


def test_the_head_of_another_commit_is_refused(path):
    store = open_store(path)
    committed(store, None, head(1), 1)
    (file,) = (path / "_waterspout").iterdir()
    table = DeltaTable(path)
    number = next_number(table.transaction_version(APP_ID))
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(APP_ID, number)]),
    )
    file.rename(file.with_name(f"head-{number:019d}.json"))

    with pytest.raises(DamagedStoreError):
        open_store(path).read_head()


def test_a_table_that_is_removed_while_it_is_written_to_is_not_written_to(path):
    store = open_store(path)
    done = committed(store, None, head(1), 1)
    shutil.rmtree(path)

    with pytest.raises(FencedError):
        store.move_head(done, head(2))

    assert not path.exists()


def test_a_table_of_somebody_else_is_refused_though_it_has_our_columns(path):
    write_deltalake(path, foreign_rows(1))

    with pytest.raises(ForeignStoreError, match="waterspout did not make it"):
        recipe("delta", path).check()


def test_a_column_that_somebody_has_changed_is_refused(path):
    committed(open_store(path), None, head(1), 1)
    table = DeltaTable(path)
    other = pa.table({"id": ["1"], "word": ["w"], "_txid": [1], "_attempt": [0]})
    write_deltalake(table, other, mode="overwrite", schema_mode="overwrite")

    with pytest.raises(ForeignStoreError, match="column 'id'"):
        recipe("delta", path).check()


# Upserts.

UPSERTED = Schema.parse("id bigint, word string, at bigint")


def upserting(path, order_by=None):
    return DeltaState(path).bind_rows(UPSERTED, ("id",), order_by)


def merged(store, before, at, *rows):
    store.move_head(before, at)
    store.publish(at.stamp, [staged(store, at, *rows)])
    done = Head(at.stamp, committed=True)
    store.move_head(at, done)
    return done


def staged(store, at, *rows, partition=0):
    names = UPSERTED.names
    columns = [pa.array([row[i] for row in rows]) for i in range(3)]
    columns[2] = columns[2].cast(pa.int64())
    return store.write_rows(at.stamp, partition, pa.table(columns, names=list(names)))


def table_rows(path):
    found = DeltaTable(path).to_pyarrow_table(columns=list(UPSERTED.names)).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_a_row_takes_the_place_of_the_one_with_its_key(path):
    store = upserting(path).store()
    done = merged(store, None, head(1), (1, "a", 1), (2, "b", 1))

    merged(store, done, head(2), (2, "c", 0), (3, "d", 1))

    assert table_rows(path) == [(1, "a", 1), (2, "c", 0), (3, "d", 1)]


def test_with_an_order_the_later_row_stays_and_none_is_least(path):
    store = upserting(path, "at").store()
    done = merged(store, None, head(1), (1, "a", 5), (2, "b", None), (3, "c", 5), (4, "d", 5))

    merged(store, done, head(2), (1, "A", 4), (2, "B", 0), (3, "C", 5), (4, "D", None))

    assert table_rows(path) == [(1, "a", 5), (2, "B", 0), (3, "C", 5), (4, "d", 5)]


def test_a_batch_that_is_merged_is_skipped_by_later_attempts(path):
    store = upserting(path).store()
    store.move_head(None, head(1))
    store.publish(head(1).stamp, [staged(store, head(1), (1, "a", 1))])
    version = DeltaTable(path).version()
    store.move_head(head(1), head(1, 1))

    store.publish(head(1, 1).stamp, [staged(store, head(1, 1), (1, "a", 1))])

    assert DeltaTable(path).version() == version + 1  # the claim, and no other merge
    assert table_rows(path) == [(1, "a", 1)]
    assert os.listdir(path / "_waterspout" / "staged") == []


def test_a_merge_is_made_again_if_somebody_has_appended_meanwhile(path):
    store = upserting(path).store()
    done = merged(store, None, head(1), (1, "a", 1))
    store.move_head(done, head(2))
    receipt = staged(store, head(2), (1, "b", 2), (5, "e", 2))
    others = pa.table({"id": [5], "word": ["theirs"], "at": [1], "_txid": [0], "_attempt": [0]})
    meanwhile(store, lambda: write_deltalake(path, others, mode="append"))

    store.publish(head(2).stamp, [receipt])

    assert table_rows(path) == [(1, "b", 2), (5, "e", 2)]


def test_a_merge_that_is_overtaken_changes_nothing(path):
    old, new = upserting(path).store(), upserting(path).store()
    done = merged(old, None, head(1), (1, "a", 1))
    old.move_head(done, head(2))
    receipt = staged(old, head(2), (1, "zombie", 2))
    meanwhile(old, lambda: new.move_head(head(2), head(2, 1, epoch=2)))

    with pytest.raises(FencedError):
        old.publish(head(2).stamp, [receipt])

    assert table_rows(path) == [(1, "a", 1)]


def test_a_merge_in_which_all_rows_lose_is_done_all_the_same(path):
    store = upserting(path, "at").store()
    done = merged(store, None, head(1), (1, "a", 5))

    merged(store, done, head(2), (1, "old", 4))

    assert table_rows(path) == [(1, "a", 5)]
    assert store._log.look().published == (2, 0)


def test_an_upserted_table_pins_its_batches_and_an_appended_one_does_not(path):
    upserted, appended = upserting(path), recipe("delta", path)

    assert (upserted.pins_batches, upserted.kind) == (True, StateKind.TRANSACTIONAL)
    assert (appended.pins_batches, appended.kind) == (False, StateKind.OPAQUE)
    assert not upserted.store().undoes_lost_attempts


# What is refused when a topology is built, and what is never shown.


@pytest.mark.parametrize(
    ("fields", "keys", "told"),
    [
        ("id bigint, _TXID bigint", (), "which batch wrote the row"),
        ("id bigint, gone void", (), "does not take"),
        ("id bigint, span interval day", (), "does not take"),
        ("id double, word string", ("id",), "cannot be upserted by 'id'"),
        ("id array<int>, word string", ("id",), "cannot be upserted by 'id'"),
    ],
)
def test_fields_that_cannot_be_are_refused(path, fields, keys, told):
    with pytest.raises(TopologyError, match=told):
        DeltaState(path).bind_rows(Schema.parse(fields), keys)


@pytest.mark.parametrize("options", [{"a": 1}, ["a"], {1: "a"}])
def test_options_are_texts(path, options):
    with pytest.raises(ConfigError, match="texts by name"):
        DeltaState(path, storage_options=options)


@pytest.mark.parametrize("version", ["1.5.1", "0.25.5"])
def test_a_library_that_drops_the_fence_is_refused(path, monkeypatch, version):
    monkeypatch.setattr("deltalake.__version__", version)

    with pytest.raises(ConfigError, match=r"Take 1\.6 or newer"):
        DeltaState(path)


def test_secrets_are_taken_from_the_environment_and_never_shown(monkeypatch):
    monkeypatch.setenv("LAKE_KEY", "hunter2hunter2")
    options = {
        "aws_access_key_id": "me",
        "aws_secret_access_key": "${LAKE_KEY}",
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_region": "us-east-1",
        "allow_http": "true",
        "max_retries": "0",
    }
    state = DeltaState("s3://lake/orders", storage_options=options).bind_rows(FIELDS)

    with pytest.raises(OutageError) as told:
        state.check()

    said = f"{state!r} {state.title} {state.location()} {state.identity()} {told.value}"
    assert "hunter2" not in said
    assert "s3://lake/orders" in state.title
    store = state.store()
    assert store._options["aws_secret_access_key"] == "hunter2hunter2"
    assert store._secrets.hidden("denied: hunter2hunter2") == "denied: ***"


def test_statistics_bound_the_values_and_leave_out_what_they_cannot():
    rows = pa.table(
        {
            "id": [3, 1, None],
            "short": ["b", "a", "c"],
            "long": ["x" * 40, "a", "b"],
            "nan": [1.0, float("nan"), 2.0],
            "number": [1.5, None, -2.5],
            "tags": [["a"], [], None],
            "at": pa.array([0, 1_500_000, 2], pa.timestamp("us", tz="UTC")),
            "day": pa.array([0, 1, 2], pa.date32()),
        }
    )

    stats = json.loads(stats_of(rows))

    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "id": 1,
        "short": "a",
        "number": -2.5,
        "at": "1970-01-01T00:00:00.000000Z",
        "day": "1970-01-01",
    }
    assert stats["maxValues"]["at"] == "1970-01-01T00:00:01.500000Z"
    assert stats["nullCount"] == {
        "id": 1, "short": 0, "long": 0, "nan": 0, "number": 1, "at": 0, "day": 0
    }  # fmt: skip


def test_a_reader_skips_files_by_the_statistics(path):
    store, done = open_store(path), None
    for txid in (1, 2, 3):
        done = committed(store, done, head(txid), txid * 10)

    found = DeltaTable(path).to_pyarrow_dataset()

    assert len(list(found.get_fragments(dataset.field("id") == 20))) == 1
