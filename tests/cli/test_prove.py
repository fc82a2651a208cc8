"""`waterspout prove`: what it refuses, what it finds, and that it can find a lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import CORE_WORD_COUNT, WORD_COUNT, listing

BOTH = """
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

topology = TridentTopology("words")
words = topology.new_stream("in", FileSpout("data")).each("value", Split(), "word")
exact = SQLiteState.opaque("counts.db", table="exact")
raw = SQLiteState.non_transactional("counts.db", table="raw")
words.group_by("word").persistent_aggregate(exact, Count(), "count")
words.group_by("word").persistent_aggregate(raw, Count(), "count")
"""
LIAR = """
from dataclasses import dataclass
from waterspout.spouts.files import FileSpout
from waterspout.state import NonTransactionalMap, StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.state.sqlite._map import SQLiteMap
from waterspout.trident import Count, Split, TridentTopology

@dataclass(frozen=True)
class Liar(SQLiteState):
    '''Says that it is opaque, and adds to whatever is there.'''
    def stand_in(self, folder):
        return Liar.opaque(folder / "liar.db", table="liar").bind(self.keys, self.values)
    def backing(self):
        return SQLiteMap(self._file, self.table, StateKind.NON_TRANSACTIONAL, self.columns)
    def make_state(self, conf, partition_index, num_partitions):
        return NonTransactionalMap(self.backing(), name=self.title, partition=partition_index)

topology = TridentTopology("liar")
words = topology.new_stream("in", FileSpout("data")).each("value", Split(), "word")
words.group_by("word").persistent_aggregate(Liar.opaque("x.db", "liar"), Count(), "count")
"""
OWN_SPOUT = """
from waterspout import Spout
from waterspout.state import MemoryMapState
from waterspout.trident import Count, TridentTopology

class Acking(Spout):
    output_fields = ("value",)
    def next_tuple(self): pass
    def ack(self, msg_id): pass

topology = TridentTopology("own")
words = topology.new_stream("in", Acking(), out="value string")
words.group_by("value").persistent_aggregate(MemoryMapState(), Count(), "count")
"""


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (CORE_WORD_COUNT, (), "its bolts write by themselves, wherever they like"),
        (OWN_SPOUT, (), "say so: --trust-source"),
        (WORD_COUNT, ("--point", "mark.above"), "--point mark.above: there are metadata.before"),
    ],
)
def test_what_cannot_be_proved_is_refused_before_anything_runs(
    cli, write, place, source, options, said
):
    file = write(source)
    before = listing(place)

    refused = cli("prove", file, *options)
    as_json = cli("prove", file, *options, "--json")

    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert said in json.loads(as_json.err)["error"]["message"]
    assert listing(place) == before


def proved(place, source, *options):
    """Prove a topology in processes of their own; return how that ended, and what was told."""
    (place / "words.py").write_text(source)
    ran = subprocess.run(
        [sys.executable, "-m", "waterspout.cli", "prove", "words.py", *options],
        cwd=place,
        env={**os.environ, "TMPDIR": str(place.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1400,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture
def two_files(place):
    (place / "data" / "b.txt").write_text("that is the question to be\n")
    return place


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.soak  # in each run: a state that lies is found out
def test_an_opaque_count_is_proved_and_a_plain_one_beside_it_is_seen_to_differ(two_files):
    before = listing(two_files)

    code, out, err = proved(two_files, BOTH, "--point", "mark.before", "--json")

    assert (code, err) == (0, ""), out + err
    told = json.loads(out)
    exact, raw = told["states"]
    assert (exact["label"], exact["held"], exact["exact"], exact["differ"]) == ("exact", True, 3, 0)
    assert exact["verdict"] == "exactly-once: proved in 3 trials"
    assert (raw["promise"], raw["differ"]) == ("not exactly-once", 3)
    # Batch 1 was written, and then the driver died; the same command wrote it again.
    first, _, twice = told["trials"]
    assert (first["batch"], first["what"]) == (1, "driver killed")
    assert (first["fired"], first["lives"]) == (1, 2)
    assert {"key": ["be"], "got": 5, "expected": 3} in first["differs"]["raw"]
    assert (twice["fired"], twice["lives"]) == (2, 3)
    assert told["kills"] == 4
    # Nothing of the user's was written, and nothing is left behind.
    (two_files / "words.py").unlink()
    assert listing(two_files) == before
    assert not list(two_files.parent.glob("waterspout-prove-*"))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_state_that_lies_is_found_out_and_what_shows_it_is_kept(place):
    code, out, err = proved(place, LIAR, "--point", "mark.before")

    assert (code, err) == (1, ""), out + err
    assert "promised: exactly-once" in out
    assert "exactly-once was promised: 2 of 2 trials differ" in out
    assert "driver killed at mark.before, batch 1\n    'be': got 4, expected 2; " in out
    (folder, *_) = place.parent.glob("waterspout-prove-*/trial-001")
    assert f"kept: {folder}" in out
    assert (folder / "log.txt").exists()
    assert (folder / "liar.db").exists()


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_every_point_of_a_batch_is_survived_by_whatever_promises_it(place):
    code, out, err = proved(place, BOTH, "--every", "--json")

    assert (code, err) == (0, ""), out + err
    told = json.loads(out)
    assert told["states"][0]["held"]
    assert told["states"][1]["differ"] > 0
    assert {point["point"] for point in told["points"]} >= {
        "metadata.before",
        "processed",
        "commit.after_record",
        "head.after",
        "write.before",
        "write.after",
        "mark.before",
        "settle.after",
        "cleanup",
    }
    assert all(trial["reached"] for trial in told["trials"])
