"""`waterspout list`, `show`, `kill` and the others: what is said, and the exit codes."""

from __future__ import annotations

import json

import pytest

from tests.coordination.commanded import embedded, running, until, words
from waterspout.events import ErrorReported


@pytest.fixture
def caught_up(place):
    """A run that has counted three files, on another thread."""
    with running(words(place), embedded(place)) as (run, loop):
        run.process_all_available(timeout=30)
        until(lambda: (embedded(place).channel.status() or {}).get("snapshot", {}))
        yield run, loop


def told(cli, *arguments):
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_a_home_in_which_nothing_has_run_is_said_to_be_so(cli, place):
    assert cli("list") == (0, f"nothing has run in {place / 'home'}\n", "")


def test_a_run_is_listed_with_what_it_has_done_and_who_runs_it(cli, caught_up):
    until(lambda: told(cli, "list")["topologies"][0]["snapshot"]["totals"]["committed"] == 4)

    header, line = cli("list").out.splitlines()

    assert " ".join(header.split()) == "topology status done in flight up driver last error"
    assert line.startswith("words     idle    batch 4          0 ")
    assert "process " in line
    assert told(cli, "list")["topologies"][0]["status"] == "idle"


def test_show_tells_how_a_run_stands_and_where_a_restart_goes_on(cli, caught_up):
    _, loop = caught_up
    loop.events.publish(ErrorReported("words", "split", 1, "ValueError: [red]no\x1b", "trace"))
    until(lambda: "ValueError" in cli("show", "words").out)

    lines = cli("show", "words").out.splitlines()

    found = {line[:16].strip(): line[16:] for line in lines}
    assert (found["topology"], found["status"]) == ("words", "idle")
    assert found["in this run"] == "4 batches committed, 4 rows read, 10 rows written"
    assert found["a restart"] == "goes on with batch 5"
    assert found["error"].startswith(r"split: ValueError: [red]no\x1b, ")
    facts = told(cli, "show", "words")
    assert facts["resumes"] == {"txid": 5, "emitted": {}, "begun": [], "positions": {}}
    assert facts["snapshot"]["totals"]["last_txid"] == 4


def test_where_a_run_is_served_is_shown_until_it_ends(cli, caught_up):
    run, _ = caught_up
    assert told(cli, "show", "words")["server_url"] is None

    run.served_at("http://127.0.0.1:4040")

    until(lambda: told(cli, "show", "words")["server_url"] == "http://127.0.0.1:4040")
    assert "served at       http://127.0.0.1:4040\n" in cli("show", "words").out
    cli("kill", "words")
    assert told(cli, "show", "words")["server_url"] is None


def test_kill_ends_a_run_and_the_next_command_says_that_it_does_not_run(cli, caught_up):
    run, _ = caught_up

    outcome = cli("kill", "words")

    assert outcome == (0, "words: killed after batch 4\n", "")
    run.await_termination(timeout=30)
    assert cli("kill", "words") == (1, "", "error: words: it does not run\n")
    assert cli("show", "words").out.splitlines()[1].split() == ["status", "stopped"]
    refused = cli("activate", "words", "--json")
    assert refused.code == 1
    assert json.loads(refused.out) == {
        "command": "activate",
        "topology": "words",
        "outcome": "refused",
        "text": "it does not run",
    }


def test_deactivate_and_activate_are_seen_in_the_list(cli, caught_up):
    kept = "so will be its next run, until it is told otherwise or killed"
    assert cli("deactivate", "words").out == f"words: it is inactive; {kept}\n"
    until(lambda: told(cli, "list")["topologies"][0]["status"] == "inactive")
    assert "deactivated by " in cli("show", "words").out

    assert cli("activate", "words").out == f"words: it is active; {kept}\n"
    until(lambda: told(cli, "list")["topologies"][0]["status"] == "idle")


def test_a_rebalance_is_told_and_a_wrong_one_refused(cli, caught_up):
    done = told(cli, "rebalance", "words", "--pending", "2", "-w", "5")
    assert done["text"] == "rebalanced after batch 4: max_spout_pending=2"
    assert "rebalanced      max_spout_pending=2, by " in cli("show", "words").out

    assert cli("rebalance", "words").code == 2
    assert cli("rebalance", "words", "-e", "split").code == 2
    assert cli("rebalance", "words", "-n", "0").code == 2
    assert cli("rebalance", "words", "-n", "2").code == 1


def test_a_topology_that_is_not_known_is_misuse_and_named(cli, caught_up):
    for command in ("show", "kill", "activate", "deactivate"):
        outcome = cli(command, "wrods")
        assert outcome.code == 2
        assert "there is no topology 'wrods'" in outcome.err
        assert "it has words" in outcome.err


def test_a_topology_is_also_found_by_its_file(cli, write, caught_up):
    name = write(
        'from waterspout.trident import TridentTopology\ntopology = TridentTopology("words")'
    )

    assert told(cli, "show", name)["topology"] == "words"


def test_a_damaged_store_is_listed_as_such_beside_the_others(cli, caught_up, place):
    (place / "home" / "broken").mkdir()
    (place / "home" / "broken" / "coordination.db").write_bytes(b"SQLite format 3\0" + b"x" * 4000)

    lines = cli("list").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["broken", "words"]
    assert lines[1].split()[1] == "damaged"
