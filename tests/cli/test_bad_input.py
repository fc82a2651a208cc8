"""Bad input: one paragraph that names the thing and the remedy, exit code 2, nothing written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import WORD_COUNT, Outcome, listing
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._head import Claim, Writer
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional._attempt import TransactionAttempt

COMMANDS = ["check", "run"]

each_command = pytest.mark.parametrize("command", COMMANDS)


def assert_refused(outcome, *named: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, "more than one paragraph"
    assert "Traceback" not in outcome.err
    for name in named:
        assert name in outcome.err


BAD_TOPOLOGIES = {
    "unknown field": (
        WORD_COUNT.replace('each("value"', 'each("valu"'),
        ("words.py, line 7", "'valu'", "value"),
    ),
    "duplicate stream": (
        WORD_COUNT + 'topology.new_stream("in", FileSpout("data"))\n',
        ("words.py, line 10", "'in'", "another id"),
    ),
    "duplicate table": (
        WORD_COUNT + 'words.group_by("word").persistent_aggregate(counts, Count(), "count")\n',
        ("counts.db#word_counts", "another table"),
    ),
    "bad topology name": (
        WORD_COUNT.replace('"words"', '"../words"'),
        ("'../words'", "letters, digits"),
    ),
    "unpicklable attribute": (
        """
import threading
from waterspout.spouts.files import FileSpout
from waterspout.trident import Function, TridentTopology

class Shout(Function):
    def __init__(self):
        self.guard = threading.Lock()

    def execute(self, tuple, collector):
        collector.emit((tuple[0].upper(),))

topology = TridentTopology("words")
topology.new_stream("in", FileSpout("data")).each("value", Shout(), "word string")
""",
        ("Shout", "'guard'", "prepare()"),
    ),
    "unpicklable global": (
        """
import threading
from waterspout.spouts.files import FileSpout
from waterspout.trident import TridentTopology

guard = threading.Lock()

def shout(value):
    with guard:
        return value.upper()

