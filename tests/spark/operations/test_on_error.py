"""`on_error="dead_letter"` on Spark: bad rows aside, the rest exact, replays once."""

from __future__ import annotations

import json
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.soaking import sampled, soaked
from tests.spark.killing import run_child
from tests.trident.support import capture, finish, put, wait_for
from waterspout import Config, faults, submit
from waterspout.cli import main
from waterspout.errors import ConfigError, RunFailedError, TooManyBadRowsError
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.audit import audit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Count,
    Sum,
    TridentTopology,
    arrow_function,
    expr,
    pandas_function,
)
from waterspout.trident.isolation.store import LettersLocation

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DEAD = "dead_letter"
FORMS = ["plain", "arrow", "pandas"]
CHILD = "tests.spark.operations.on_error_child"


def parse(text: str) -> int:
    return int(text)


@arrow_function
def arrow_parse(batch):
    return pc.cast(batch.column(0), "int64")


@pandas_function
def pandas_parse(frame):
    return frame["text"].astype("int64")


def letters_of(home, name):
    place = LettersLocation(Path(home) / name)
    return place, place.letters()


@pytest.fixture(autouse=True)
def no_faults():
    yield
    faults.install(None)


def amounts(folder, form=parse, name="amounts", *, size=4):
    """The documented example: amounts by account, with rows that are no amounts."""
    topology = TridentTopology(name)
    rows = [("a", "1"), ("b", "x"), ("a", "2"), ("b", "3"), ("a", ""), ("c", "4")]
    payments = topology.new_stream("payments", FixedBatchSpout("account, text", size, rows))
    totals = SQLiteState.opaque(folder / "totals.db", table="totals")
    (
        payments.each("text", form, "amount bigint", on_error=DEAD)
        .group_by("account")
        .persistent_aggregate(totals, "amount", Sum(), out="total")
    )
    return topology


def totals(folder):
    with sqlite3.connect(folder / "totals.db") as db:
        return dict(db.execute("SELECT account, total FROM totals"))


@pytest.mark.parametrize("form", sampled([parse, arrow_parse, pandas_parse], [1]), ids=FORMS)
def test_bad_rows_become_letters_with_their_position(spark, tmp_path, form):
    home = tmp_path / "home"
    topology = amounts(tmp_path, form)

    finish(topology, spark, Config(home=str(home), max_spout_pending=2))

    assert totals(tmp_path) == {"a": 3, "b": 3, "c": 4}
    _, letters = letters_of(home, "amounts")
    found = [(letter.row, letter.position, letter.txid) for letter in letters]
    assert found == [
        ({"account": "b", "text": "x"}, "1", 1),
        ({"account": "a", "text": ""}, "4", 2),
    ]
    assert len({letter.failed_in for letter in letters}) == 1
    assert "Traceback" in letters[0].trace


