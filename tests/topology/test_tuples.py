"""Fields, and tuples as bolts see them."""

from __future__ import annotations

import pickle

import pytest

from waterspout._tuples import Origin
from waterspout.errors import TopologyError
from waterspout.topology import Direct, Fields, Tuple
from waterspout.waves.intake import Intake

WORDS = Fields("word", "n")


def made(*values, fields=WORDS, stream="default") -> Tuple:
    intake = Intake([])
    return Tuple(values, Origin("split", stream, 4, fields, intake, intake.done), 0)


def test_fields_are_taken_one_by_one_or_as_a_list():
    assert Fields("a", "b") == Fields(["a", "b"]) == Fields(("a", "b")) == ("a", "b")
    assert Fields() == ()


def test_a_field_is_named_once():
    with pytest.raises(TopologyError, match=r"^duplicate field 'a' in a, b, a$"):
        Fields("a", "b", "a")


@pytest.mark.parametrize("name", ["", None, 5, b"a"])
def test_a_field_is_named_by_a_string(name):
    with pytest.raises(TopologyError, match="a field's name is a non-empty string, not "):
        Fields("a", name)


def test_fields_know_where_a_name_stands():
    fields = Fields("word", "n", "time")

    assert (fields.position("word"), fields.position("time")) == (0, 2)
    assert fields.select(["time", "word"], ("the", 1, 0.5)) == [0.5, "the"]
    with pytest.raises(KeyError, match="no field 'x'; there are word, n, time"):
        fields.position("x")


def test_fields_and_direct_fields_survive_pickling():
    for fields in (Fields("a"), Fields("a", "b"), Fields(), Direct("a", "b"), Direct("a")):
        again = pickle.loads(pickle.dumps(fields))
        assert (again, type(again)) == (fields, type(fields))


def test_values_are_read_by_name_position_and_slice():
    given = made("the", 3)

    assert (given["word"], given["n"], given[0], given[-1], given[0:1]) == (
        "the",
        3,
        "the",
        3,
        ("the",),
    )
    assert (given.get("n"), given.get("x"), given.get("x", 7)) == (3, None, 7)
    assert given.select("n", "word") == [3, "the"]
    assert list(given) == ["the", 3]
    assert len(given) == 2
    assert "word" in given
    assert "the" not in given
    assert given.values == ("the", 3)


def test_a_missing_name_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match="no field 'wrod'; there are word, n"):
        made("the", 3)["wrod"]
    with pytest.raises(KeyError, match="no field 'wrod'"):
        made("the", 3).select("wrod")


def test_a_missing_position_is_an_index_error():
    with pytest.raises(IndexError):
        made("the", 3)[2]


def test_tuples_are_equal_only_to_themselves():
    one, other = made("the", 3), made("the", 3)

    assert one != other
    assert one == one
    assert len({one, other, one}) == 2


def test_a_tuple_knows_where_it_comes_from():
    given = made("the", 3, stream="words")

    assert given.source_component == "split"
    assert given.source_stream == "words"
    assert given.source_task == 4
    assert given.fields == ("word", "n")
    assert repr(given) == "Tuple(word='the', n=3 from split:words)"


def test_ticks_are_told_by_their_stream():
    assert made(5, fields=Fields("rate_secs"), stream="__tick").is_tick
    assert not made("the", 3).is_tick


def test_a_tuple_cannot_be_changed_by_accident():
    with pytest.raises(AttributeError):
        made("the", 3).word = "x"
    with pytest.raises(TypeError):
        made("the", 3)["word"] = "x"
