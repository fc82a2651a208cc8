"""The command itself: version, help, doctor, and what errors come to."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import listing
from waterspout._causes import one_line, told
from waterspout.cli.doctor import _EXTRAS
from waterspout.cli.failures import exit_code, paragraph
from waterspout.errors import (
    JavaError,
    LeaseLostError,
    RunFailedError,
    TopologyError,
    UserCodeError,
)

WORKER_TRACEBACK = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 90, in main
    process()
  File "/home/me/waterspout/job.py", line 12, in shout
    return text.upper()
AttributeError: 'int' object has no attribute 'upper'
"""


def failed(cause: BaseException) -> RunFailedError:
    error = RunFailedError(f"run words stopped: {told(cause)}")
    error.__cause__ = cause
    return error


def test_version(cli):
    assert cli("--version") == (0, f"waterspout {version('waterspout')}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(cli, arguments):
    outcome = cli(*arguments)

    assert outcome.code == 0
    for command in ("demo", "run", "check", "doctor", "state", "dead-letters"):
        assert command in outcome.out


def test_an_unknown_command_is_refused(cli):
    outcome = cli("frobnicate")

    assert outcome.code == 2
    assert outcome.err.startswith("error: No such command 'frobnicate'")


def test_doctor_finds_what_is_there_and_writes_nothing(cli, place):
    before = listing(place)

    outcome = cli("doctor")

    assert outcome.code == 0
    for name in ("Java", "Python", "pyspark", "pyarrow", "pandas", "SQLite", "cores", "home"):
        assert name in outcome.out
    assert listing(place) == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (None, "ok       Spark       a lost shuffle fails the attempt; set"),
        ("# nothing", "conf does not set it, so a lost part of a batch is computed anew"),
        ("spark.stage.maxConsecutiveAttempts  4", "conf sets it to 4, so a lost part"),
        ("spark.stage.maxConsecutiveAttempts=1", "a lost shuffle fails the attempt, as "),
    ],
)
def test_doctor_says_what_becomes_of_a_lost_shuffle(cli, place, monkeypatch, line, said):
    monkeypatch.setenv("SPARK_CONF_DIR", str(place))
    if line is not None:
        (place / "spark-defaults.conf").write_text(f"spark.ui.enabled false\n\n{line}\n")

    outcome = cli("doctor")

    assert outcome.code == 0
    assert said in " ".join(outcome.out.split("\n")) or said in outcome.out
    assert ("warning  Spark" in outcome.out) == ("computed anew" in outcome.out)


def test_doctor_looks_at_every_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {
        name: {re.split(r"[\[<>=]", each)[0] for each in needs}
        for name, needs in project["optional-dependencies"].items()
        if name not in ("all", "dev", "docs")
    }

    assert _EXTRAS.keys() == extras.keys()
    for extra, package in _EXTRAS.items():
        assert package in extras[extra] or extra in ("connect", "otel"), extra


def test_doctor_fails_without_java_and_says_what_to_do(cli, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/not/here")

    outcome = cli("doctor")

    assert outcome.code == 1
    assert "MISSING" in outcome.out
    assert "install a JDK and set JAVA_HOME" in outcome.out


def test_doctor_finds_out_that_workers_would_run_another_python(cli, place, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", str(place / "python2.7"))

    outcome = cli("doctor")

    assert outcome.code == 1
    assert "MISSING  workers     PYSPARK_PYTHON is " in outcome.out
    assert "which is not there; unset PYSPARK_PYTHON" in " ".join(outcome.out.split())


def test_doctor_fails_where_the_home_cannot_be_written(cli, place):
    (place / "home").write_text("")

    outcome = cli("doctor")

    assert outcome.code == 1
    assert "set WATERSPOUT_HOME" in outcome.out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopologyError("x"), 2),
        (JavaError("x"), 2),
        (PermissionError("x"), 2),
        (failed(ValueError("x")), 1),
        (failed(LeaseLostError("x")), 1),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_a_failed_run_is_1_and_whatever_was_refused_before_is_2(error, code):
    assert exit_code(error) == code


def test_an_error_of_a_worker_comes_to_its_last_line_and_the_users_own_place():
    said = paragraph(failed(UserCodeError(WORKER_TRACEBACK)))

    assert said == (
        "run words stopped: AttributeError: 'int' object has no attribute 'upper' "
        "(/home/me/waterspout/job.py, line 12, in shout). Nothing is lost: mend the cause and run "
        "the same command again."
    )


def test_an_error_of_user_code_is_a_sentence_before_what_to_do():
    assert paragraph(failed(ValueError("bad word"))) == (
        "run words stopped: ValueError: bad word. Nothing is lost: mend the cause and run the same "
        "command again."
    )


def test_a_message_stays_on_one_line():
    assert one_line(f"batch 3 failed:\n {WORKER_TRACEBACK}").startswith(
        "batch 3 failed: AttributeError: 'int'"
    )


def test_no_command_needs_pyspark_to_be_listed():
    program = "import sys, waterspout.cli; print('pyspark' in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.stdout == "False\n", ran.stderr
