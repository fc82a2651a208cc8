"""Malformed records and records that are too long, without Spark."""

from __future__ import annotations

import os
import random

import pytest

from tests.trident.support import capture
from waterspout import Config
from waterspout.errors import MalformedRowError, TooManyBadRowsError, TopologyError
from waterspout.spouts._malformed import OnMalformed, chosen, marked_record, records_too_long
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState
from waterspout.testing import LocalRun
from waterspout.trident import Count, TridentTopology

FIELDS = "a bigint, b string"
RECORDS = b'{"a":1,"b":"x"}\nnot json\n{"a":1.7,"b":"y"}\n\n{"a":2,"b":"z"}\nnot json\n'


def local(folder, content=RECORDS, format="json", config=None, **more):
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"1.{format}").write_bytes(content)
    topology = TridentTopology("records")
    schema = None if format == "text" else more.pop("schema", FIELDS)
    stream = topology.new_stream("in", FileSpout(folder / "in", format, schema, **more))
    kept = capture(stream)
    return LocalRun(topology, config or Config()), kept


def where(run):
    return [letter.position.rpartition("/")[2] for letter in run.letters]


def test_a_malformed_record_fails_the_batch_by_default_and_says_where_it_is(tmp_path):
    run, kept = local(tmp_path)

    with pytest.raises(MalformedRowError) as failed:
        run.finish()

    assert str(failed.value).startswith(
        f"{tmp_path}/in/1.json, line 2: this is not json of {FIELDS}: 'not json'. "
    )
    assert 'on_error="dead_letter"' in str(failed.value)
    assert kept.rows == []


def test_the_text_in_the_error_is_bounded_and_safe(tmp_path):
    run, _ = local(tmp_path, b'{"a":1}\n' + b"\x1b[31m\xff" * 100_000)

    with pytest.raises(MalformedRowError) as failed:
        run.finish()

    assert len(str(failed.value)) < 1_000
    assert "\x1b" not in str(failed.value)


@pytest.mark.parametrize(
    ("config", "more"),
    [(Config(), {"on_error": "dead_letter"}), (Config(on_error="dead_letter"), {})],
    ids=["the spout", "the configuration"],
)
def test_malformed_records_are_put_aside_each_with_its_line(tmp_path, config, more):
    run, kept = local(tmp_path, config=config, **more)
    run.finish()

    assert kept.rows == [(1, "x"), (2, "z")]
    assert where(run) == ["1.json#line 2", "1.json#line 3", "1.json#line 6"]
    assert [letter.row for letter in run.letters] == [
        {"record": "not json"}, {"record": '{"a":1.7,"b":"y"}'}, {"record": "not json"},
    ]  # fmt: skip


def test_on_error_of_the_spout_wins_over_the_configuration(tmp_path):
    run, _ = local(tmp_path, config=Config(on_error="dead_letter"), on_error="fail")

    with pytest.raises(MalformedRowError):
        run.finish()


def test_nulls_come_only_where_asked_for_by_name(tmp_path):
    run, kept = local(tmp_path, on_error="null")
    run.finish()

    assert kept.rows == [(1, "x"), (2, "z"), (None, "y"), (None, None), (None, None)]


def test_a_field_for_the_text_of_malformed_records_asks_for_them(tmp_path):
    run, kept = local(tmp_path, schema="a bigint, _corrupt_record string")
    run.finish()

    assert (None, "not json") in kept.rows
    assert (1, None) in kept.rows


def test_a_letter_is_mended_and_replayed_and_one_that_fails_again_is_kept(tmp_path):
    run, kept = local(tmp_path, on_error="dead_letter")
    run.finish()
    first, second, _ = run.letters

    run.replay_letters(first, record='{"a":7,"b":"mended"}')
    run.replay_letters(second)
    run.finish()

    assert kept.rows == [(1, "x"), (2, "z"), (7, "mended")]
    assert sorted((one.position[-6:], one.failures) for one in run.letters) == [
        ("line 3", 2), ("line 6", 1),
    ]  # fmt: skip


def test_too_many_malformed_records_stop_the_run(tmp_path):
    run, _ = local(tmp_path, on_error="dead_letter", config=Config(max_bad_ratio=0.5))

    with pytest.raises(TooManyBadRowsError, match="3 of the 5 rows of batch 1 that came"):
        run.finish()


