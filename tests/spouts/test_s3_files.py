"""FileSpout over the S3 protocol."""

from __future__ import annotations

import pytest
from pyarrow.fs import S3FileSystem

from tests.services.s3 import serving
from tests.trident.support import capture, wait_for
from waterspout import Config
from waterspout.errors import DataLossError, OutageError
from waterspout.spouts import _finding
from waterspout.spouts._base import SpoutContext
from waterspout.spouts.files import FileSpout
from waterspout.testing import run_in_process
from waterspout.trident import TridentTopology

pytestmark = pytest.mark.soak


@pytest.fixture
def bucket():
    with serving() as bucket:
        yield bucket


@pytest.fixture
def store(bucket):
    store = S3FileSystem(
        access_key="key",
        secret_key="hunter2",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{bucket.port}",
        scheme="http",
        allow_bucket_creation=True,
        connect_timeout=2,
        request_timeout=5,
    )
    store.create_dir("shop")
    write(store, "shop/in/a.txt", b"one\ntwo\n")
    write(store, "shop/in/deep/er/b.txt", b"three\n")
    write(store, "shop/in/_SUCCESS", b"")
    write(store, "shop/in/c.txt.part", b"half")
    write(store, "shop/other/d.txt", b"not ours\n")
    return store


def write(store, path, content):
    with store.open_output_stream(path) as file:
        file.write(content)


def planner_of(spout):
    return spout.open(SpoutContext(Config(), "in", None, {}, 1))


def names(metadata):
    return sorted(file[0] for file in metadata["files"])


def test_objects_are_found_once_and_read(store):
    topology = TridentTopology("s3")
    spout = FileSpout("s3a://shop/in", max_files=1, filesystem=store)
    spout.check()
    kept = capture(topology.new_stream("lines", spout))

    run_in_process(topology, Config())

    assert kept.rows == [("one",), ("three",), ("two",)]
    assert planner_of(spout).lag(None) == {"files": 2, "bytes": 14, "unfinished_files": 1}


def test_globs_single_objects_and_empty_prefixes(store):
    found = [
        [name for _, name, _ in FileSpout(f"s3a://shop/{path}", filesystem=store).find()]
        for path in ("in/*.txt", "in/**/b.*", "in/a.txt", "nothing/here")
    ]

    assert found == [
        ["s3a://shop/in/a.txt"],
        ["s3a://shop/in/deep/er/b.txt"],
        ["s3a://shop/in/a.txt"],
        [],
    ]


def test_many_objects_come_in_pages(store):
    for n in range(1100):
        write(store, f"shop/many/{n:04}", b"x")

    assert len(FileSpout("s3a://shop/many", filesystem=store).find()) == 1100


def test_an_object_that_was_written_again_is_found_out(store):
    spout = FileSpout("s3a://shop/in", filesystem=store)
    planner = planner_of(spout)
    assert planner.is_ready(None)
    metadata = planner.plan(1, None)
    assert names(metadata) == ["s3a://shop/in/a.txt", "s3a://shop/in/deep/er/b.txt"]
    planner.confirm(metadata)
    write(store, "shop/in/a.txt", b"one\ntwo\nthree\n")

    with pytest.raises(DataLossError, match=r"8 bytes then, 14 now"):
        planner.confirm(metadata)
    store.delete_file("shop/in/a.txt")
    with pytest.raises(DataLossError, match="belongs to a batch that is not finished"):
        spout.read(metadata)


def test_the_url_alone_is_enough(bucket, store, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    options = f"endpoint_override=127.0.0.1:{bucket.port}&scheme=http&region=us-east-1"
    spout = FileSpout(f"s3a://key:${{SECRET}}@shop/in?{options}")

    assert [name for _, name, _ in spout.find()] == [
        "s3a://shop/in/a.txt",
        "s3a://shop/in/deep/er/b.txt",
    ]
    assert spout.path == "s3a://shop/in"


def test_a_store_that_is_away_is_an_outage(bucket, store, monkeypatch):
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 0)
    planner = planner_of(FileSpout("s3a://shop/in", filesystem=store))
    bucket.kill()

    with pytest.raises(OutageError, match="s3a://shop/in cannot be read"):
        wait_for(lambda: planner.is_ready(None), 100)
