"""The letters of a topology for a page: what is told of each, and texts that can be repaired."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from tests.cli.test_row_letters import LETTER as ROW
from tests.cli.test_row_letters import TYPES
from waterspout import Config
from waterspout._letters import Asked, DeadLetter
from waterspout._serde import decode_value, encode_value
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.kept_letters import full_facts, kept_letters, listing, status_of
from waterspout.errors import ConfigError
from waterspout.trident.isolation.repair import as_repaired, repaired

MESSAGE = DeadLetter(
    spout="sentences", stream="default", content='["to be"]', message_id="7", failed_in="split",
    error="ValueError: bad word", failures=4, first_failed=100.25, last_failed=160.0,
)  # fmt: skip
VALUES = {
    "s": "to be", "i": -3, "d": 0.1, "t": datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    "u": datetime.fromisoformat("2024-02-29T01:02:03"), "y": date(2024, 2, 29),
    "c": Decimal("12.34"), "b": b"hi", "a": [1, None],
    "m": {"x": 1.0}, "r": {"p": date(2024, 2, 29)}, "o": True,
}  # fmt: skip


def test_the_texts_of_a_row_give_the_same_row_again() -> None:
    letter = replace(ROW, fields=TYPES, content=encode_value(list(VALUES.values())))

    texts = as_repaired(letter)

    assert texts == {
        "s": "to be", "i": "-3", "d": "0.1", "t": '"2024-02-29T01:02:03+00:00"',
        "u": '"2024-02-29T01:02:03"', "y": '"2024-02-29"', "c": '"12.34"', "b": '"aGk="',
        "a": "[1, null]", "m": '{"x": 1.0}', "r": '{"p": "2024-02-29"}', "o": "true",
    }  # fmt: skip
    again = decode_value(repaired(letter, texts).content)
    assert dict(again[9]) == VALUES["m"]
    assert again[:9] + again[10:] == [v for name, v in VALUES.items() if name != "m"]


@pytest.mark.parametrize("text", ["5", "null", "true", '"quoted"', "[1]", "a b", "", "é\n"])
def test_a_text_that_json_would_read_otherwise_is_quoted(text: str) -> None:
    letter = replace(ROW, fields="s string", content=encode_value([text]))

    texts = as_repaired(letter)

    assert repaired(letter, texts).row == {"s": text}
    assert (texts["s"] == text) == (text not in ("null", '"quoted"'))


def test_a_row_for_a_page_has_its_fields_and_what_was_asked_for() -> None:
    letter = replace(ROW, id="7:1:0", txid=7, attempt=1, asked=Asked("replay"))

    found = full_facts(letter)

    assert (found["id"], found["status"], found["txid"]) == ("7:1:0", "to be replayed", 7)
    assert found["fields"] == {"line": "string", "n": "bigint"}
    assert found["texts"] == {"line": "x,1\x1b[2J", "n": "7"}
    assert found["seconds"] == [1_700_000_000.25, 1_700_000_060.0]
    assert json.loads(json.dumps(found)) == found
    assert full_facts(replace(letter, content=None, looks="<odd>"))["texts"] is None


def test_a_message_has_no_fields_and_its_id_is_a_text() -> None:
    found = full_facts(replace(MESSAGE, id="3"))

    assert (found["id"], found["values"], found["status"]) == ("3", "['to be']", "")
    assert "texts" not in found


def test_what_was_done_is_no_status_and_what_was_refused_is_one() -> None:
    assert status_of(replace(MESSAGE, asked=Asked("drop", "done"))) == ""
    assert status_of(replace(MESSAGE, asked=Asked("drop", "refused", "gone"))) == "refused: gone"


def test_of_messages_those_are_asked_for_that_can_be_replayed(tmp_path) -> None:
    conf = Config(home=str(tmp_path))
    table = DeadLetters(tmp_path / "words")
    table.add([MESSAGE, replace(MESSAGE, content=None, looks="[<a socket>]")])

    with kept_letters("words", conf) as found:
        outcome = found.replay(found.chosen(None), {})
        with pytest.raises(ConfigError, match="--set is for the rows of a Trident topology"):
            found.replay(found.chosen(["1"]), {"s": "x"})

    assert (outcome.done, outcome.text) == (
        1, "1 dead letter is to be replayed; no driver runs now: the next run will do it",
    )  # fmt: skip
    assert outcome.problem.startswith("letter 2 cannot be replayed: its values could not be stored")
    assert [letter.id for letter in table.wanted()] == ["1"]
    table.close()


def test_letters_are_listed_newest_first_and_by_where_they_failed() -> None:
    letters = [
        replace(MESSAGE, id="1"),
        replace(MESSAGE, id="2", failed_in="", error="timed out"),
        replace(MESSAGE, id="3", failed_in="count"),
    ]

    def ids(**chosen) -> list[str]:
        return [each["id"] for each in listing(letters, **chosen)["letters"]]

    everything = listing(letters)
    assert (everything["total"], everything["matching"]) == (3, 3)
    assert everything["components"] == ["count", "sentences", "split"]
    assert ids() == ["3", "2", "1"]
    assert ids(limit=2) == ["3", "2"]
    assert ids(component="split") == ["1"]
    assert ids(component="sentences", limit=1) == ["3"]
    assert listing(letters, "nobody") == {
        "total": 3, "matching": 0, "components": ["count", "sentences", "split"], "letters": [],
    }  # fmt: skip