def test_a_source_that_puts_records_aside_stays_transactional(tmp_path):
    (tmp_path / "in").mkdir()
    topology = TridentTopology("records")
    stream = topology.new_stream("in", FileSpout(tmp_path / "in", "json", FIELDS))
    state = MemoryMapState.transactional()
    stream.group_by("b").persistent_aggregate(state, Count(), out="n")

    shown = topology.explain(Config(on_error="dead_letter", strict=True))

    assert "not exactly-once" not in shown


def test_a_record_that_is_too_long_fails_the_batch_with_its_place(tmp_path):
    run, _ = local(tmp_path, b"short\n" + b"x" * 100 + b"\nshort\n", "text", max_record_bytes=50)

    with pytest.raises(MalformedRowError, match=r"1.text, byte 6: a record of 101 bytes, and max"):
        run.finish()


def test_a_record_that_is_too_long_is_put_aside_and_the_others_are_read(tmp_path):
    content = b"short\n" + b"x" * 5_000 + b"\nshort\n" + b"y" * 51
    run, kept = local(tmp_path, content, "text", max_record_bytes=50, on_error="dead_letter")
    run.finish()

    assert kept.rows == [("short",), ("short",)]
    assert where(run) == ["1.text#byte 6", "1.text#byte 5013"]
    assert [letter.content for letter in run.letters] == [None, None]


@pytest.mark.parametrize("seed", range(20))
def test_long_records_are_found_wherever_they_are(tmp_path, seed):
    rng = random.Random(seed)
    end = rng.choice([b"\n", b"\r\n", b"\r"])
    lines = [
        b"x" * rng.choice([0, 1, 7, 8, 9, 10, 11, 200_000]) for _ in range(rng.randrange(1, 9))
    ]
    data = b"".join(line + end for line in lines) + b"x" * rng.choice([0, 5, 20])
    path = tmp_path / "f"
    path.write_bytes(data)

    found = records_too_long(str(path), len(data), 10, {})

    starts, at = [], 0
    for line in [*(line + end for line in lines), data[len(b"".join(x + end for x in lines)) :]]:
        starts += [(at, len(line))] if len(line) > 10 else []
        at += len(line)
    assert [(one.start, one.size) for one in found] == starts


def test_looking_for_long_records_reads_next_to_nothing(tmp_path):
    path = tmp_path / "f"
    with open(path, "wb") as file:
        for _ in range(400):
            file.write(b"x" * 99_999 + b"\n")
    before = _bytes_read()

    assert records_too_long(str(path), 40_000_000, 1_000_000, {}) == []
    assert _bytes_read() - before < 10_000_000


def _bytes_read():
    with open(f"/proc/{os.getpid()}/io") as file:
        return int(file.readline().split()[1])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"on_error": "ignore"}, 'on_error is "fail", "dead_letter" or "null", not \'ignore\''),
        ({"options": {"mode": "NONE"}}, "mode is one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        (
            {"on_error": "fail", "options": {"mode": "PERMISSIVE"}},
            "on_error='fail' and the option mode='PERMISSIVE' both say what becomes of a",
        ),
        (
            {"on_error": "fail", "schema": "a int, _corrupt_record string"},
            "on_error='fail' and the field '_corrupt_record' both say",
        ),
        ({"max_record_bytes": 0}, "max_record_bytes must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_spout_is_made(more, said):
    given = {"schema": "a int", **more}

    with pytest.raises(TopologyError, match=said):
        FileSpout("in", "json", **given)


@pytest.mark.parametrize(
    ("mode", "meant"),
    [
        ("permissive", OnMalformed.NULL),
        ("DROPMALFORMED", OnMalformed.DROP),
        ("FailFast", OnMalformed.FAIL),
    ],
)
def test_sparks_own_names_count(mode, meant):
    schema = FileSpout("in", "json", "a int").schema

    assert chosen("json", schema, None, {"Mode": mode}) is meant


def test_an_error_of_spark_that_was_cut_short_still_tells_of_a_malformed_record():
    error = marked_record('waterspout-malformed:{"path":"file:/a/b.json","te')

    assert isinstance(error, MalformedRowError)
    assert "file:/a/b.json" in str(error)
