"""`waterspout dead-letters` of a Trident topology: rows, as a person sees and mends them."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.cli.conftest import WORD_COUNT
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout._serde import decode_value, encode_value
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.state._head import Claim, Writer
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.store import LettersLocation

LETTER = DeadLetter(
    failed_in="each(parse)",
    fields="line string, n bigint",
    content=encode_value(["x,1\x1b[2J", 7]),
    position="/data/a.csv:3",
    error="ValueError: no number",
    trace="Traceback (most recent call last):\n  File x\nValueError: no number",
    failures=1,
    first_failed=1_700_000_000.25,
    last_failed=1_700_000_060.0,
)
TYPES = (
    "s string, i int, d double, t timestamp, u timestamp_ntz, y date, c decimal(10,2), b binary, "
)
TYPES += "a array<bigint>, m map<string,double>, r struct<p:date>, o boolean"


@pytest.fixture(autouse=True)
def local_time(monkeypatch):
    """Two hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def put_aside(place):
    """Put letters aside, as batch 7 of topology `words` would; return where they are."""
    letters = LettersLocation(place / "home" / "words")

    def put(*rows: DeadLetter) -> LettersLocation:
        live = letters.open()
        live.enroll(Writer("words", 1, "history", "lease"))
        live.claim(Claim(TransactionAttempt(7, 1), 0))
        live.begin_commit(7, 1)
        live.add(rows)
        live.commit(7)
        live.settle(7, 1)
        live.close()
        return letters

    return put


def requests_of(letters):
    requests = letters.requests()
    try:
        return requests.after(0, 100)
    finally:
        requests.close()


def test_list_shows_a_line_for_each_row(cli, put_aside):
    put_aside(LETTER, replace(LETTER, position=None, failures=2))

    outcome = cli("dead-letters", "list", "words")

    assert outcome == (
        0,
        "id     failed in    position       batch  error                  failures  last failed\n"
        "7:1:0  each(parse)  /data/a.csv:3      7  ValueError: no number         1  "
        "2023-11-15T00:14:20+02:00\n"
        "7:1:1  each(parse)                     7  ValueError: no number         2  "
        "2023-11-15T00:14:20+02:00\n",
        "",
    )


def test_list_says_what_was_asked_for_and_what_was_refused(cli, put_aside):
    letters = put_aside(LETTER, LETTER, LETTER)
    cli("dead-letters", "replay", "words", "7:1:0", "7:1:2")
    cli("dead-letters", "drop", "words", "7:1:1", "--yes")
    letters.requests().refuse(2, "no such operation")

    lines = cli("dead-letters", "list", "words").out.splitlines()[1:]

    ends = [line.split("+02:00")[1].strip() for line in lines]
    assert ends == ["to be replayed", "to be dropped", "refused: no such operation"]


def test_list_gives_everything_as_json(cli, put_aside):
    put_aside(LETTER)

    outcome = cli("dead-letters", "list", "words", "--json")

    (letter,) = json.loads(outcome.out)["letters"]
    assert letter == {
        "id": "7:1:0",
        "failed_in": "each(parse)",
        "position": "/data/a.csv:3",
        "txid": 7,
        "attempt": 1,
        "row": {"line": "'x,1\\x1b[2J'", "n": "7"},
        "error": "ValueError: no number",
        "trace": LETTER.trace,
        "failures": 1,
        "first_failed": "2023-11-15T00:13:20+02:00",
        "last_failed": "2023-11-15T00:14:20+02:00",
        "can_be_replayed": True,
        "request": None,
    }


def test_list_says_how_many_it_leaves_out(cli, put_aside):
    put_aside(LETTER, LETTER, LETTER)

    lines = cli("dead-letters", "list", "words", "--limit", "2").out.splitlines()

    assert len(lines) == 4
    assert lines[3] == "the oldest 2 of 3; --limit shows more"


def test_show_prints_the_row_by_field(cli, put_aside):
    put_aside(LETTER)

    outcome = cli("dead-letters", "show", "words", "7:1:0")

    assert outcome.out == (
        "letter        7:1:0 of topology words\n"
        "failed in     each(parse)\n"
        "position      /data/a.csv:3\n"
        "batch         7, attempt 1\n"
        "row           line string = 'x,1\\x1b[2J'\n"
        "              n bigint = 7\n"
        "failures      1\n"
        "first failed  2023-11-15T00:13:20+02:00\n"
        "last failed   2023-11-15T00:14:20+02:00\n"
        "replay        possible\n"
        "error         ValueError: no number\n"
        "              Traceback (most recent call last):\n"
        "                File x\n"
        "              ValueError: no number\n"
    )


def test_replay_asks_for_the_rows_as_they_were(cli, put_aside):
    letters = put_aside(LETTER, LETTER)

    outcome = cli("dead-letters", "replay", "words", "7:1:1")

    assert outcome == (
        0,
        "words: 1 dead letter is to be replayed; no driver runs now: the next run will do it\n",
        "",
    )
    (request,) = requests_of(letters)
    letter = request.letter
    assert (letter.id, letter.content, letter.failed_in) == ("7:1:1", LETTER.content, "each(parse)")


