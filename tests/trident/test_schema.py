"""Fields and their types, read from Spark's DDL without Spark."""

from __future__ import annotations

import pytest

from waterspout._schema import Schema, check_topology_id, field_names
from waterspout.errors import TopologyError


def test_ddl_is_read_as_names_and_types():
    schema = Schema.parse("word string, n bigint")

    assert schema.fields == (("word", "string"), ("n", "bigint"))
    assert schema.names == ("word", "n")
    assert schema.types == ("string", "bigint")


def test_a_list_of_pieces_is_the_same_as_one_text():
    assert Schema.parse(["word string", "n bigint"]) == Schema.parse("word string, n bigint")


def test_commas_inside_a_type_do_not_part_fields():
    text = "m map<string,array<bigint>>, s struct<a:int,b:decimal(10,2)>, n decimal(5,1)"

    assert Schema.parse(text).fields == (
        ("m", "map<string,array<bigint>>"),
        ("s", "struct<a:int,b:decimal(10,2)>"),
        ("n", "decimal(5,1)"),
    )


def test_a_bare_name_has_no_type_yet():
    assert Schema.parse("word, n bigint").types == (None, "bigint")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("LONG", "bigint"),
        ("Integer", "int"),
        ("text", "string"),
        ("str", "string"),
        ("bool", "boolean"),
        ("real", "float"),
        ("short", "smallint"),
        ("byte", "tinyint"),
        ("bytes", "binary"),
        ("decimal", "decimal(10,0)"),
        ("numeric", "decimal(10,0)"),
        ("Timestamp_NTZ", "timestamp_ntz"),
        ("  double ", "double"),
        ("DECIMAL( 10, 2 )", "decimal(10,2)"),
        ("Array< BIGINT >", "array<bigint>"),
        ("struct<`a b`: int>", "struct<`a b`: int>"),
    ],
)
def test_types_have_one_canonical_name(written, meant):
    assert Schema.parse(f"x {written}").types == (meant,)


def test_names_inside_a_struct_keep_their_case():
    assert Schema.parse("s struct<Inner: string>").types == ("struct<Inner:string>",)


@pytest.mark.parametrize("text", ["`word` string", "word: string", "word   string"])
def test_a_field_may_be_written_as_spark_prints_it(text):
    assert Schema.parse(text).fields == (("word", "string"),)


def test_an_empty_text_has_no_fields():
    assert Schema.parse("") == Schema.parse(()) == Schema()


def test_an_unknown_type_is_refused_by_field_and_type():
    with pytest.raises(TopologyError, match=r"field 'n' has unknown type 'bigfoot'.*DDL"):
        Schema.parse("word string, n bigfoot")


@pytest.mark.parametrize("text", ["1st string", "a string,, b string", "word string,"])
def test_what_is_no_field_is_refused(text):
    with pytest.raises(TopologyError, match=r'cannot read field .* write it as "name type"'):
        Schema.parse(text)


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(TopologyError, match="duplicate field 'a' in a, b, a"):
        Schema.parse("a int, b int, a string")


def test_a_missing_field_is_named_with_those_there_are():
    schema = Schema.parse("word string, n bigint")

    with pytest.raises(TopologyError, match="here asks for field 'x', but the stream has word, n"):
        schema.select(["word", "x"], where="here")


def test_ddl_quotes_every_name():
    assert Schema.parse("select string, n long").ddl() == "`select` string, `n` bigint"


@pytest.mark.parametrize("names", ["a,", "a b", "", "1st", "a-b", ["a", 5]])
def test_a_field_name_is_letters_digits_and_underscores(names):
    with pytest.raises(TopologyError, match=r"is not a field name.*several fields are a list"):
        field_names(names)


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "a/b", "é", "x" * 129, "a\n"])
def test_an_id_that_is_no_folder_name_is_refused(bad):
    with pytest.raises(TopologyError, match="cannot be an id; use 1 to 128 letters"):
        check_topology_id(bad)


@pytest.mark.parametrize("good", ["a", "word-count.v2_b", "x" * 128, "..a"])
def test_letters_digits_dots_and_dashes_make_an_id(good):
    assert check_topology_id(good) == good


def test_names_that_differ_only_in_case_are_one_name_to_spark():
    with pytest.raises(TopologyError, match="duplicate field 'W' in w, W"):
        Schema.parse("w string").append(Schema.parse("W string"), where="each")
