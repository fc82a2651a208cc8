"""Where letters and requests are kept: exactly once per committed batch, asked for once."""

from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from waterspout import Config
from waterspout._arrow import arrow_schema
from waterspout._letters import Asked
from waterspout._schema import Schema
from waterspout.errors import ForeignStoreError, NewerFormatError
from waterspout.state._head import Claim, Writer
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import (
    LetterKey,
    Seen,
    letter_of,
    read_aside,
    to_aside,
)
from waterspout.trident.isolation.replay import fit_row
from waterspout.trident.isolation.store import LETTERS_FILE, LettersFactory, LettersLocation

SCHEMA = Schema.parse("word string, n bigint")


def bad(word="x", n=1, *, node="each(f)", **more):
    return letter_of(
        ValueError(f"no {word}"),
        node=node, schema=SCHEMA, values=(word, n), position="7", now=100.0, **more,
    )  # fmt: skip


@pytest.fixture(params=["folder", "memory"])
def place(request, tmp_path):
    return LettersLocation(tmp_path / "words") if request.param == "folder" else LettersLocation()


def live(place, epoch=1):
    letters = LettersFactory(place).make_state(Config(), 0, 1)
    letters.enroll(Writer("words", epoch, "history", f"lease-{epoch}"))
    return letters


def write(letters, txid, attempt, new=(), gone=(), *, before=None, begun=()):
    """Commit as the loop does, up to the mark; return what settles it."""
    letters.claim(Claim(TransactionAttempt(txid, attempt), before, begun=begun))
    letters.begin_commit(txid, attempt)
    letters.remove(list(gone))
    letters.add(list(new))
    letters.commit(txid)
    return lambda: letters.settle(txid, attempt)


def test_a_letter_is_there_when_its_batch_is_settled(place):
    letters = live(place)

    settle = write(letters, 1, 0, [bad("a"), bad("b")])
    before = place.letters()
    settle()

    assert before == []
    assert [letter.id for letter in place.letters()] == ["1:0:0", "1:0:1"]
    assert place.letters()[1].row == {"word": "b", "n": 1}
    assert [place.open().has(id) for id in ("1:0:1", "1:0:2")] == [True, False]


def test_a_lost_attempt_leaves_no_letter_and_takes_none(place):
    letters = live(place)
    write(letters, 1, 0, [bad("old")])()
    write(letters, 2, 0, [bad("lost"), bad("lost")], ["1:0:0"], before=0)

    write(letters, 2, 1, [bad("new")], before=0, begun=(0,))()

    found = [(letter.id, letter.row["word"]) for letter in place.letters()]
    assert found == [("1:0:0", "old"), ("2:1:0", "new")]


def test_the_count_is_that_of_the_committed_letters(place):
    letters = live(place)
    write(letters, 1, 0, [bad("a"), bad("b"), bad("c")])()
    write(letters, 2, 0, [bad("lost")], before=0)
    letters.claim(Claim(TransactionAttempt(2, 1), 0, begun=(0,)))
    letters.begin_commit(2, 1)

    assert letters.count() == 3


def test_a_letter_that_is_gone_leaves_no_row_behind_for_ever(tmp_path):
    place = LettersLocation(tmp_path / "words")
    letters = live(place)
    write(letters, 1, 0, [bad("a")])()
    write(letters, 2, 0, [], ["1:0:0"], before=0)()
    for txid in (3, 4):
        write(letters, txid, 0, [], before=0)()

    with sqlite3.connect(tmp_path / "words" / LETTERS_FILE) as db:
        assert db.execute("SELECT count(*) FROM letters").fetchone() == (0,)


def test_the_batch_that_took_a_letter_can_be_taken_back(place):
    letters = live(place)
    write(letters, 1, 0, [bad("a")])()
    write(letters, 2, 0, [], ["1:0:0"], before=0)()

    # As a rollback does: batch 2 is the next again, and another attempt claims it.
    letters = live(place, epoch=2)
    letters.claim(Claim(TransactionAttempt(2, 1), 0, begun=(0,)))

    assert [letter.id for letter in place.letters()] == ["1:0:0"]


def test_letters_may_begin_when_a_topology_is_old(place):
    letters = live(place)

    write(letters, 50, 2, [bad("a")], before=1)()

    assert [letter.id for letter in place.letters()] == ["50:2:0"]


def test_only_the_user_may_read_the_files(tmp_path):
    place = LettersLocation(tmp_path / "words")
    write(live(place), 1, 0, [bad()])()
    place.requests().add("replay", place.letters())

    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "words").iterdir()}

    assert modes["letters.db"] == modes["letter-requests.db"] == 0o600


def test_anyone_can_read_the_table(tmp_path):
    write(live(LettersLocation(tmp_path)), 1, 0, [bad("a", 5)])()

    with sqlite3.connect(tmp_path / LETTERS_FILE) as db:
        found = db.execute("SELECT txid, node, row, position, error FROM letters").fetchall()

    assert found == [(1, "each(f)", '["a",5]', "7", "ValueError: no a")]


