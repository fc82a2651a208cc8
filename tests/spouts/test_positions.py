"""Where a row stands in its source, as the in-process engine reads it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waterspout._schema import Schema
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._reads import POSITION, FilesRead, RangeRead, RowsRead
from waterspout.testing import FixedBatchSpout, MemoryLog
from waterspout.testing._tables import read_table

WORDS = Schema.parse("word string")


def places(read):
    table = read_table(read, with_position=True)
    assert table.column_names == [*read.schema.names, POSITION]
    return table.column(POSITION).to_pylist()


def test_rows_are_counted_from_the_start_of_the_source():
    assert places(RowsRead(WORDS, [("a",), ("b",)])) == ["0", "1"]
    assert places(RowsRead(WORDS, [("a",), ("b",)], start=5)) == ["5", "6"]
    assert places(RowsRead(WORDS, [("a",)], positions=["page 3"])) == ["page 3"]
    assert places(RowsRead(WORDS, [])) == []


def test_a_fixed_spout_counts_on_over_its_batches_and_its_cycles():
    spout = FixedBatchSpout("word", 2, ["a", "b", "c"], cycle=True)

    assert places(spout.read({"start": 2, "end": 4})) == ["2", "3"]


def test_a_log_tells_partition_and_offset():
    log = MemoryLog("word string", [[("a",), ("b",)], [("x",)]])
    planner = log.open(SpoutContext(None, "log", None, {}, 1))

    assert places(log.read(planner.plan(1, None))) == ["0:0", "0:1", "1:0"]


def test_a_range_is_its_numbers():
    read = RangeRead(Schema.parse("value bigint, timestamp timestamp"), 3, 5, 100.0, 2.0)

    assert places(read) == ["3", "4"]


@pytest.mark.parametrize("form", ["text", "json", "parquet"])
def test_files_tell_the_path_and_parquet_the_row(tmp_path, form):
    path = tmp_path / "words"
    if form == "parquet":
        pq.write_table(pa.table({"word": ["a", "b"]}), path)
    else:
        path.write_text('{"word": "a"}\n{"word": "b"}\n')

    found = places(FilesRead(WORDS, form, [str(path)], 8))

    expected = [f"{path}#0", f"{path}#1"] if form == "parquet" else [str(path)] * 2
    assert found == expected
    assert places(FilesRead(WORDS, form, [], 0)) == []