def test_a_replay_by_command_goes_through_the_same_topology_once(spark, tmp_path, capsys):
    home = tmp_path / "home"
    config = Config(home=str(home), commit_in="driver")
    finish(amounts(tmp_path), spark, config)
    place = ["--home", str(home)]

    assert main(["dead-letters", "replay", "amounts", "1:0:0", "--set", 'text="30"', *place]) == 0
    assert main(["dead-letters", "drop", "amounts", "2:0:0", "--yes", *place]) == 0
    for _ in range(2):
        finish(amounts(tmp_path), spark, config)

    assert totals(tmp_path) == {"a": 3, "b": 33, "c": 4}
    assert letters_of(home, "amounts")[1] == []
    assert main(["dead-letters", "list", "amounts", *place]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "amounts: no dead letters"


@pytest.mark.soak
def test_an_audit_counts_without_the_letters_and_says_where_it_cannot(spark, tmp_path):
    config = Config(home=str(tmp_path / "home"))
    finish(amounts(tmp_path), spark, config)

    (result,) = audit(amounts(tmp_path), spark, config)

    assert (result.keys, result.differences) == (3, ())
    place, letters = letters_of(tmp_path / "home", "amounts")
    place.requests().add("replay", [replace(letters[0], content='["b","1"]')])
    finish(amounts(tmp_path), spark, config)
    with pytest.raises(ConfigError, match="cannot be counted again"):
        audit(amounts(tmp_path), spark, config)


@pytest.mark.soak
def test_a_running_topology_takes_a_replay_up(spark, tmp_path):
    home = tmp_path / "home"
    run = submit(amounts(tmp_path), spark, Config(home=str(home)))
    try:
        run.process_all_available(timeout=60)
        place, letters = letters_of(home, "amounts")
        assert run.dead_letters() == letters

        mended = [replace(letter, content='["b","10"]') for letter in letters]
        place.requests().add("replay", mended)

        wait_for(lambda: totals(tmp_path) == {"a": 3, "b": 23, "c": 4})
        run.process_all_available(timeout=60)
    finally:
        run.stop()
    assert letters_of(home, "amounts")[1] == run.dead_letters() == []


def test_positions_in_files_chains_and_other_readers(spark, tmp_path):
    home, source = tmp_path / "home", tmp_path / "in"
    put(source / "a.txt", "1 2\n3 x\n")
    put(source / "b.txt", "0 5\n")
    topology = TridentTopology("files")
    lines = topology.new_stream("lines", FileSpout(source))
    words = lines.flat_map(lambda value: value.split(), "word string", on_error=DEAD)
    numbers = words.each("word", parse, "n bigint", on_error=DEAD).filter("n", lambda n: n < 5)
    shares = numbers.shuffle().map(lambda word, n: 6 // n, "share bigint", on_error=DEAD)
    kept = capture(shares.each("share", expr("share * 10"), "tens bigint"))
    counts = SQLiteState.opaque(tmp_path / "totals.db", table="lines")
    lines.persistent_aggregate(counts, Count(), out="count")

    finish(topology, spark, Config(home=str(home)))

    assert kept.rows == [(2, 20), (3, 30), (6, 60)]
    _, letters = letters_of(home, "files")
    found = sorted((str(letter.row), Path(letter.position).name) for letter in letters)
    assert found == [("{'word': '0', 'n': 0}", "b.txt"), ("{'word': 'x'}", "a.txt")]
    with sqlite3.connect(tmp_path / "totals.db") as db:
        assert db.execute("SELECT count FROM lines").fetchone() == (3,)


@pytest.mark.parametrize("rows", ["1x23456", "x1"])
def test_partitions_stay_as_many_as_they_were(spark, tmp_path, rows):
    topology = TridentTopology("partitions")
    stream = topology.new_stream("in", FixedBatchSpout("text", 10, list(rows))).shuffle()
    numbers = stream.each("text", parse, "n bigint", on_error=DEAD).parallelism_hint(3)
    kept = capture(numbers.partition_aggregate(Count(), "count"))

    finish(topology, spark, Config(home=str(tmp_path / "home")))

    assert len(kept.rows) == 3
    assert sum(count for (count,) in kept.rows) == len(rows) - 1


def test_too_many_bad_rows_stop_the_run(spark, tmp_path):
    home = tmp_path / "home"
    config = Config(home=str(home), max_bad_ratio=0.3)

    with pytest.raises(RunFailedError) as caught:
        finish(amounts(tmp_path), spark, config)

    assert isinstance(caught.value.__cause__, TooManyBadRowsError)
    assert totals(tmp_path) == {"a": 3, "b": 3}
    assert [letter.txid for letter in letters_of(home, "amounts")[1]] == [1]


@pytest.mark.parametrize("commit_in", [soaked("driver"), "tasks"])
def test_a_killed_worker_gives_each_bad_row_one_letter(spark, tmp_path, commit_in):
    home = tmp_path / "home"
    token = tmp_path / "killed"
    plan = FaultPlan([Fault("processing", "kill", where={"txid": 2}, token=str(token))])
    topology = TridentTopology("killed-worker")
    rows = [(str(i % 7) if i % 5 else "x",) for i in range(40)]
    numbers = topology.new_stream("in", FixedBatchSpout("text", 10, rows)).each(
        "text", parse, "n bigint", on_error=DEAD
    )
    state = SQLiteState.opaque(tmp_path / "totals.db", table="counts", driver_only=False)
    numbers.group_by("n").persistent_aggregate(state, Count(), out="count")
    faults.install(plan)

    finish(topology, spark, Config(home=str(home), commit_in=commit_in, retry_backoff_millis=1))

    assert token.exists()
    good = [i % 7 for i in range(40) if i % 5]
    with sqlite3.connect(tmp_path / "totals.db") as db:
        found = dict(db.execute("SELECT n, count FROM counts"))
    assert found == {n: good.count(n) for n in set(good)}
    _, letters = letters_of(home, "killed-worker")
    assert sorted(int(letter.position) for letter in letters) == list(range(0, 40, 5))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_killed_during_replays_replays_each_once(tmp_path, connect_server):
    put(tmp_path / "in" / "a.txt", "1\nx\n2\ny\n")
    assert run_child(CHILD, tmp_path, remote=connect_server.url) == 0
    place, letters = letters_of(tmp_path / "home", "replayed")
    assert [letter.row["value"] for letter in letters] == ["x", "y"]

    # Each start is killed in the batch that carries a replay: before and behind the mark.
    for number, point in enumerate(["write.after", "mark.after"]):
        content = json.dumps([str(10 * number + 10)])
        place.requests().add("replay", [replace(letters[number], content=content)])
        fault = {"point": point, "action": "kill"}
        assert run_child(CHILD, tmp_path, [fault], connect_server.url) == -signal.SIGKILL, point
    assert run_child(CHILD, tmp_path, remote=connect_server.url) == 0

    with sqlite3.connect(tmp_path / "totals.db") as db:
        assert dict(db.execute("SELECT n, count FROM counts")) == {1: 1, 2: 1, 10: 1, 20: 1}
    assert place.letters() == []
