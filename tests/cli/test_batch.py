"""`waterspout batch`: past a batch whose files are lost or changed, deliberately and on record."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.cli.conftest import WORD_COUNT
from waterspout import Config, faults
from waterspout.cli.loading import load_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import DataLossError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.testing import LocalBatches, LocalRun
from waterspout.trident._topology import TridentTopology


@pytest.fixture
def stuck(write, cli, place):
    """A topology whose second batch has three files, none of which has been counted."""
    return Stuck(write(WORD_COUNT), place)


class Stuck:
    def __init__(self, file, place):
        self.file, self.place = file, place
        self.run()
        for name, text in {"b": "one two\n", "c": "two\n", "d": "three\n"}.items():
            (place / "data" / f"{name}.txt").write_text(text)
        self.crash()

    def opened(self):
        sys.modules.pop("topology", None)
        topology = load_topology(self.file)
        store = EmbeddedStore(self.place / "home", topology.name)
        make = LocalRun if isinstance(topology, TridentTopology) else LocalBatches
        return make(topology, Config(max_retries=0), store=store)

    def run(self):
        run = self.opened()
        try:
            run.finish()
        finally:
            run.close()
        return run

    def crash(self, point="processing", txid=2):
        faults.install(FaultPlan([Fault(point, "raise", None, {"txid": txid})]))
        try:
            with pytest.raises(InjectedError):
                self.run()
        finally:
            faults.install(None)

    def path(self, name):
        return self.place / "data" / f"{name}.txt"

    def ledger(self):
        return EmbeddedStore(self.place / "home", "words").peek()


def count(cli, file, word):
    found = cli("state", "get", file, word)
    return int(found.out) if found.code == 0 else None


def test_what_is_wrong_with_a_stuck_batch_is_shown(cli, stuck):
    stuck.path("b").unlink()
    stuck.path("c").write_text("two too\n")
    stuck.path("d").write_text("threE\n")
    os.utime(stuck.path("d"), ns=(10**18, 10**18))

    with pytest.raises(DataLossError, match=r"b\.txt belongs to a batch that is not finished"):
        stuck.run()
    shown = cli("batch", "show", stuck.file)
    told = json.loads(cli("batch", "show", stuck.file, "--json").out)

    assert shown.out.splitlines()[0] == "words: 1 batches have committed"
    assert "  spout in: 3 files, 3 not as planned" in shown.out
    assert f"    {stuck.path('b')}: cannot be read: No such file or directory" in shown.out
    (batch,) = told["batches"]
    assert (told["next"], batch["txid"], batch["begun"]) == (2, 2, [])
    why = [each["why"] for each in batch["wrong"]]
    assert why[:2] == ["cannot be read: No such file or directory", "4 bytes then, 8 now"]
    assert why[2].startswith("the same size, 6 bytes, but other content; of 20")


def test_some_files_of_a_batch_are_skipped_and_the_rest_is_counted(cli, stuck):
    stuck.path("b").unlink()

    done = cli(
        *("batch", "skip", stuck.file, "--file", "data/b.txt", "--reason", "disk died", "--yes")
    )
    stuck.run()
    stuck.run()  # over its list of files, in which one is that is not there
    stuck.path("b").write_text("one two\n")  # too late: it counts as read
    stuck.run()

    assert done.out == "words: skip of batch 2: recorded; the next run commits it\n"
    assert [count(cli, stuck.file, w) for w in ("to", "one", "two", "three")] == [2, None, 1, 1]
    (decision,) = json.loads(cli("batch", "show", stuck.file, "--json").out)["decisions"]
    assert decision["who"].count("@") == 1
    kept = {key: decision[key] for key in ("txid", "action", "spouts", "files", "reason")}
    files = [str(stuck.path("b"))]
    assert kept == {
        "txid": 2, "action": "skip", "spouts": ["in"], "files": files, "reason": "disk died",
    }  # fmt: skip
    explained = cli("state", "explain", stuck.file, "two").out
    assert f"decided   batch 2: skip {files[0]}, by " in explained


def test_all_input_of_a_batch_is_skipped_and_never_comes_again(cli, stuck, place):
    stuck.path("c").unlink()

    done = json.loads(
        cli("batch", "skip", stuck.file, "--reason", "never mind", "--yes", "--json").out
    )
    told = json.loads(cli("batch", "show", stuck.file, "--json").out)
    stuck.path("c").write_text("two\n")
    (place / "data" / "e.txt").write_text("four\n")
    stuck.run()

    assert done == {"topology": "words", "txid": 2, "recorded": True}
    assert (told["batches"][0]["skipped"], told["batches"][0]["wrong"]) == (["in"], [])
    assert [count(cli, stuck.file, w) for w in ("to", "one", "two", "four")] == [2, None, None, 1]
    assert stuck.ledger().current == 4


def test_a_changed_file_is_accepted_as_it_is_now_and_a_gone_one_cannot_be(cli, stuck):
    stuck.path("c").write_text("five five\n")
    stuck.path("b").rename(stuck.path("b").with_suffix(".saved"))

    refused = cli("batch", "accept", stuck.file, "--reason", "fixed by hand", "--yes")
    assert refused.code == 2
    assert "b.txt cannot be read: No such file or directory: it cannot be accepted" in refused.err
    stuck.path("b").with_suffix(".saved").rename(stuck.path("b"))
    accepted = cli("batch", "accept", stuck.file, "--reason", "fixed by hand", "--yes")
    again = cli("batch", "accept", stuck.file, "--reason", "fixed by hand", "--yes")
    stuck.run()

    assert accepted.out == "words: accept of batch 2: recorded; the next run commits it\n"
    assert again.out == "words: accept of batch 2: nothing to do, it is so already\n"
    assert [count(cli, stuck.file, w) for w in ("one", "two", "five")] == [1, 1, 2]


def test_a_batch_is_not_decided_on_while_a_driver_runs_the_topology(cli, stuck):
    stuck.path("c").unlink()
    driver = EmbeddedStore(stuck.place / "home", "words")
    driver.acquire(driver.peek().fingerprint)

    refused = cli("batch", "skip", stuck.file, "--reason", "never mind", "--yes")
    shown = cli("batch", "show", stuck.file)
    driver.release()

    assert refused.code == 2
    assert "topology 'words' is taken" in refused.err
    assert shown.code == 0
    assert stuck.ledger().decisions == ()


@pytest.mark.parametrize(("point", "recorded"), [("metadata.before", 0), ("metadata.after", 1)])
def test_a_crash_in_the_middle_of_a_decision_leaves_all_of_it_or_nothing(
    cli, stuck, point, recorded
):
    stuck.path("b").unlink()
    command = ("batch", "skip", stuck.file, "--file", "data/b.txt", "--reason", "x", "--yes")

    faults.install(FaultPlan([Fault(point, "raise", where={"txid": 2})]))
    crashed = cli(*command)
    faults.install(None)
    after = len(stuck.ledger().decisions)
    again = cli(*command)
    stuck.run()

    assert (crashed.code, after, again.code) == (1, recorded, 0)
    assert len(stuck.ledger().decisions) == 1
    assert [count(cli, stuck.file, w) for w in ("one", "two", "three")] == [None, 1, 1]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_batch_that_has_begun_to_commit_is_taken_back_or_refused(cli, write, place, kind):
    many = WORD_COUNT.replace(".opaque(", f".{kind}(")
    stuck = Stuck(write(many), place)
    stuck.crash("write.after")
    stuck.path("b").unlink()
    command = ("batch", "skip", stuck.file, "--reason", "never mind", "--yes")

    skipped = cli(*command)
    if kind == "transactional":
        assert skipped.code == 2
        assert "has begun to commit, and " in skipped.err
        assert stuck.ledger().decisions == ()
        assert cli(*command, "--inexact").code == 0
        (decision,) = stuck.ledger().decisions
        assert len(decision["inexact"]) == 1
    stuck.run()

    assert stuck.ledger().current == 3
    if kind == "opaque":
        words = ("to", "one", "two", "three")
        assert [count(cli, stuck.file, w) for w in words] == [2, None, None, None]


BOLTS = """
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional import *

