"""`--json`: every command has it, and every command keeps to the one rule of it.

A new command fails here until it has the option and an answer that a program can read.
"""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.conftest import WORD_COUNT
from tests.cli.test_batch import Stuck
from tests.cli.test_dead_letters import LETTER
from tests.cli.test_state import BOLTS
from tests.coordination.commanded import embedded, running, until, words
from waterspout import Config, _plain
from waterspout.cli.app import app, main
from waterspout.cli.loading import load_topology
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.testing import LocalBatches

TESTS = Path(__file__).parents[1]

# What to ask for, and what of the answer is compared; in the order in which it is asked.
OF_STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "init": ("project", {"project": "project"}),
    "doctor": ("", {"ready": True, "missing": 0}),
    "check": ("words.py", {"topology": "words", "kind": "trident", "graph": None}),
    "state get": ("words.py to", {"key": ["to"], "found": True, "value": 2}),
    "state explain": ("words.py to", {"topology": "words", "key": ["to"], "value": 2}),
    "state audit": ("bolts.py", {"topology": "bolts", "exact": True, "decided": []}),
    "state backfill": ("words.py", {"topology": "words", "filled": {}}),
    "batch show": ("words.py", {"topology": "words", "next": 2, "decisions": []}),
    "batch accept": ("words.py --reason so --yes", {"txid": 2, "recorded": False}),
    "batch skip": ("words.py --reason so --yes", {"txid": 2, "recorded": True}),
    "state rollback": ("bolts.py --yes", {"topology": "bolts", "taken_back": 2}),
    "dead-letters list": ("core", {"topology": "core", "total": 2}),
    "dead-letters show": ("core 1", {"topology": "core", "id": 1, "error": LETTER.error}),
    "dead-letters replay": ("core 1", {"action": "replay", "done": 1, "problem": ""}),
    "dead-letters drop": (
        "core 2 --yes",
        {"action": "drop", "done": 1, "problem": ""},
    ),
}
OF_A_RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "list": ("", {}),
    "show": ("words", {"topology": "words", "problem": None}),
    "deactivate": ("words", {"command": "deactivate", "topology": "words", "outcome": "done"}),
    "activate": ("words", {"command": "activate", "topology": "words", "outcome": "done"}),
    "rebalance": ("words --pending 2", {"command": "rebalance", "outcome": "done"}),
    "kill": ("words", {"command": "kill", "topology": "words", "outcome": "done"}),
}
# These need Spark; the file that asks them.
ELSEWHERE = {
    "bench": "cli/test_bench.py",
    "demo": "cli/test_demo.py",
    "drpc": "cli/test_drpc.py",
    "prove": "cli/test_prove.py",
    "run": "cli/test_run.py",
    "ui": "ui/test_page_server.py",
}


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return every command of the app with its path."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        below = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, below)
        else:
            yield below, command


COMMANDS = dict(commands())


def document(outcome: Any) -> dict[str, Any]:
    """Return the one document of an answer, on the one line of stdout."""
    assert outcome.err == "", outcome.err
    assert outcome.out.count("\n") == 1, outcome.out
    return json.loads(outcome.out)


def failure(outcome: Any) -> dict[str, Any]:
    """Return the error that a command ended with."""
    assert outcome.out == ""
    told = json.loads(outcome.err.splitlines()[-1])["error"]
    assert told["exit_code"] == outcome.code
    return told


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_the_option(path):
    options = [option for each in COMMANDS[path].params for option in each.opts]

    assert "--json" in options, f"{path}: take `as_json: AsJson` (cli/answers.py)"


def test_every_command_is_asked_for_its_answer_somewhere():
    assert {*OF_STORED, *OF_A_RUN, *ELSEWHERE} == COMMANDS.keys()
    for path, file in ELSEWHERE.items():
        text = (TESTS / file).read_text()
        assert f'"{path.split()[-1]}"' in text, path
        assert '"--json"' in text, path


@pytest.mark.parametrize("path", COMMANDS)
def test_misuse_is_an_error_as_json_with_the_code_that_it_has_anyway(cli, path):
    wrong = (*path.split(), "--no-such-option")

    for_people, for_programs = cli(*wrong), cli(*wrong, "--json")

    told = failure(for_programs)
    assert for_people.code == for_programs.code == 2
    assert told["kind"] == "NoSuchOption"
    assert for_people.err == f"error: {told['message']}\n"


def test_what_is_stored_is_told_in_one_document_each(cli, write, place, monkeypatch):
    stuck = Stuck(write(WORD_COUNT), place)
    run = LocalBatches(
        load_topology(write(BOLTS, "bolts.py")),
        Config(),
        store=EmbeddedStore(place / "home", "bolts"),
    )
    run.finish()
    run.close()
    letters = DeadLetters(place / "home" / "core")
    letters.add([LETTER, LETTER])
    letters.close()
    assert stuck.ledger().current == 2

    for path, (arguments, expected) in OF_STORED.items():
        told = document(cli(*path.split(), *arguments.split(), "--json"))
        assert expected.items() <= told.items(), path


def test_what_runs_is_told_in_one_document_each(cli, place):
    with running(words(place), embedded(place)) as (run, _):
        run.process_all_available(timeout=30)
        until(lambda: (embedded(place).channel.status() or {}).get("snapshot", {}))
        for path, (arguments, expected) in OF_A_RUN.items():
            told = document(cli(*path.split(), *arguments.split(), "--json"))
            assert expected.items() <= told.items(), path


def test_an_answer_that_is_no_is_a_document_with_the_code_that_it_has_anyway(
    cli, write, place, monkeypatch
):
    Stuck(write(WORD_COUNT), place)
    monkeypatch.setenv("JAVA_HOME", "/not/here")

    for arguments, expected in (
        (("state", "get", "words.py", "never"), {"found": False, "value": None}),
        (("doctor",), {"ready": False, "missing": 1}),
    ):
        for_programs = cli(*arguments, "--json")
        assert cli(*arguments).code == for_programs.code == 1
        assert expected.items() <= document(for_programs).items()


def test_an_error_names_its_kind_and_says_what_people_are_told(cli, write):
    for arguments, kind in (
        (("check", "none.py"), "TopologyError"),
        (("show", "words"), "ConfigError"),
        (("check", write(WORD_COUNT), "-c", "nonsense=1"), "ConfigError"),
        (("frobnicate",), "UsageError"),
    ):
        told = failure(cli(*arguments, "--json"))
        assert (told["kind"], told["exit_code"]) == (kind, 2)
        assert cli(*arguments).err == f"error: {told['message']}\n"
    assert "traceback" in failure(cli("check", "none.py", "--json", "--debug"))


@pytest.mark.parametrize(
    "asking",
    ["state rollback words.py", "batch skip words.py --reason so", "dead-letters drop words --all"],
)
def test_nobody_is_asked_anything(cli, write, place, asking):
    Stuck(write(WORD_COUNT), place)
    letters = DeadLetters(place / "home" / "words")
    letters.add([LETTER])
    letters.close()

    told = failure(cli(*asking.split(), "--json"))

    assert told["message"].endswith("? With --json nobody is asked: add --yes to do it")


def test_an_interrupt_is_told_as_well(cli, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("waterspout.cli.running.looked_at", interrupt)

    assert failure(cli("list", "--json"))["kind"] == "Interrupted"
    assert cli("list") == (130, "", "")


def test_behind_two_dashes_it_is_no_option(capsys):
    assert main(["check", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("error: --json is not there")


def test_what_json_does_not_have_is_text():
    assert doctest.testmod(_plain) == (0, 1)
