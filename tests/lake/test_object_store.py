"""Delta tables in an object store: the fence is a put that must not replace."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from tests.lake.support import FIELDS, committed, head, put_down
from tests.services.s3 import serving
from waterspout._addresses import resolved
from waterspout.errors import FencedError
from waterspout.state.delta import DeltaState

URI = "s3://lake/orders"


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setenv("LAKE_KEY", "hunter2hunter2")
    with serving() as bucket:
        yield bucket


def open_store(bucket):
    return DeltaState(URI, storage_options=bucket.options).bind_rows(FIELDS).store()


def ids(bucket):
    options = {name: resolved(value) for name, value in bucket.options.items()}
    table = DeltaTable(URI, storage_options=options).to_pyarrow_table()
    return sorted(table.column("id").to_pylist())


@pytest.mark.soak
def test_rows_are_there_once_and_what_was_lost_is_gone(bucket):
    DeltaState(URI, storage_options=bucket.options).bind_rows(FIELDS).check()
    assert bucket.keys == []
    store = open_store(bucket)
    done = committed(store, None, head(1), 1, 2)
    store.move_head(done, head(2))
    put_down(store, head(2), 9)  # a task that is tried again
    store.publish(head(2).stamp, [put_down(store, head(2), 7)])
    assert ids(bucket) == [1, 2, 7]

    store.move_head(head(2), head(2, 1))
    done = committed(store, head(2, 1), head(2, 2), 3)
    store.move_head(done, head(3))

    assert ids(bucket) == [1, 2, 3]
    heads = [key for key in bucket.keys if "/_waterspout/" in key]
    assert len(heads) == 1
    parts = [key for key in bucket.keys if "batch-0000000002/" in key]
    assert len(parts) == 2  # what was published, and what was published and taken back


def test_a_driver_that_is_overtaken_is_refused_by_the_store(bucket):
    old, new = open_store(bucket), open_store(bucket)
    old.move_head(None, head(1))
    receipt = put_down(old, head(1), 7)
    log = old._log
    looked, todo = log.look, [lambda: new.move_head(head(1), head(1, 1, epoch=2))]

    def look():
        record = looked()
        while todo:
            todo.pop()()
        return record

    log.look = look

    with pytest.raises(FencedError):
        old.publish(head(1).stamp, [receipt])

    assert ids(bucket) == []
    commits = [key for key in bucket.keys if "/_delta_log/" in key]
    assert len(commits) == 2
    assert [key for key in bucket.replacing if key in commits] == []
