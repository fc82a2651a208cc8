"""An error in one paragraph: the cause first, with the place in the user's own code."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from waterspout._causes import in_full, located, naming, one_line, operation_in, told
from waterspout.errors import OutsideError, SpoutCrash, StoreError, UserCodeError
from waterspout.spark.failures import translate
from waterspout.spark.starting import _cause
from waterspout.spark.workers import require_workers, why_unfit

HERE = __file__
SRC = Path(__file__).parents[1] / "src"

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 90, in main
    process()
  File "/home/me/job.py", line 12, in shout
    return json.loads(text)
  File "/usr/lib/python3.11/site-packages/simplejson/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
simplejson.JSONDecodeError: Expecting value: line 1 column 1


JVM stacktrace:
org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
"""


def raised(call) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever it is)
        call()
    return caught.value


def parse() -> None:
    json.loads("no json")


def test_the_last_place_in_the_user_s_own_code_is_told_and_not_that_of_a_library():
    line = parse.__code__.co_firstlineno + 1

    assert told(raised(parse)) == (
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0) "
        f"({HERE}, line {line}, in parse)"
    )


def test_the_cause_of_a_crashed_spout_says_where():
    crash = SpoutCrash("words", 1, "next_tuple", "JSONDecodeError: no")
    crash.__cause__ = raised(parse)

    assert told(crash).startswith(
        "spout 'words' (task 1) raised in next_tuple: JSONDecodeError: no (" + HERE
    )


def test_errors_of_ours_are_told_as_they_are():
    assert told(StoreError("no server at db:5432.\n  Start it.")) == (
        "no server at db:5432. Start it."
    )


def test_java_frames_are_left_to_the_log():
    text = "[FAILED_READ] no file\n\tat org.apache.Spark.run(Spark.scala:1)\n\tat java.lang.Thread"

    assert told(RuntimeError(text)) == "RuntimeError: [FAILED_READ] no file"
    assert one_line(f"{WORKER.partition('JVM')[0].strip()}\n SQLSTATE: 38000").endswith("shout).")
    assert one_line(WORKER.partition("\n")[2]) == (
        "simplejson.JSONDecodeError: Expecting value: line 1 column 1 (/home/me/job.py, line 12, "
        "in shout)."
    )


def test_an_error_names_the_innermost_operation_that_it_came_out_of():
    try:
        with naming("aggregate"), naming("each(shout)\n"):
            raise ValueError("no\nreason")
    except ValueError as error:
        trace = "".join(traceback.format_exception(error))

    assert operation_in(trace) == "each(shout)"
    assert operation_in("Traceback (most recent call last)\nValueError: no") is None
    assert "waterspout operation" not in one_line(trace)
    assert "ValueError: no reason" in one_line(trace)


def test_a_place_that_is_told_already_is_not_told_twice():
    text = located("no", 'File "/home/me/job.py", line 12, in shout')

    assert located(text, 'File "/home/me/job.py", line 12, in shout') == text
    assert located("no", 'File "/opt/site-packages/x.py", line 1, in f') == "no"


def test_an_error_of_a_worker_is_one_line_with_its_frames_beside_it():
    from pyspark.errors import PythonException

    error = translate(PythonException(WORKER), None)  # type: ignore[arg-type]

    assert isinstance(error, UserCodeError)
    assert str(error) == told(error)
    assert told(error) == (
        "simplejson.JSONDecodeError: Expecting value: line 1 column 1 (/home/me/job.py, line 12, "
        "in shout)"
    )
    assert error.trace in in_full(error)
    assert "site-packages/pyspark/worker.py" in error.trace
    assert "JVM stacktrace" in error.trace


class Session:
    """A local session, made by somebody who did not say which Python its workers run."""

    is_local = True

    def __init__(self, python: str) -> None:
        self.spark = self.sparkContext = self
        self.pythonExec = python


@pytest.fixture
def other_python(tmp_path):
    """A program in place of an older Python."""
    program = tmp_path / "python2.7"
    program.write_text("#!/bin/sh\necho 2.7\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_workers_of_this_machine_run_the_driver_s_python(monkeypatch, other_python):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session = Session(other_python)

    require_workers(session)  # type: ignore[arg-type]

    assert session.pythonExec == sys.executable


def test_another_python_that_was_asked_for_is_refused_before_the_run(monkeypatch, other_python):
    monkeypatch.setenv("PYSPARK_PYTHON", other_python)

    with pytest.raises(OutsideError) as caught:
        require_workers(Session(other_python))  # type: ignore[arg-type]

    ours = ".".join(map(str, sys.version_info[:2]))
    assert str(caught.value) == (
        f"PYSPARK_PYTHON is {other_python}, which is Python 2.7, and this process runs Python "
        f"{ours}; unset PYSPARK_PYTHON, or set it to {sys.executable}"
    )


def test_a_python_without_the_packages_is_unfit(tmp_path, monkeypatch):
    assert why_unfit(str(tmp_path / "none")).startswith("is not there; unset PYSPARK_PYTHON")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    assert "cannot import what workers need (ModuleNotFoundError" in str(why_unfit(str(bare)))


def test_an_interrupt_while_the_command_is_loaded_is_quiet(tmp_path):
    package = tmp_path / "waterspout"
    package.mkdir()
    slow = "import sys, time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    (package / "__init__.py").write_text(slow)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SRC}"}
    # Who starts the tests in the background has interrupts ignored, and that is inherited.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import waterspout_command; sys.exit(waterspout_command.main())"
    )

    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=50)

    assert (process.returncode, err) == (-signal.SIGINT, b"")


def test_of_an_error_of_spark_s_start_its_cause_is_told():
    said = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": java.lang.IllegalArgumentException: requirement failed: too small\n\tat Main.main\n"
    )

    assert _cause(Exception(said)) == (
        "java.lang.IllegalArgumentException: requirement failed: too small"
    )
    assert _cause(Exception("no Java\nhere")) == "no Java"
    assert _cause(ValueError()) == "ValueError"
