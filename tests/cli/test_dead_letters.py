"""`waterspout dead-letters`: list, show, replay and drop, exactly as a person sees them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.cli.conftest import CORE_WORD_COUNT, listing
from waterspout._letters import DeadLetter
from waterspout.cli.loading import load_topology
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.testing import LocalWaves

LETTER = DeadLetter(
    spout="sentences",
    stream="default",
    content='["to be"]',
    message_id="7",
    failed_in="split",
    error="ValueError: bad word",
    failures=4,
    first_failed=1_700_000_000.25,
    last_failed=1_700_000_060.0,
)
UNSTORABLE = {"content": None, "looks": "[<a socket>]"}
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/red]\rnot seen \u202eltr\x85."
ESCAPED = r"\x1b[2J\x1b]0;owned\x07[red]x[/red]\rnot seen \u202eltr\x85."


@pytest.fixture(autouse=True)
def local_time(monkeypatch):
    """Two hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def letters(place):
    """The letters of topology `words`, as its driver has them."""
    table = DeadLetters(place / "home" / "words")
    yield table
    table.close()


def test_list_shows_a_line_for_each_letter(cli, letters):
    letters.add(
        [LETTER, replace(LETTER, message_id="'b'", error="timed out", failed_in="", failures=12)]
    )
    letters.want(["2"])

    outcome = cli("dead-letters", "list", "words")

    assert outcome == (
        0,
        "id  spout      message  failed in  error                 failures  "
        "last failed\n"
        " 1  sentences  7        split      ValueError: bad word         4  "
        "2023-11-15T00:14:20+02:00\n"
        " 2  sentences  'b'                 timed out                   12  "
        "2023-11-15T00:14:20+02:00  to be replayed\n",
        "",
    )


def test_list_says_how_many_it_leaves_out(cli, letters):
    letters.add([LETTER] * 3)

    outcome = cli("dead-letters", "list", "words", "--limit", "2")

    assert [line.split()[0] for line in outcome.out.splitlines()[1:3]] == ["1", "2"]
    assert outcome.out.splitlines()[3] == "the oldest 2 of 3; --limit shows more"


def test_list_gives_everything_as_json(cli, letters):
    letters.add([replace(LETTER, error=HOSTILE)])

    outcome = cli("dead-letters", "list", "words", "--json")

    assert outcome.code == 0
    assert outcome.out.isascii()
    told = json.loads(outcome.out)
    assert (told["topology"], told["total"]) == ("words", 1)
    (letter,) = told["letters"]
    assert letter == {
        "id": 1,
        "spout": "sentences",
        "stream": "default",
        "task": None,
        "message_id": "7",
        "values": "['to be']",
        "failed_in": "split",
        "error": HOSTILE,
        "failures": 4,
        "first_failed": "2023-11-15T00:13:20+02:00",
        "last_failed": "2023-11-15T00:14:20+02:00",
        "can_be_replayed": True,
        "wanted": False,
    }


def test_a_long_error_of_many_lines_is_one_short_cell(cli, letters):
    letters.add([replace(LETTER, error="ValueError: " + "x" * 100 + "\nmore\nlines")])

    outcome = cli("dead-letters", "list", "words")

    assert outcome.out.splitlines()[1].split()[4:6] == ["ValueError:", "x" * 45 + "..."]
    assert outcome.out.count("\n") == 2


def test_a_topology_without_letters_has_none_and_nothing_is_written(cli, place):
    (place / "home" / "words").mkdir(parents=True)
    before = listing(place)

    assert cli("dead-letters", "list", "words") == (0, "words: no dead letters\n", "")
    none = '{"topology": "words", "total": 0, "letters": []}\n'
    assert cli("dead-letters", "list", "words", "--json") == (0, none, "")
    assert cli("dead-letters", "replay", "words", "--all").out == "words: no dead letters\n"
    assert cli("dead-letters", "drop", "words", "--all").out == "words: no dead letters\n"
    assert listing(place) == before


def test_another_home_can_be_named(cli, place):
    table = DeadLetters(place / "elsewhere" / "words")
    table.add([LETTER])
    table.close()

    assert cli("dead-letters", "list", "words", "--home", "elsewhere").out.count("\n") == 2
    assert cli("dead-letters", "list", "words", "-c", "home=elsewhere").out.count("\n") == 2