EVERY_TYPE = {
    "a string": "ä\u2028",
    "b bigint": -(2**63),
    "c int": 7,
    "d double": 0.1,
    "e boolean": True,
    "f binary": b"\x00\xff",
    "g date": date(2024, 2, 29),
    "h timestamp": datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
    "i timestamp_ntz": datetime(2024, 2, 29, 1, 2, 3, 456789),  # noqa: DTZ001
    "j decimal(20,5)": Decimal("12345.67890"),
    "k array<bigint>": [1, None, 3],
    "l map<string,bigint>": [("x", 1), ("y", None)],
    "m struct<p:string,q:double>": {"p": None, "q": float("inf")},
    "n string": None,
}


def test_a_row_of_every_type_comes_back_exactly():
    schema = Schema.parse(list(EVERY_TYPE))
    kinds = [field.type for field in arrow_schema(schema)]
    arrays = [pa.array([v], kind) for v, kind in zip(EVERY_TYPE.values(), kinds, strict=True)]
    values = [array[0].as_py() for array in arrays]
    made = letter_of(ValueError(), node="n", schema=schema, values=values, position=None, now=0.0)
    letter = read_aside(to_aside(made))

    again = fit_row(letter, letter.schema)

    assert list(again) == list(schema.names)
    assert [a.equals(b) for a, b in zip(again.values(), arrays, strict=True)] == [True] * len(
        schema
    )
    assert [a.type for a in again.values()] == [a.type for a in arrays]


def test_a_value_without_a_safe_encoding_is_kept_as_text():
    class Odd:
        def __repr__(self):
            return "<odd>"

    letter = letter_of(
        ValueError(), node="n", schema=Schema.parse("a string"), values=[Odd()], position=None,
        now=0.0,
    )  # fmt: skip

    assert (letter.content, letter.looks, letter.row) == (None, "[<odd>]", None)
    with pytest.raises(ValueError, match="could not be stored"):
        fit_row(letter, letter.schema)


def test_errors_are_bounded_and_hold_no_secrets():
    def fails():
        raise ValueError("cannot reach postgresql://me:hunter2@db/app " + "x" * 100_000)

    try:
        fails()
    except ValueError as error:
        letter = bad()
        letter = letter_of(error, node="n", schema=SCHEMA, values=("", 0), position=None, now=0.0)

    assert len(letter.error) < 1_100
    assert len(letter.trace) < 4_100
    assert "hunter2" not in letter.error + letter.trace
    assert "in fails" in letter.trace


def test_an_error_whose_text_raises_is_a_letter_all_the_same():
    class Rude(Exception):
        def __str__(self):
            raise RuntimeError

    letter = letter_of(Rude(), node="n", schema=SCHEMA, values=("", 0), position=None, now=0.0)

    assert letter.error == "Rude: <its text raises RuntimeError>"


@pytest.mark.parametrize("what", [bad(), Seen({"each(f)": 3})], ids=["letter", "seen"])
def test_what_is_beside_the_rows_comes_back(what):
    assert read_aside(to_aside(what)) == what


@pytest.mark.parametrize("text", ["", "1", "1:2", "1:2:3:4", "1:-2:3", "a:b:c", "1:2:³"])
def test_what_is_no_letters_id_is_refused(text):
    with pytest.raises(ValueError, match="is not the id of a letter"):
        LetterKey.parse(text)


def stored(place, count=1):
    write(live(place), 1, 0, [bad(f"w{i}") for i in range(count)])()
    return place.letters()


def test_a_letter_is_asked_for_once(place):
    (letter,) = stored(place)
    requests = place.requests()

    first = requests.add("replay", [replace(letter, content='["y",2]')])
    second = requests.add("drop", [letter])

    assert (first, second) == (1, 0)
    (request,) = requests.after(0, 10)
    assert (request.action, request.letter.values) == ("replay", ("y", 2))
    assert read_aside(to_aside(request)) == request


def test_a_request_that_was_refused_can_be_made_again(place):
    (letter,) = stored(place)
    requests = place.requests()
    requests.add("replay", [letter])
    (request,) = requests.after(0, 10)
    requests.refuse(request.id, "no such operation")

    assert place.letters()[0].asked == Asked("replay", "refused", "no such operation")
    assert requests.after(0, 10) == []
    assert requests.add("replay", [letter]) == 1
    assert requests.after(request.id, 10)[0].letter.content == letter.content


def test_what_was_done_stays_taken_until_it_is_forgotten(place):
    (letter,) = stored(place)
    requests = place.requests()
    requests.add("replay", [letter])
    (request,) = requests.after(0, 10)

    requests.done([request.id])
    requests.done([request.id])

    assert requests.after(0, 10) == []
    assert requests.add("replay", [letter]) == 0
    requests.forget_done()
    assert requests.add("replay", [letter]) == 1
    assert requests.after(0, 10)[0].id > request.id


def test_all_requests_are_made_or_none(place):
    (letter,) = stored(place)
    requests = place.requests()

    with pytest.raises(Exception, match=r"unsupported|bind"):
        requests.add("replay", [letter, replace(letter, content=object())])

    assert requests.asked() == {}


def test_reading_creates_nothing(tmp_path):
    place = LettersLocation(tmp_path)

    assert place.requests().after(0, 1) == []
    assert place.letters() == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "letter-requests.db") as db:
        db.execute("CREATE TABLE other (x)")
    with pytest.raises(ForeignStoreError):
        LettersLocation(tmp_path).requests().asked()


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    place = LettersLocation(tmp_path)
    place.requests().add("drop", stored(place))
    with sqlite3.connect(tmp_path / "letter-requests.db") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(NewerFormatError):
        place.requests().asked()
