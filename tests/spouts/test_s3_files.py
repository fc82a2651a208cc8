"""FileSpout over the S3 protocol, as moto's server speaks it.

That is too large for the environment of the tests: `WATERSPOUT_MOTO` names the program
`moto_server` of another one (`pip install 'moto[server]'`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.request

import pytest
from pyarrow.fs import S3FileSystem

from tests.services.servers import die_with_parent, free_port
from tests.trident.support import capture, wait_for
from waterspout import Config
from waterspout.errors import DataLossError, OutageError
from waterspout.spouts import _finding
from waterspout.spouts._base import SpoutContext
from waterspout.spouts.files import FileSpout
from waterspout.testing import run_in_process
from waterspout.trident import TridentTopology

pytestmark = [pytest.mark.soak, pytest.mark.services]


class Moto:
    def __init__(self, program):
        self.program, self.port = program, free_port()
        self.start()

    def start(self):
        command = [self.program, "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdout=quiet, stderr=quiet, preexec_fn=die_with_parent
        )
        wait_for(self.answers, 60)

    def answers(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def filesystem(self):
        return S3FileSystem(
            access_key="key",
            secret_key="hunter2",
            region="us-east-1",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            allow_bucket_creation=True,
            connect_timeout=2,
            request_timeout=5,
        )

    def forget(self):
        address = f"http://127.0.0.1:{self.port}/moto-api/reset"
        urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=10).close()


@pytest.fixture(scope="module")
def moto():
    program = os.environ.get("WATERSPOUT_MOTO") or shutil.which("moto_server")
    if program is None:
        pytest.skip(
            "NO MOTO HERE: set WATERSPOUT_MOTO to the program moto_server of an environment"
        )
    server = Moto(program)
    yield server
    server.kill()


@pytest.fixture
def store(moto):
    moto.forget()
    store = moto.filesystem()
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


def test_the_url_alone_is_enough(moto, store, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    options = f"endpoint_override=127.0.0.1:{moto.port}&scheme=http&region=us-east-1"
    spout = FileSpout(f"s3a://key:${{SECRET}}@shop/in?{options}")

    assert [name for _, name, _ in spout.find()] == [
        "s3a://shop/in/a.txt",
        "s3a://shop/in/deep/er/b.txt",
    ]
    assert spout.path == "s3a://shop/in"


def test_a_store_that_is_away_is_an_outage(moto, store, monkeypatch):
    monkeypatch.setattr(_finding, "_REST_PER_LISTING", 0)
    planner = planner_of(FileSpout("s3a://shop/in", filesystem=store))
    moto.kill()
    try:
        with pytest.raises(OutageError, match="s3a://shop/in cannot be read"):
            wait_for(lambda: planner.is_ready(None), 100)
    finally:
        moto.start()