def test_a_topology_may_be_given_by_its_file(cli, write, letters):
    letters.add([LETTER])

    outcome = cli("dead-letters", "list", write(CORE_WORD_COUNT, "job.py"))

    assert outcome.out.splitlines()[1].startswith(" 1  sentences")


def test_on_a_terminal_the_table_fits_and_hostile_text_stays_text(letters, place):
    letters.add([replace(LETTER, error=HOSTILE)])
    main, other = pty.openpty()
    program = [sys.executable, "-m", "waterspout.cli", "dead-letters", "list", "words"]
    environment = {**os.environ, "COLUMNS": "70", "TERM": "xterm"}

    subprocess.run(program, stdout=other, cwd=place, env=environment, check=True)
    os.close(other)
    out = os.read(main, 100_000).decode()
    os.close(main)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    assert "owned" in plain
    assert max(map(len, plain.splitlines())) <= 70


def test_show_tells_everything(cli, letters):
    letters.add([replace(LETTER, error="ValueError: bad word\n\n  in line 3")])

    outcome = cli("dead-letters", "show", "words", "1")

    assert outcome == (
        0,
        """\
letter        1 of topology words
spout         sentences, stream default
message id    7
values        ['to be']
failed in     split
failures      4
first failed  2023-11-15T00:13:20+02:00
last failed   2023-11-15T00:14:20+02:00
replay        possible
error         ValueError: bad word

                in line 3
""",
        "",
    )


def test_show_says_what_cannot_be_replayed(cli, letters):
    letters.add([replace(LETTER, **UNSTORABLE, failed_in="", error="timed out")])

    lines = dict(
        line.split("  ", 1) for line in cli("dead-letters", "show", "words", "1").out.splitlines()
    )

    assert lines["values"].strip() == "[<a socket>]"
    assert lines["failed in"].strip() == "(no bolt)"
    assert lines["replay"].strip() == (
        "not possible: its values could not be stored, only what they look like"
    )


def test_show_names_the_task_that_a_direct_stream_was_for(cli, letters):
    letters.add([replace(LETTER, stream="to", task=3)])

    outcome = cli("dead-letters", "show", "words", "1")

    assert outcome.out.splitlines()[1] == "spout         sentences, stream to, for task 3"


@pytest.mark.parametrize("command", [("list",), ("show", 1)])
def test_what_messages_and_errors_hold_cannot_touch_the_terminal(cli, letters, command):
    letters.add([replace(LETTER, message_id=HOSTILE, error=HOSTILE)])

    outcome = cli("dead-letters", command[0], "words", *map(str, command[1:]))

    assert outcome.code == 0, outcome.err
    assert outcome.out.count(ESCAPED if command[0] == "show" else ESCAPED[:57]) >= 2
    assert all(c.isprintable() or c == "\n" for c in outcome.out)


def test_replay_leaves_the_letters_to_the_next_run_if_none_runs(cli, letters):
    letters.add([LETTER] * 3)

    outcome = cli("dead-letters", "replay", "words", "1", "3")

    assert outcome == (
        0,
        "words: 2 dead letters are to be replayed; no driver runs now: the next run will do it\n",
        "",
    )
    assert [letter.id for letter in letters.wanted()] == ["1", "3"]


def test_replay_says_that_the_running_driver_will_do_it(cli, letters, place):
    letters.add([LETTER])
    store = EmbeddedStore(place / "home", "words")
    store.acquire({})
    try:
        outcome = cli("dead-letters", "replay", "words", "--all")
    finally:
        store.release()

    assert outcome.out == (
        "words: 1 dead letter is to be replayed; the driver that runs now will do it, within a "
        "second\n"
    )


def test_replay_marks_letters_though_the_driver_cannot_be_looked_for(cli, letters, place):
    letters.add([LETTER])
    (place / "home" / "words" / "coordination.db").write_text("not a database, but long enough")

    outcome = cli("dead-letters", "replay", "words", "1")

    assert outcome.code == 0
    assert "to be replayed; whether a driver runs now cannot be seen: " in outcome.out
    assert [letter.id for letter in letters.wanted()] == ["1"]


def test_replay_names_the_letters_that_cannot_be(cli, letters):
    letters.add([replace(LETTER, **UNSTORABLE), LETTER])

    outcome = cli("dead-letters", "replay", "words", "--all")

    assert outcome.code == 1
    assert outcome.err == (
        "letter 1 cannot be replayed: its values could not be stored, only what they look like\n"
    )
    assert outcome.out.startswith("words: 1 dead letter is to be replayed;")
    assert [letter.id for letter in letters.wanted()] == ["2"]