class Count(BatchBolt):
    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.words = context.state("words")

    def execute(self, tuple):
        self.words.update(tuple["word"], lambda old: (old or 0) + 1)

spout = {spout}([["a", "b", "c", "d", "e", "f"]], "word", 2)
builder = TransactionalTopologyBuilder("words", "spout", spout)
count = builder.set_committer_bolt("count", Count()).global_grouping("spout")
count.with_state("words", SQLiteState.opaque("bolts.db", table="words"),
                 keys="word string", values="n bigint")
topology = builder.build_topology()
"""


@pytest.mark.parametrize("spout", ["MemoryTransactionalSpout", "OpaqueMemoryTransactionalSpout"])
def test_the_range_of_emitters_is_skipped_and_positions_go_on_behind_it(cli, write, place, spout):
    stuck = object.__new__(Stuck)
    stuck.file, stuck.place = write(BOLTS.replace("{spout}", spout)), place
    stuck.crash()

    refused = cli("batch", "accept", stuck.file, "--reason", "x", "--yes")
    shown = cli("batch", "show", stuck.file).out
    skipped = cli("batch", "skip", stuck.file, "--reason", "poison", "--yes")
    # Planned anew, the batch would be larger now.
    write(BOLTS.replace("{spout}", spout).replace('"word", 2)', '"word", 3)'))
    stuck.run()

    assert refused.out.endswith("nothing to do, it is so already\n")
    assert "  spout spout: [[[0, 2], [2, 2]]]" in shown
    assert skipped.code == 0
    words = "abcdef"
    assert [count(cli, stuck.file, w) for w in words] == [1, 1, None, None, 1, 1]


def test_what_cannot_be_decided_is_refused_with_the_reason(cli, stuck, write):
    stuck.run()
    nothing = cli("batch", "skip", stuck.file, "--reason", "x", "--yes")
    without = cli("batch", "skip", stuck.file, "--yes")
    core = write(
        "from waterspout import TopologyBuilder\nfrom waterspout.testing import FeederSpout\n"
        "b = TopologyBuilder()\nb.set_spout('s', FeederSpout('n'))\n"
        "topology = b.create_topology('core')\n",
        "core.py",
    )

    assert nothing.err == (
        "error: no batch is unfinished: 2 have committed, and the next was not planned yet. "
        "Nothing is stuck.\n"
    )
    assert without.code == 2
    assert "has no batches" in cli("batch", "show", core).err
    stuck.path("b").with_name("z.txt").write_text("z\n")
    stuck.crash(txid=3)
    foreign = cli(*("batch", "skip", stuck.file, "--file", "nope", "--reason", "x", "--yes"))
    assert "nope is not among the files of batch 3" in foreign.err
    other = cli("batch", "skip", stuck.file, "--txid", "9", "--reason", "x", "--yes")
    assert "batch 9 is not unfinished; these are: 3" in other.err
    assert cli("batch", "skip", stuck.file, "--reason", " ", "--yes").err.startswith("error: give")
