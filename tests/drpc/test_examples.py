"""Storm's examples of DRPC, asked through the client: the reach of pages, and counts of words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drpc.reach import EXPECTED
from tests.drpc.served import serving
from waterspout import Config, submit
from waterspout.cli.loading import load_topology
from waterspout.drpc import DRPCClient, DRPCExecutionException

EXAMPLES = Path(__file__).parents[2] / "examples"

# One cycle of Storm's five sentences: the 5, to 3, and 2, be 2, every other word 1.
WORDS = {
    "the": 5, "to": 3, "and": 2, "be": 2, "moon": 1, "whale": 0, "": 0,
    "cat dog the man": 6, "the to be": 10,
}  # fmt: skip


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Ask an example, in this process; return the one value of each answer."""
    monkeypatch.chdir(tmp_path)

    def ask(example: str, function: str, args, **options):
        topology = load_topology(str(EXAMPLES / f"{example}.py"))
        with serving(topology, tmp_path, **options) as (run, url), DRPCClient(url) as client:
            run.process_all_available(timeout=60)
            found = [client.execute(function, each) for each in args]
            assert all(len(rows) == 1 and len(rows[0]) == 1 for rows in found), found
            return {each: rows[0][0] for each, rows in zip(args, found, strict=True)}

    return ask


@pytest.mark.parametrize("example", ["drpc_reach", "linear_reach"])
def test_the_reach_of_storms_pages(asked, example):
    assert asked(example, "reach", list(EXPECTED)) == EXPECTED


def test_the_counts_of_storms_sentences(asked):
    assert asked("drpc_word_count", "words", list(WORDS)) == WORDS


def test_a_function_of_bolts_that_fails_names_the_bolt(tmp_path):
    from tests.drpc.test_linear import Odd
    from waterspout.drpc import LinearDRPCTopologyBuilder

    builder = LinearDRPCTopologyBuilder("odd")
    builder.add_bolt(Odd())

    with serving(builder.create_topology(), tmp_path) as (_, url), DRPCClient(url) as client:
        with pytest.raises(DRPCExecutionException) as told:
            client.execute("odd", "raise")
        assert client.execute("odd", "fine") == [["fine"]]

    assert (told.value.kind, told.value.operation) == ("FAILED_REQUEST", "bolt0")
    assert told.value.message == "ValueError: no"


@pytest.mark.spark
def test_all_of_them_on_spark(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The first wave starts a worker, which takes long on a busy machine.
    conf = Config(serve="127.0.0.1:0", drpc_request_timeout_secs=200, message_timeout_secs=200)
    for example, function, expected in (
        ("linear_reach", "reach", EXPECTED),
        ("drpc_reach", "reach", EXPECTED),
        ("drpc_word_count", "words", WORDS),
    ):
        run = submit(load_topology(str(EXAMPLES / f"{example}.py")), spark, conf)
        try:
            run.process_all_available(timeout=120)
            with DRPCClient(run.server_url) as client:
                found = {each: client.execute(function, each)[0][0] for each in expected}
        finally:
            run.stop()
        assert found == expected, example
