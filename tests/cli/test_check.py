"""`waterspout check`: what it prints, and what it finds in a file."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import CORE_WORD_COUNT, WORD_COUNT, listing
from waterspout.cli.loading import load_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.testing import LocalRun

CORE_PLAN = """\
words: a topology of spouts and bolts

  spout sentences (FeederSpout, 1 task; driver)
    emits default (sentence) to split
  bolt split (Split, 2 tasks)
    from sentences: shuffle grouping
    emits default (word), which nobody takes

a wave of up to 2,000 tuples: 1 job, 1 stage, 1 task
a larger one: 1 job, 1 stage, 0 shuffles, on 3 workers
  stage 1 (2 shards): split

guarantee: at least once for messages with an id, not exactly-once
  a tree that is not complete fails after 5 to 10 s; after 3 replays a message becomes a dead letter
  in-memory state of bolts survives lost workers, not the end of the run
  of dicts, Counters, defaultdicts and sets in it with 4,096 plain values or more
    a wave moves what it has changed; everything else in it moves whole with every wave
checked: streams, groupings, names, pickling and the coordination store; nothing was run or written
"""

BUILDER = CORE_WORD_COUNT[: CORE_WORD_COUNT.index("builder.set_bolt")]


def test_the_plan_and_the_guarantee_are_printed_and_nothing_is_written(cli, write, place):
    file = write(WORD_COUNT)
    before = listing(place)

    outcome = cli("check", file, "-c", "topology.max.spout.pending=4")

    assert outcome.code == 0, outcome.err
    assert "topology words" in outcome.out
    assert "up to 4 batches at once" in outcome.out
    assert "each(Split)  (value string, word string)" in outcome.out
    assert "while results fit the driver: 1 job for processing, 0 for commit; 1 shuf" in outcome.out
    assert "word_counts): exactly-once: spout 'in' is transactional" in outcome.out
    assert outcome.err == ""
    assert listing(place) == before


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("plan.mmd", '---\ntitle: "topology words"\n---\nflowchart TB\n'),
        ("plan.DOT", 'digraph "words" {'),
    ],
)
def test_the_plan_is_drawn_in_the_format_that_the_file_is_named_for(
    cli, write, place, name, begins
):
    file = write(WORD_COUNT)
    before = listing(place)

    outcome = cli("check", file, "--graph", name)

    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith(f"; nothing was run; the graph is in {name}\n")
    assert (place / name).read_text().startswith(begins)
    assert set(listing(place)) - set(before) == {str(place / name)}


def test_a_graph_in_a_format_that_is_not_known_is_refused_before_anything_is_loaded(cli, place):
    outcome = cli("check", "no-such.py", "--graph", "plan.png")

    assert outcome == (
        2,
        "",
        "error: --graph plan.png must end in .mmd (for Mermaid) or .dot (for Graphviz), "
        "which says what to write\n",
    )


def test_a_graph_that_cannot_be_written_is_an_error_and_no_traceback(cli, write):
    outcome = cli("check", write(WORD_COUNT), "--graph", "nowhere/plan.mmd")

    assert outcome.code == 2
    assert outcome.err == "error: [Errno 2] No such file or directory: 'nowhere/plan.mmd'\n"


def test_a_topology_of_spouts_and_bolts_is_not_drawn(cli, write, place):
    outcome = cli("check", write(CORE_WORD_COUNT), "--graph", "plan.mmd")

    assert (outcome.code, outcome.out) == (2, "")
    assert "--graph draws Trident topologies; this is one of spouts and bolts" in outcome.err
    assert not (place / "plan.mmd").exists()


def test_the_plan_of_spouts_and_bolts_is_printed_and_nothing_is_written(
    cli, write, place, monkeypatch
):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    file = write(CORE_WORD_COUNT)
    before = listing(place)

    outcome = cli("check", file, "-c", "message_timeout_secs=5")

    assert outcome == (0, CORE_PLAN, "")
    assert listing(place) == before


def test_a_topology_of_spouts_and_bolts_that_has_changed_since_it_ran_is_refused(cli, write, place):
    store = EmbeddedStore(place / "home", "words")
    store.acquire({"spout sentences": "another one"})
    store.release()

    outcome = cli("check", write(CORE_WORD_COUNT))

    assert outcome.code == 2
    assert "topology 'words' has changed since its last run" in outcome.err


def test_states_are_not_looked_for_in_a_topology_of_spouts_and_bolts(cli, write):
    outcome = cli("state", "get", write(CORE_WORD_COUNT), "be")

    assert outcome == (
        2,
        "",
        "error: 'words' is a topology of spouts and bolts: it has no states. What its bolts hold "
        "in memory ends with the run.\n",
    )


def test_a_pair_that_is_not_exactly_once_is_said_to_be_so(cli, write):
    file = write(WORD_COUNT.replace("SQLiteState.opaque", "SQLiteState.non_transactional"))

    outcome = cli("check", file)

    assert outcome.code == 0
    assert "not exactly-once" in outcome.out


@pytest.mark.parametrize(
    ("ending", "name"),
    [
        ("", ""),
        ("mine = topology\ndel topology\n", ":mine"),
        ("def make():\n    return topology\n", ":make"),
        ("make = lambda: topology\n", ":make"),
    ],
    ids=["the usual name", "a variable", "a function", "a lambda"],
)
def test_a_topology_is_found_by_its_name(cli, write, ending, name):
    outcome = cli("check", write(WORD_COUNT + ending) + name)

    assert outcome.code == 0, outcome.err
    assert "topology words" in outcome.out


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (
            "x = 1\n",
            "assign a TridentTopology, or what create_topology() returns, to a variable named "
            "topology",
        ),
        ("def build():\n    pass\n", "the functions build"),
        (WORD_COUNT.replace("topology", "words_topology"), "use words.py:words_topology"),
        ("topology = None\n", "topology in words.py is None"),
        ("def topology(size):\n    pass\n", "topology() in words.py takes arguments"),
        ("def topology():\n    return 1\n", "is an int, not a topology"),
        ("def topology():\n    return 1 / 0\n", "words.py, line 2: ZeroDivisionError"),
        (BUILDER, "call create_topology, as in topology = builder.create_topology(...)"),
        (
            BUILDER.replace("builder", "topology"),
            "topology in words.py is a TopologyBuilder, not a topology. A builder is not a "
            "topology yet: call create_topology, as in topology = topology.create_topology(...)",
        ),
        (f"{BUILDER}mine = builder.create_topology('mine')\n", "use words.py:mine"),
        (
            f"{BUILDER}builder.set_bolt('split', Split()).shuffle_grouping('sentenses')\n"
            "topology = builder.create_topology('words')\n",
            "words.py, line 14: bolt 'split' subscribes to 'sentenses', but there is no such "
            "component; did you mean 'sentences'?",
        ),
    ],
)
def test_what_is_there_instead_is_named(cli, write, source, named):
    outcome = cli("check", write(source))

    assert outcome.code == 2
    assert named in outcome.err


def test_a_file_may_import_its_neighbours_and_have_the_name_of_a_module(cli, write, place):
    (place / "neighbour.py").write_text("def shout(text):\n    return text.upper()\n")
    file = write("import neighbour\n" + WORD_COUNT + "import json; json.dumps(1)\n", "json.py")

    outcome = cli("check", file)

    assert outcome.code == 0, outcome.err


def test_settings_win_over_the_file_whatever_their_spelling(cli, write, place):
    (place / "run.yaml").write_text("topology.max.spout.pending: 7\nstrict: true\n")

    outcome = cli("check", write(WORD_COUNT), "--config", "run.yaml", "-c", "max_spout_pending=2")

    assert "up to 2 batches at once" in outcome.out


def test_debug_shows_the_traceback_as_well(cli, write):
    outcome = cli("check", write("x = 1 / 0\n"), "--debug")

    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "ZeroDivisionError" in outcome.err.splitlines()[-1]


LENGTHS = """
lengths = SQLiteState.opaque("counts.db", table="lengths")
words.persistent_aggregate(lengths, Count(), "n")
"""


def has_run(file, place):
    run = LocalRun(load_topology(file), store=EmbeddedStore(place / "home", "words"))
    run.finish()
    run.close()


def test_changes_since_the_last_run_are_shown_before_a_deploy_and_nothing_is_written(
    cli, write, place
):
    assert cli("check", write(WORD_COUNT), "--against-stored").out == (
        "words: has not run here; everything begins with batch 1\n"
    )
    has_run(write(WORD_COUNT), place)
    before = listing(place)

    same = cli("check", "words.py", "--against-stored")
    grown = cli("check", write(WORD_COUNT + LENGTHS, "grown.py"), "--against-stored")
    plan = cli("check", "grown.py")

    (place / "grown.py").unlink()
    assert listing(place) == before
    assert same == (0, "words: nothing has changed since the last run\n", "")
    change = (
        "state state2 (sqlite lengths) is new: it begins empty, with batch 2. What the batch "
        "before it held is not in it."
    )
    assert grown == (
        0,
        f"words: 1 change since the last run; the next batch is 2\n  note     {change}\n",
        "",
    )
    assert f"\nchanges since the last run\n  note     {change}\n" in plan.out


def test_a_refused_change_ends_the_check_with_2_and_is_retired_by_name(cli, write, place):
    has_run(write(WORD_COUNT + LENGTHS), place)
    write(WORD_COUNT, "without.py")

    refused = cli("check", "without.py", "--against-stored", "--json")
    retired = cli("check", "without.py", "--against-stored", "--json", "--retire", "lengths")

    assert (refused.code, retired.code) == (2, 0)
    (change,) = json.loads(refused.out)["changes"]
    assert (change["piece"], change["ruling"]) == ("state state2 (sqlite lengths)", "refused")
    assert "--retire lengths" in change["text"]
    assert json.loads(retired.out) == {
        "topology": "words",
        "has_run": True,
        "next_batch": 2,
        "refused": 0,
        "changes": [
            {
                "piece": "state state2 (sqlite lengths)",
                "ruling": "note",
                "text": "is retired: batch 1 is its last. Its records stay as they are; nobody "
                "writes them any more.",
            }
        ],
    }


def test_a_check_for_programs_has_the_verdict_of_each_state(cli, write, place):
    weak = WORD_COUNT.replace("SQLiteState.opaque", "SQLiteState.non_transactional")

    exact = json.loads(cli("check", write(WORD_COUNT), "--json", "--graph", "g.mmd").out)
    wrong = json.loads(cli("check", write(weak, "weak.py"), "--json").out)

    assert (exact["topology"], exact["kind"], exact["graph"]) == ("words", "trident", "g.mmd")
    assert exact["explain"] == cli("check", "words.py").out.rpartition("\nchecked: ")[0]
    (state,) = exact["states"]
    assert (state["kind"], state["guarantee"]) == ("opaque", "exactly-once")
    assert state["store"].endswith("counts.db#word_counts")
    assert "\nflowchart TB\n" in (place / "g.mmd").read_text()
    assert [each["guarantee"] for each in wrong["states"]] == ["not exactly-once"]


def test_a_state_that_has_all_batches_is_not_filled_and_no_spark_is_started(cli, write, place):
    has_run(write(WORD_COUNT), place)

    whole = cli("state", "backfill", "words.py")
    changed = cli("state", "backfill", write(WORD_COUNT + LENGTHS, "grown.py"))

    assert whole == (0, "words: every state has all batches\n", "")
    assert changed.code == 2
    assert "Run it first; what is new is filled then." in changed.err
