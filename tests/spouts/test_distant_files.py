"""Files of other file systems: found, pinned and checked through pyarrow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow.fs import FileSystemHandler, FileType, LocalFileSystem, PyFileSystem

from tests.trident.support import capture, put
from waterspout import Config
from waterspout.errors import (
    ConfigError,
    DataLossError,
    OutageError,
    SourceError,
    TopologyError,
)
from waterspout.spouts import _finding
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._places import LOCAL, address_of, place_of
from waterspout.spouts.files import FileSpout
from waterspout.testing import run_in_process
from waterspout.trident import TridentTopology


class Bucket(FileSystemHandler):
    """A folder of this machine as an object store would show it; can be away."""

    def __init__(self, root: Path) -> None:
        self.root, self.away = root, ""
        self._inner = LocalFileSystem()

    def get_type_name(self):
        return "bucket"

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        self.meet()
        found = self._inner.get_file_info([str(self.root / path) for path in paths])
        return [self.seen(info) for info in found]

    def get_file_info_selector(self, selector):
        self.meet()
        selector.base_dir = str(self.root / selector.base_dir)
        return [self.seen(info) for info in self._inner.get_file_info(selector)]

    def seen(self, info):
        from pyarrow.fs import FileInfo

        path = str(Path(info.path).relative_to(self.root))
        if info.type == FileType.File:
            return FileInfo(path, info.type, mtime_ns=info.mtime_ns, size=info.size)
        return FileInfo(path, info.type)

    def open_input_file(self, path):
        self.meet()
        return self._inner.open_input_file(str(self.root / path))

    open_input_stream = open_input_file

    def meet(self):
        if self.away:
            raise OSError(self.away)

    def _refused(self, *arguments):
        raise AssertionError("a spout changes nothing")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refused


@pytest.fixture
def bucket(tmp_path):
    made = Bucket(tmp_path)
    put(tmp_path / "shop" / "in" / "a.txt", "one\ntwo\n")
    put(tmp_path / "shop" / "in" / "deep" / "b.txt", "three\n")
    put(tmp_path / "shop" / "in" / "_SUCCESS", "")
    return made


def spout_of(bucket, path="s3a://shop/in", **options):
    return FileSpout(path, filesystem=PyFileSystem(bucket), **options)


def planner_of(spout):
    return spout.open(SpoutContext(Config(), "in", None, {}, 1))


def test_files_of_a_url_are_found_and_named_as_spark_reads_them(bucket):
    planner = planner_of(spout_of(bucket))

    assert planner.is_ready(None)
    metadata = planner.plan(1, None)

    assert sorted(name for name, _, _ in metadata["files"]) == [
        "s3a://shop/in/a.txt",
        "s3a://shop/in/deep/b.txt",
    ]
    assert [size for _, size, _ in sorted(metadata["files"])] == [8, 6]
    assert metadata["content"] == [None, None]


def test_a_glob_in_a_url_takes_what_it_matches(bucket):
    planner = planner_of(spout_of(bucket, "s3a://shop/in/*/*.txt"))

    assert planner.is_ready(None)
    assert [f[0] for f in planner.plan(1, None)["files"]] == ["s3a://shop/in/deep/b.txt"]


def test_one_file_can_be_named(bucket):
    planner = planner_of(spout_of(bucket, "s3a://shop/in/a.txt"))

    assert planner.is_ready(None)
    assert [f[0] for f in planner.plan(1, None)["files"]] == ["s3a://shop/in/a.txt"]


def test_each_line_of_a_distant_file_is_read_once(bucket):
    topology = TridentTopology("distant")
    kept = capture(topology.new_stream("lines", spout_of(bucket, max_files=1)))

    run_in_process(topology, Config())

    assert kept.rows == [("one",), ("three",), ("two",)]


def test_a_distant_file_that_changes_is_found_out(bucket, tmp_path):
    spout = spout_of(bucket)
    planner = planner_of(spout)
    assert planner.is_ready(None)
    metadata = planner.plan(1, None)
    path = put(tmp_path / "shop" / "in" / "a.txt", "one\ntwo\nmore\n")

    with pytest.raises(DataLossError, match=r"a\.txt was changed .*8 bytes then, 13 now"):
        planner.confirm(metadata)
    path.write_text("one\nTWO\n")
    os.utime(path, (5, 5))
    with pytest.raises(DataLossError, match="whether its content is the same cannot be told"):
        spout.read(metadata)
    path.unlink()
    with pytest.raises(DataLossError, match="cannot be read: No such file"):
        spout.read(metadata)


def test_a_store_that_is_away_is_waited_for_and_nothing_is_lost(bucket, monkeypatch):
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 0)
    planner = planner_of(spout_of(bucket))
    bucket.away = "AWS Error NETWORK_CONNECTION during ListObjectsV2: curlCode: 7"

    with pytest.raises(
        OutageError, match="s3a://shop/in cannot be read: AWS Error NETWORK"
    ) as away:
        planner.is_ready(None)
    assert away.value.service == "s3a"

    bucket.away = ""
    assert planner.is_ready(None)
    assert len(planner.plan(1, None)["files"]) == 2


def test_a_store_that_refuses_is_an_error_without_secrets(bucket):
    spout = FileSpout("s3://key:hunter2@shop/in?scheme=http", filesystem=PyFileSystem(bucket))
    bucket.away = "access denied for hunter2"

    with pytest.raises(SourceError, match=r"s3://shop/in cannot be read: access denied") as refused:
        spout.check()
    assert "hunter2" not in f"{refused.value} {spout.identity()} {spout.path}"


def test_a_folder_of_a_store_may_be_empty(bucket):
    spout = spout_of(bucket, "s3a://shop/nothing/yet")

    spout.check()

    assert not planner_of(spout).is_ready(None)


def test_a_url_of_this_machine_is_a_path(tmp_path):
    put(tmp_path / "in" / "a b.txt", "x\n")
    spout = FileSpout(f"file://{tmp_path}/in")
    planner = planner_of(spout)

    assert planner.is_ready(None)
    metadata = planner.plan(1, None)

    assert metadata["files"][0][0] == f"{tmp_path}/in/a b.txt"
    assert metadata["content"] != [None]
    assert spout.identity() == FileSpout(tmp_path / "in").identity()
    assert spout.place is LOCAL


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("s3a://shop/in", "s3a://shop/in/x"),
        ("gs://shop/in/", "gs://shop/in/x"),
        ("hdfs://node:8020/data/in", "hdfs://node:8020/data/in/x"),
    ],
)
def test_names_are_those_of_the_url(address, name):
    place, path = place_of(address_of(address))

    assert place.name(f"{path}/x") == name


def test_what_cannot_be_named_is_refused_when_it_is_built():
    with pytest.raises(TopologyError, match="cannot name files of Azure"):
        FileSpout("abfss://shop@account.dfs.core.windows.net/in")


def test_variables_in_a_url_are_filled_in_where_it_is_used(bucket, monkeypatch):
    monkeypatch.setenv("BUCKET", "shop")
    planner = planner_of(spout_of(bucket, "s3a://${BUCKET}/in/deep"))

    assert planner.is_ready(None)
    assert [f[0] for f in planner.plan(1, None)["files"]] == ["s3a://shop/in/deep/b.txt"]


def test_a_path_object_cannot_hold_a_url():
    with pytest.raises(TopologyError, match="a Path cannot hold a URL"):
        FileSpout(Path("s3a://shop/in"))


def test_a_url_that_nobody_knows_names_the_way_out():
    with pytest.raises(SourceError, match=r"xyz://shop/in cannot be reached: .*filesystem=\.\.\."):
        FileSpout("xyz://shop/in").check()


def test_a_url_of_which_it_cannot_be_told_where_the_password_ends_is_refused():
    with pytest.raises(ConfigError, match="has an @ behind its host"):
        FileSpout("s3://key:pa/ss@shop/in")
