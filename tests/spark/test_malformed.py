"""Malformed records of files on Spark: refused, put aside, or null by name; as without Spark."""

from __future__ import annotations

import sqlite3

import pytest

from tests.trident.support import capture, finish
from waterspout import Config, submit
from waterspout.errors import MalformedRowError, RunFailedError
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import run_in_process
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

RECORDS = b"""\
{"a":1,"b":"x"}
not json
{"a":1.7,"b":"a fraction"}

{"a":99999999999999999999,"b":"too large"}
{"a":"3","b":"a text"}
{"a":true,"b":"a boolean"}
{"b":4}
{"a":7,"b":"cut
{"c":1}
null
5
{"a":2,"b":[1]}
{"a":2,"b":"x","s":{"n":1.5}}
{"a":2,"b":"x","s":{"n":1}}
not json
"""
FIELDS = "a bigint, b string, s struct<n:bigint>"
BAD = [2, 3, 5, 6, 7, 9, 11, 12, 14, 16]
GOOD = [
    (1, "x", None),
    (2, "[1]", None),
    (2, "x", {"n": 1}),
    (None, "4", None),
    (None, None, None),
]


def source(folder, content=RECORDS, format="json", schema=FIELDS, **more):
    folder.mkdir(exist_ok=True)
    (folder / f"1.{format}").write_bytes(content)
    return FileSpout(folder, format, schema, **more)


def rows_of(spout):
    topology = TridentTopology("records")
    kept = capture(topology.new_stream("in", spout))
    return topology, kept


def lines_of(letters):
    return sorted(int(letter.position.split("#line ")[1]) for letter in letters)


def test_a_malformed_record_fails_the_batch_with_file_line_and_text(spark, tmp_path):
    # The topology does not read the field that is malformed: Spark would not look at it.
    topology = TridentTopology("counted")
    records = b'{"a":1,"b":"x"}\n{"a":1.7,"b":"y"}\n'
    stream = topology.new_stream("in", source(tmp_path / "in", records))
    stream.group_by("b").persistent_aggregate(
        SQLiteState.opaque(tmp_path / "c.db", table="c"), Count(), out="n"
    )
    run = submit(topology, spark)

    with pytest.raises(RunFailedError) as failed:
        run.process_all_available(timeout=100)

    error = failed.value.__cause__
    assert type(error) is MalformedRowError
    assert f"{tmp_path}/in/1.json, line 2: this is not json of {FIELDS}: " in str(error)
    assert """'{"a":1.7,"b":"y"}'""" in str(error)
    assert run.last_progress is None
    with sqlite3.connect(tmp_path / "c.db") as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'c'").fetchall() == []


def test_malformed_records_are_dead_letters_with_their_lines_in_both_engines(spark, tmp_path):
    topology, kept = rows_of(source(tmp_path / "in", on_error="dead_letter"))
    run = finish(topology, spark)
    here, kept_here = rows_of(source(tmp_path / "in", on_error="dead_letter"))
    local = run_in_process(here, Config(home=str(tmp_path / "here")))

    letters = run.dead_letters()
    assert kept.rows == kept_here.rows == sorted(GOOD, key=repr)
    assert lines_of(letters) == lines_of(local.letters) == BAD
    assert {letter.position.split("#")[0] for letter in letters} == {f"{tmp_path}/in/1.json"}
    assert sorted(str(one.row) for one in letters) == sorted(str(one.row) for one in local.letters)
    assert {(one.failed_in, one.error, one.failures) for one in letters} == {
        ("spout in", f"MalformedRowError: this is not json of {FIELDS}", 1)
    }


@pytest.mark.parametrize("options", [{"on_error": "null"}, {"options": {"mode": "DROPMALFORMED"}}])
def test_nulls_or_nothing_where_asked_for_by_name_in_both_engines(spark, tmp_path, options):
    topology, kept = rows_of(source(tmp_path / "in", **options))
    finish(topology, spark)
    here, kept_here = rows_of(source(tmp_path / "in", **options))
    run_in_process(here, Config(home=str(tmp_path / "here")))

    assert kept.rows == kept_here.rows
    assert len(kept.rows) == len(GOOD) + (len(BAD) if "on_error" in options else 0)


CSV = (
    b"id,name\n1,x\n2\n3,y,z\nnope,q\n\n"
    + b"4,"
    + b"w" * 500
    + b'\n99999999999999999999,big\n5,"v"\n'
)


@pytest.mark.soak
def test_csv_and_a_record_that_is_too_long_are_put_aside_and_replayed_once(spark, tmp_path):
    header = {"header": "true"}
    spout = source(
        tmp_path / "in", CSV, "csv", "id bigint, name string",
        options=header, on_error="dead_letter", max_record_bytes=100,
    )  # fmt: skip
    topology, kept = rows_of(spout)
    run = submit(topology, spark)
    run.process_all_available(timeout=100)
    letters = {letter.position.rsplit("#")[1]: letter for letter in run.dead_letters()}

    assert kept.rows == [(1, "x"), (5, "v")]
    assert sorted(letters) == ["byte 28", "line 3", "line 4", "line 5", "line 8"]
    assert letters["line 4"].row == {"record": "3,y,z"}
    too_long = letters["byte 28"]
    assert (too_long.content, too_long.looks[:8]) == (None, "['4,wwww")
    assert "a record of 503 bytes, and max_record_bytes is 100" in too_long.error

    from waterspout.trident.isolation.repair import repaired
    from waterspout.trident.isolation.rewriting import letters_location

    with_requests = letters_location(topology.plan(Config()), Config()).requests()
    mended = repaired(letters["line 4"], {"record": '"3,y"'})
    with_requests.add("replay", [mended, letters["line 5"]])
    with_requests.close()
    run.process_all_available(timeout=100)
    run.stop()

    assert kept.rows == [(1, "x"), (3, "y"), (5, "v")]
    left = {letter.position.rsplit("#")[1]: letter.failures for letter in run.dead_letters()}
    assert left == {"byte 28": 1, "line 3": 1, "line 5": 2, "line 8": 1}


def test_text_that_has_nothing_to_put_aside_is_read_by_one_job(spark, tmp_path):
    folder = tmp_path / "in"
    spout = source(folder, b"short\nshort\n", "text", None, max_record_bytes=50, max_files=1)
    (folder / "2.text").write_bytes(b"x" * 60 + b"\nshort\n")
    topology, kept = rows_of(spout)
    config = Config(on_error="dead_letter")
    told = str(topology.explain(config))
    run = submit(topology, spark, config)
    run.process_all_available(timeout=100)
    run.stop()

    assert "1 job for processing, 0 for commit" in told
    assert kept.rows == [("short",)] * 3
    assert [letter.position for letter in run.dead_letters()] == [f"{tmp_path}/in/2.text#byte 0"]