topology = TridentTopology("words")
topology.new_stream("in", FileSpout("data")).each("value", shout, "word string")
""",
        ("shout", "lock", "prepare()"),
    ),
    "missing source": (
        WORD_COUNT.replace('"data"', '"not/here"'),
        ("not/here", "create the directory"),
    ),
    "missing folder of a state": (
        WORD_COUNT.replace('"counts.db"', '"not/here/counts.db"'),
        ("not/here", "word_counts", "create it"),
    ),
    "no stream": (
        'from waterspout.trident import TridentTopology\ntopology = TridentTopology("words")\n',
        ("'words'", "new_stream()"),
    ),
    "error in the file": ("x = 1\ny = undefined\n", ("words.py, line 2", "NameError", "undefined")),
    "no Python": ("def topology(:\n", ("words.py, line 1", "SyntaxError")),
    "a script": ("import sys\nsys.exit(3)\n", ("words.py, line 2", "__main__")),
    "unknown package": ("import not_installed_at_all\n", ("words.py, line 1", "not_installed")),
}


@each_command
@pytest.mark.parametrize(("source", "named"), BAD_TOPOLOGIES.values(), ids=BAD_TOPOLOGIES)
def test_a_bad_topology_is_refused(command, source, named, cli, write, place):
    file = write(source)
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, *named)
    assert listing(place) == before


BAD_ARGUMENTS = {
    "missing file": (["not/here.py"], ("not/here.py", "is not there")),
    "a folder": (["data"], ("data is a folder", "Python file")),
    "no file": ([], ("FILE[:NAME]", "--help")),
    "unknown name": (["words.py:other"], ("words.py has nothing named other", "words.py:topology")),
    "not a topology": (["words.py:words"], ("Stream", "words.py:topology")),
    "unknown option of ours": (["words.py", "-c", "max_pending=3"], ("'max_pending'", "max_")),
    "bad value": (["words.py", "-c", "ackers=many"], ("'ackers'", "'many'", "an integer")),
    "not a setting": (["words.py", "-c", "ackers"], ("'ackers'", "KEY=VALUE")),
    "no YAML": (["words.py", "-c", "home=[a"], ("home=[a", "YAML")),
    "one option twice": (
        ["words.py", "-c", "ackers=1", "-c", "topology.ackers=1"],
        ("'ackers'", "'topology.ackers'", "same option"),
    ),
    "missing YAML": (["words.py", "--config", "none.yaml"], ("none.yaml", "cannot be read")),
    "unknown option": (["words.py", "--frobnicate"], ("--frobnicate", "--help")),
}


@each_command
@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused(command, arguments, named, cli, write, place):
    write(WORD_COUNT)
    before = listing(place)

    outcome = cli(command, *arguments)

    assert_refused(outcome, *named)
    assert listing(place) == before


def test_two_places_to_run_at_are_refused(cli, write):
    outcome = cli("run", write(WORD_COUNT), "--master", "local", "--remote", "sc://localhost")

    assert_refused(outcome, "--master", "--remote")


@each_command
def test_a_state_that_belongs_to_another_topology_is_refused(command, cli, write, place):
    file = write(WORD_COUNT)
    claim_state(place, owner="other", txid=1)
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, "'word_counts' in counts.db", "'other'", "'words'", "another table")
    assert listing(place) == before


@each_command
def test_a_state_that_is_further_than_the_coordination_store_is_refused(command, cli, write, place):
    file = write(WORD_COUNT)
    claim_state(place, owner="words", txid=1)
    claim_state(place, owner="words", txid=2)
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, "batch 2", "batch 1", "waterspout home", "another table")
    assert listing(place) == before


@each_command
def test_a_table_of_someone_else_is_refused(command, cli, write, place):
    file = write(WORD_COUNT)
    db = sqlite3.connect(place / "counts.db")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE word_counts (word TEXT)")
    db.close()
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, "'word_counts'", "another table")
    assert listing(place) == before


@each_command
def test_a_file_that_is_no_database_is_refused(command, cli, write, place):
    file = write(WORD_COUNT)
    (place / "counts.db").write_text("word,count\n" * 1000)
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, "counts.db", "not a database")
    assert listing(place) == before


@each_command
def test_a_home_that_is_a_file_is_refused(command, cli, write, place, monkeypatch):
    file = write(WORD_COUNT)
    (place / "home").write_text("")
    before = listing(place)

    outcome = cli(command, file)

    assert_refused(outcome, f"{place}/home", "WATERSPOUT_HOME")
    assert listing(place) == before


def test_a_weak_pair_is_refused_when_strictness_is_asked_for(cli, write):
    file = write(WORD_COUNT.replace("SQLiteState.opaque", "SQLiteState.non_transactional"))

    outcome = cli("check", file, "-c", "strict=true")

    assert_refused(outcome, "strict=True", "not exactly-once", "opaque state")


# Permissions do not bind root, and others may not reach the interpreter: a first command loads
# all that is needed, then the process becomes somebody else.
AS_NOBODY = """
import os, sys
from waterspout.cli import main
assert main(["check", "words.py"]) == 0
sys.stdout.flush()
os.chmod(sys.argv[1], 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
print("now", flush=True)
sys.exit(main(["check", "words.py"]))
"""


@pytest.mark.parametrize(
    ("locked", "named"),
    [("state", ("state is read-only", "counts.db")), ("home", ("home", "WATERSPOUT_HOME"))],
)
def test_a_read_only_folder_is_refused(locked, named):
    # Not in tmp_path, which others than its owner cannot reach.
    with tempfile.TemporaryDirectory(prefix="waterspout-test-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        for name in ("data", "state", "home"):
            (place / name).mkdir()
            (place / name).chmod(0o777)
        (place / "words.py").write_text(WORD_COUNT.replace("counts.db", "state/counts.db"))
        before = listing(place)

        ran = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, locked],
            cwd=place,
            env={**os.environ, "WATERSPOUT_HOME": str(place / "home")},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

        said = ran.stdout.split("now\n")[-1]
        assert_refused(Outcome(ran.returncode, said, ran.stderr), *named)
        assert listing(place) == before


def test_the_demo_refuses_a_folder_with_something_in_it(cli, place):
    before = listing(place)

    outcome = cli("demo", "--folder", str(place))

    assert_refused(outcome, str(place), "name a new one")
    assert listing(place) == before


def test_a_missing_java_is_told_before_anything_is_written(cli, write, place, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/not/here")
    before = listing(place)

    outcome = cli("demo", "--folder", str(place / "demo"))

    assert_refused(outcome, "/not/here", "Java 17")
    assert listing(place) == before


def claim_state(place: Path, owner: str, txid: int) -> None:
    """Leave the state as batch `txid` of a topology would, before it has committed."""
    factory = SQLiteState.opaque(place / "counts.db", "word_counts").bind(
        Schema.parse("word string"), Schema.parse("count bigint")
    )
    state = factory.make_state(Config(), 0, 2)
    state.enroll(Writer(owner, 1))
    if txid > 1:
        state.settle(txid - 1, 0)
    state.claim(Claim(TransactionAttempt(txid, 0), None if txid == 1 else 0))
    state.close()


def test_a_connect_server_that_is_not_there_is_named_without_the_token(cli, write, place):
    address = "sc://127.0.0.1:1/;token=hunter2"

    outcome = cli(
        "run", write(WORD_COUNT), "--remote", address, "-c", "connect_timeout_secs=0.5",
        "--log-file", "run.log",
    )  # fmt: skip

    assert outcome.code != 0
    assert "no Spark Connect server answers at sc://127.0.0.1:1 within 0.5 s" in outcome.err
    assert "hunter2" not in f"{outcome}{(place / 'run.log').read_text()}"
    # Of a server there is no log of Spark's on this machine; ours is there.
    assert f"starting; the server has Spark's log, ours is {place / 'run.log'}" in outcome.out