def test_replay_sets_values(cli, put_aside):
    letters = put_aside(LETTER)

    outcome = cli("dead-letters", "replay", "words", "--all", "--set", "n=8", "--set", "line=x, 1")

    assert outcome.code == 0
    assert decode_value(requests_of(letters)[0].letter.content) == ["x, 1", 8]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ('s="5"', "5"),
        ("s=5", "5"),
        ("s=null", None),
        ("i=-3", -3),
        ("d=2", 2.0),
        ("d=0.1", 0.1),
        ('t="2024-02-29T01:02:03Z"', "2024-02-29 01:02:03+00:00"),
        ('u="2024-02-29T01:02:03"', "2024-02-29 01:02:03"),
        ('y="2024-02-29"', "2024-02-29"),
        ("c=12.34", "12.34"),
        ('b="aGk="', b"hi"),
        ("a=[1,null]", [1, None]),
        ('m={"x":1}', [("x", 1.0)]),
        ('r={"p":"2024-02-29"}', {"p": "2024-02-29"}),
        ("o=true", True),
    ],
)
def test_a_value_of_every_type_can_be_set(cli, put_aside, given, stored):
    schema = Schema.parse(TYPES)
    row = encode_value([None] * len(schema))
    letters = put_aside(replace(LETTER, fields=str(schema), content=row))

    outcome = cli("dead-letters", "replay", "words", "--all", "--set", given)

    assert outcome.code == 0, outcome.err
    values = dict(
        zip(schema.names, decode_value(requests_of(letters)[0].letter.content), strict=True)
    )
    found = values[given[0]]
    if isinstance(found, dict):
        found = {name: str(value) for name, value in found.items()}
    assert (found if type(found) is type(stored) else str(found)) == stored


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("n=x", "n=x does not fit its type, bigint: this is not JSON"),
        ("n=1.5", "n=1.5 does not fit its type, bigint: this is not a whole number"),
        ('n="1"', 'n="1" does not fit its type, bigint: this is not a whole number'),
        ("n=9223372036854775808", "does not fit its type, bigint"),
        ("m=1", "letter 7:1:0 has no field 'm'; it has line, n"),
        ("n", "--set n is not FIELD=JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(cli, put_aside, setting, named):
    letters = put_aside(LETTER)

    outcome = cli("dead-letters", "replay", "words", "7:1:0", "--set", setting)

    assert (outcome.code, outcome.out) == (2, "")
    assert named in outcome.err
    assert requests_of(letters) == []


def test_a_letter_on_its_way_is_not_asked_for_again(cli, put_aside):
    letters = put_aside(LETTER, LETTER)
    cli("dead-letters", "replay", "words", "7:1:0")

    again = cli("dead-letters", "drop", "words", "7:1:0", "7:1:1", "--yes")
    everything = cli("dead-letters", "drop", "words", "--all", "--yes")

    assert (again.code, again.err) == (2, "error: letter 7:1:0 of 'words' was asked for already\n")
    assert everything.out.startswith("words: 1 dead letter is to be dropped; no driver runs now")
    assert [(r.action, r.letter.id) for r in requests_of(letters)] == [
        ("replay", "7:1:0"), ("drop", "7:1:1"),
    ]  # fmt: skip


def test_a_row_that_was_kept_as_text_is_replayed_only_if_all_is_set(cli, put_aside):
    letters = put_aside(replace(LETTER, content=None, looks="['x', <odd>]"))

    bare = cli("dead-letters", "replay", "words", "7:1:0")
    half = cli("dead-letters", "replay", "words", "7:1:0", "--set", "n=1")
    whole = cli("dead-letters", "replay", "words", "7:1:0", "--set", "n=1", "--set", "line=y")

    assert "letter 7:1:0 cannot be replayed: its values could not be stored" in bare.err
    assert "set every field (line as well)" in half.err
    assert whole.code == 0
    assert decode_value(requests_of(letters)[0].letter.content) == ["y", 1]
    assert "<odd>" in cli("dead-letters", "show", "words", "7:1:0").out


def test_drop_asks_first(cli, put_aside, monkeypatch):
    import io

    letters = put_aside(LETTER)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))

    outcome = cli("dead-letters", "drop", "words", "7:1:0")

    assert outcome.code != 0
    assert requests_of(letters) == []


def test_a_running_driver_is_said_to_do_it(cli, put_aside, place):
    put_aside(LETTER)
    store = EmbeddedStore(place / "home", "words", lease_s=60)
    store.acquire({})
    try:
        outcome = cli("dead-letters", "drop", "words", "--all", "--yes")
    finally:
        store.release()

    assert outcome.out == (
        "words: 1 dead letter is to be dropped; the driver that runs now will do it, within a "
        "second\n"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", "words", "7:1:9"], "'words' has no dead letter 7:1:9; see: waterspout"),
        (["show", "words", "x"], "'words' has no dead letter x"),
        (["replay", "words", "7:1:0", "8:0:0", "9:0:0"], "no dead letters 8:0:0, 9:0:0"),
        (["replay", "words"], "give the ids of letters, or --all"),
        (["drop", "words", "7:1:0", "--all"], "give the ids of letters, or --all"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(cli, put_aside, arguments, named):
    letters = put_aside(LETTER)

    outcome = cli("dead-letters", *arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert named in outcome.err
    assert requests_of(letters) == []


def test_a_trident_topology_that_never_put_a_row_aside_has_no_letters(cli, write):
    assert cli("dead-letters", "list", write(WORD_COUNT)) == (0, "words: no dead letters\n", "")
    assert cli("dead-letters", "replay", "words.py", "--all") == (
        0, "words: no dead letters\n", "",
    )  # fmt: skip
