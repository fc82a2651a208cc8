"""Descriptions of batches, read without Spark."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts._reads import FilesRead, RangeRead, RowsRead
from waterspout.testing._tables import read_table

WORDS = Schema.parse("word string, n bigint")


def files(schema, form, *paths):
    return FilesRead(schema, form, tuple(map(str, paths)), 1)


def test_rows_keep_their_types():
    table = read_table(RowsRead(WORDS, [("a", 1), (None, None)]))

    assert table.to_pylist() == [{"word": "a", "n": 1}, {"word": None, "n": None}]
    assert table.schema.types == [pa.string(), pa.int64()]


def test_no_rows_are_a_table_without_rows():
    assert read_table(RowsRead(WORDS, [])).num_rows == 0
    assert read_table(files(WORDS, "json")).column_names == ["word", "n"]


def test_a_range_has_its_times_from_its_start():
    schema = Schema.parse("value bigint, timestamp timestamp")

    rows = read_table(RangeRead(schema, 3, 5, 100.0, 2.0)).to_pylist()

    at = dt.datetime.fromtimestamp(101.5, dt.UTC)
    assert rows == [
        {"value": 3, "timestamp": at},
        {"value": 4, "timestamp": at + dt.timedelta(seconds=0.5)},
    ]


def test_text_json_and_parquet_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "a.json").write_text(json.dumps({"n": 1, "word": "a", "more": True}) + "\n")
    pq.write_table(pa.table({"n": pa.array([1], pa.int32()), "word": ["a"]}), tmp_path / "a.pq")
    text = Schema.parse("value string")

    assert read_table(files(text, "text", tmp_path / "a.txt")).to_pydict() == {
        "value": ["one", "", "two"]
    }
    for form, name in (("json", "a.json"), ("parquet", "a.pq")):
        assert read_table(files(WORDS, form, tmp_path / name)).to_pylist() == [
            {"word": "a", "n": 1}
        ]


def test_a_format_that_only_spark_reads_says_so(tmp_path):
    with pytest.raises(TopologyError, match="cannot read csv; run it on Spark"):
        read_table(files(WORDS, "csv", tmp_path / "a.csv"))