def test_a_replayed_letter_goes_through_and_is_gone(cli, write, letters, place):
    letters.add([LETTER, replace(LETTER, content="[null]")])
    file = write(CORE_WORD_COUNT)
    cli("dead-letters", "replay", file, "--all")
    topology = load_topology(file)

    run = LocalWaves(topology, letters=letters)
    run.finish()
    run.close()

    assert run.emitted("split") == [("to",), ("be",)]
    assert [(letter.id, letter.failures, letter.asked) for letter in run.letters] == [
        ("2", 8, None)
    ]


def test_a_driver_takes_what_is_asked_for_while_it_runs(cli, write, letters, place):
    file = write(CORE_WORD_COUNT)
    letters.add([LETTER])
    run = LocalWaves(
        load_topology(file), store=EmbeddedStore(place / "home", "words"), letters=letters
    )
    run.finish()

    outcome = cli("dead-letters", "replay", "words", "--all")
    run.advance(1.0)
    run.finish()
    run.close()

    assert "the driver that runs now will do it" in outcome.out
    assert run.emitted("split") == [("to",), ("be",)]
    assert cli("dead-letters", "list", "words").out == "words: no dead letters\n"


def test_drop_removes_letters_for_good(cli, letters):
    letters.add([LETTER] * 3)

    outcome = cli("dead-letters", "drop", "words", "2", "--yes")

    assert outcome == (0, "words: 1 dead letter dropped, 2 left\n", "")
    assert [letter.id for letter in letters.all()] == ["1", "3"]


def test_drop_asks_first(cli, letters, monkeypatch):
    letters.add([LETTER] * 3)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))

    outcome = cli("dead-letters", "drop", "words", "--all")

    assert outcome.code == 130
    assert outcome.out == "Drop 3 dead letters of words for good? [y/N]: "
    assert len(letters) == 3


def test_a_full_table_can_be_emptied_at_once(cli, letters):
    letters.add([LETTER] * 40_000)  # more than SQLite takes as parameters of one statement

    outcome = cli("dead-letters", "drop", "words", "--all", "--yes")

    assert outcome.out == "words: 40,000 dead letters dropped, 0 left\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["list", "word"], "there is no topology 'word' in the waterspout home"),
        (["list", "word"], "it has words. Another home is named by --home or WATERSPOUT_HOME"),
        (["list", "words", "--home", "nowhere"], "nowhere; nothing has run there"),
        (["list", "../words"], "'../words' cannot be an id"),
        (["list", "words", "--limit", "0"], "Invalid value for '--limit'"),
        (["list", "gone.py"], "gone.py is not there"),
        (["show", "words", "7"], "'words' has no dead letter 7; see: waterspout dead-letters list"),
        (["show", "words", "99999999999999999999"], "'words' has no dead letter 999999"),
        (["show", "words", "x"], "'words' has no dead letter x"),
        (["replay", "words", "1", "7", "8"], "'words' has no dead letters 7, 8"),
        (["replay", "words"], "give the ids of letters, or --all"),
        (["replay", "words", "1", "--all"], "give the ids of letters, or --all"),
        (["drop", "words", "--yes"], "give the ids of letters, or --all"),
        (["drop", "words", "1", "7", "--yes"], "'words' has no dead letter 7"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(cli, letters, arguments, named):
    letters.add([LETTER])

    outcome = cli("dead-letters", *arguments)

    assert outcome.code == 2
    assert outcome.out == ""
    assert named in outcome.err
    assert [(letter.id, letter.asked) for letter in letters.all()] == [("1", None)]


def test_values_are_set_only_in_rows_of_trident(cli, letters):
    letters.add([LETTER])

    outcome = cli("dead-letters", "replay", "words", "1", "--set", "n=1")

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "error: --set is for the rows of a Trident topology\n"
    assert letters.all()[0].asked is None


def test_a_file_that_is_something_else_is_named(cli, place):
    (place / "home" / "words").mkdir(parents=True)
    (place / "home" / "words" / "dead-letters.db").write_text("not a database, but long enough")

    outcome = cli("dead-letters", "list", "words")

    assert outcome.code == 2
    assert outcome.err.startswith(f"error: the dead letters of waterspout in {place}")
