"""`waterspout state`: get, explain and rollback without Spark, audit with it."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import pytest

from tests.cli.conftest import WORD_COUNT
from waterspout import Config
from waterspout.cli.loading import load_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.testing import LocalBatches, LocalRun

TWO_STATES = """
from waterspout.testing import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

ROWS = [("paris", 7, 1.5), ("paris", 7, 2.0), ("rome", 8, 4.0), ("paris", 8, 1.0)]
topology = TridentTopology("sales")
sales = topology.new_stream("rows", FixedBatchSpout("city string, day int, amount double", 2, ROWS))
by_day = SQLiteState.opaque("sales.db", table="by_day")
sales.group_by(["city", "day"]).persistent_aggregate(
    by_day, Columns(n=Count(), total=("amount", Sum()))
)
sales.persistent_aggregate(SQLiteState.opaque("sales.db", table="total"), Count(), out="n")
"""


BOLTS = """
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional import *

class Count(BatchBolt):
    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.states = context.state("words"), context.state("total")

    def execute(self, tuple):
        words, total = self.states
        words.update(tuple["word"], lambda old: (old or 0) + 1)
        total.update((), lambda old: (old or 0) + 1)

spout = MemoryTransactionalSpout([["a", "b", "a", "c"]], "word", 2)
builder = TransactionalTopologyBuilder("bolts", "spout", spout)
count = builder.set_committer_bolt("count", Count()).global_grouping("spout")
count.with_state("words", SQLiteState.opaque("bolts.db", table="words"),
                 keys="word string", values="n bigint")
count.with_state("total", SQLiteState.opaque("bolts.db", table="total"))
topology = builder.build_topology()
"""


@pytest.fixture
def bolts(write, cli, place):
    """A transactional topology that has run to its end: two batches, two states of one bolt."""
    file = write(BOLTS, "bolts.py")
    store = EmbeddedStore(place / "home", "bolts")
    run = LocalBatches(load_topology(file), Config(), store=store)
    run.finish()
    run.close()
    sys.modules.pop("bolts", None)
    return file


def test_states_of_bolts_are_seen_as_those_of_streams(cli, bolts):
    assert cli("state", "get", bolts, "a", "--state", "words").out == "2\n"
    assert cli("state", "get", bolts, "--state", "total").out == "4\n"
    told = cli("state", "explain", bolts, "a", "--state", "words").out.splitlines()
    assert told[1:5] == [
        'key       ["a"]',
        "value     2",
        "written   by batch 2, attempt 0 (committed)",
        "before    1",
    ]
    assert told[6] == "from      spout spout: [[[0, 2], [2, 2]]]"
    audited = cli("state", "audit", bolts).out.splitlines()
    assert [line.split("): ")[1] for line in audited] == [
        "not audited, what bolt 'count' does to it is your own code"
    ] * 2
    checked = cli("check", bolts).out
    assert checked.count(": exactly-once: spout 'spout' is transactional, the state is opaque") == 2


def test_the_states_of_bolts_are_rolled_back_together(cli, bolts):
    rolled = cli("state", "rollback", bolts, "--yes")

    assert rolled.out == "bolts: batch 2 was taken back; the next run emits it again\n"
    assert cli("state", "get", bolts, "a", "--state", "words").out == "1\n"
    assert cli("state", "get", bolts, "--state", "total").out == "2\n"


def test_a_committer_on_its_own_cannot_be_rolled_back_nor_looked_into(cli, write):
    alone = BOLTS.replace("topology = ", "builder.set_committer_bolt('alone', Count())"
                          ".global_grouping('spout')\ntopology = ")  # fmt: skip
    none = "\n".join(line for line in BOLTS.splitlines() if "with_state" not in line)
    none = none.replace('                 keys="word string", values="n bigint")', "")

    refused = cli("state", "rollback", write(alone, "alone.py"), "--yes")
    assert "what committer 'alone' writes is a state of your own" in refused.err
    refused = cli("state", "get", write(none, "none.py"), "a")
    assert "is a transactional topology without states" in refused.err


@pytest.fixture
def sales(write, cli, place):
    """A topology that has run to its end: two batches, two states."""
    file = write(TWO_STATES, "sales.py")
    run_here(file, place, "sales")
    return file


def run_here(file, place, name):
    store = EmbeddedStore(place / "home", name)
    run = LocalRun(load_topology(file), Config(), store=store)
    run.finish()
    run.close()
    sys.modules.pop(file.removesuffix(".py"), None)


def table(name):
    with closing(sqlite3.connect("sales.db")) as db:
        return db.execute(f"SELECT * FROM {name}").fetchall()


def values(name):
    """The user's columns, without the attempt that wrote them."""
    width = {"by_day": 4, "total": 1}[name]
    return [row[:width] for row in table(name)]


def test_get_prints_the_value_of_a_key(cli, sales):
    outcome = cli("state", "get", sales, '["paris", 7]', "--state", "by_day")

    assert (outcome.code, outcome.out, outcome.err) == (0, "[2, 3.5]\n", "")
    assert cli("state", "get", sales, "--state", "total").out == "4\n"


def test_get_of_a_key_that_is_not_there_says_so(cli, sales):
    outcome = cli("state", "get", sales, '["oslo", 7]', "--state", "state1")

    assert (outcome.code, outcome.out, outcome.err) == (1, "", "no value\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["paris"], "has several states; choose one with --state: state1 (sqlite:"),
        (["paris", "--state", "none"], "has no single state 'none'"),
        (["paris", "--state", "by_day"], "give a JSON list of its values"),
        (["--state", "by_day"], "give the key: city string, day int"),
        (["x", "--state", "total"], "state2 is a global state; it has no keys"),
        (['["paris", "seven"]', "--state", "by_day"], "'seven' in the key"),
    ],
)
def test_what_cannot_be_asked_says_what_can(cli, sales, arguments, named):
    outcome = cli("state", "get", sales, *arguments)

    assert outcome.code == 2
    assert named in outcome.err


def test_explain_names_the_batch_the_attempt_and_the_source_ranges(cli, sales):
    outcome = cli("state", "explain", sales, '["paris", 7]', "--state", "by_day")

    assert outcome.code == 0, outcome.err
    lines = dict(line.split(None, 1) for line in outcome.out.splitlines())
    assert json.loads(lines["value"]) == [2, 3.5]
    assert lines["written"] == "by batch 1, attempt 0 (committed)"
    assert lines["before"] == "(none)"
    assert lines["head"].startswith("batch 2 attempt 0")
    assert lines["from"] == 'spout rows: {"start": 0, "end": 2}'


def test_rollback_takes_the_last_batch_back_and_the_next_run_counts_it_again(cli, sales, place):
    before = values("by_day"), values("total")

    outcome = cli("state", "rollback", sales, "--yes")

    assert outcome.code == 0, outcome.err
    assert outcome.out == "sales: batch 2 was taken back; the next run emits it again\n"
    assert cli("state", "get", sales, "--state", "total").out == "2\n"
    assert [row[:2] for row in table("by_day")] == [("paris", 7)]
    run_here(sales, place, "sales")
    assert cli("state", "get", sales, "--state", "total").out == "4\n"
    assert (values("by_day"), values("total")) == before


def test_rollback_asks_first(cli, sales, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda text, abort: (_ for _ in ()).throw(SystemExit(3)))

    with pytest.raises(SystemExit):
        cli("state", "rollback", sales)

    assert cli("state", "get", sales, "--state", "total").out == "4\n"


def test_rollback_of_what_never_ran_or_is_not_opaque_is_refused(cli, write):
    assert "has never run here" in cli("state", "rollback", write(TWO_STATES), "--yes").err
    other = write(
        TWO_STATES.replace('opaque("sales.db", table="total")', 'transactional("s.db", "t")')
    )
    outcome = cli("state", "rollback", other, "--yes")

    assert outcome.code == 2
    assert "Only a topology whose states are all opaque" in outcome.err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_audit_counts_again_and_names_the_keys_that_differ(cli, write, place, shared_spark):
    file = write(WORD_COUNT)
    assert cli("run", file, "--until-idle").code == 0
    (place / "data" / "b.txt").write_text("to do\n")  # not read yet: not part of it
    good = cli("state", "audit", file)
    with closing(sqlite3.connect("counts.db")) as db, db:
        db.execute("UPDATE word_counts SET count = 7 WHERE word = 'to'")
        db.execute("DELETE FROM word_counts WHERE word = 'not'")

    bad = cli("state", "audit", file)

    assert good.code == 0, good.err
    assert "4 keys, exact" in good.out
    assert bad.code == 1
    assert "4 keys, 2 differ" in bad.out
    assert '["to"]: the state has 7, the source gives 2' in bad.out
    assert '["not"]: the state has (none), the source gives 1' in bad.out
