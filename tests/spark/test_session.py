"""What is asked of a session that others have made, told without Spark."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from waterspout.spark.session import SparkRuntime, _package_zip
from waterspout.spark.staging import Staging, keep
from waterspout.spark.starting import _own_sockets

ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
COMPARING = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}


class Settings(dict):
    """The settings of a context, and of a session, whose changes are noted or refused."""

    refuses = False

    def set(self, name, value):
        if self.refuses:
            raise PySparkException(f"cannot modify {name}")
        self[name] = value


class Session:
    """A session of the user's, with the settings of its SparkContext."""

    def __init__(self, attempts=None):
        self.conf = Settings()
        self.sparkContext = self
        self.master = "local[2]"
        self._conf = {} if attempts is None else {ATTEMPTS: attempts}


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, False),
        ({"spark.eventLog.enabled": "false", "spark.extraListeners": ""}, False),
        ({"spark.eventLog.enabled": "True"}, True),
        ({"spark.extraListeners": "com.example.Listener"}, True),
    ],
)
def test_who_else_is_told_what_goes_with_a_job(settings, shown):
    session = Session()
    session._conf.update(settings)

    assert SparkRuntime(session).shows_properties is shown


def test_the_package_that_is_sent_is_the_same_wherever_it_is_made(tmp_path):
    """Also in a process that has it from there: Spark takes no other one of the same name."""
    sent = _package_zip()
    assert len(zipfile.ZipFile(sent).namelist()) > 200
    code = "from waterspout.spark.session import _package_zip; print(_package_zip())"
    env = {**os.environ, "PYTHONPATH": str(sent)}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    again = Path(done.stdout.strip())
    assert again != sent
    assert again.read_bytes() == sent.read_bytes()


def test_a_session_that_fails_on_a_lost_shuffle_is_left_alone():
    session = Session("1")

    runtime = SparkRuntime(session)

    assert (runtime.retries_stages, runtime.recomputes, dict(session.conf)) == (False, False, {})


@pytest.mark.parametrize("attempts", [None, "2", "4"])
def test_a_session_that_recomputes_a_lost_shuffle_is_told_to_compare_it(attempts):
    session = Session(attempts)
    session.conf.update(dict.fromkeys(COMPARING, "false"))

    runtime = SparkRuntime(session)

    assert (runtime.retries_stages, runtime.recomputes) == (True, False)
    assert session.conf == COMPARING


def test_a_session_that_cannot_be_told_so_recomputes(caplog):
    session = Session()
    session.conf.refuses = True

    with caplog.at_level(logging.WARNING):
        runtime = SparkRuntime(session)

    assert runtime.recomputes
    (told,) = caplog.messages
    assert told == (
        "this Spark session may compute a lost part of a batch anew and does not let us have it "
        f"compared with what was lost (cannot modify {next(iter(COMPARING))}); start it with "
        f"{ATTEMPTS}=1"
    )


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_the_embedded_session_fails_on_a_lost_shuffle(spark):
    assert not SparkRuntime(spark).retries_stages


def _folder_of_sockets(batches):
    for _ in batches:
        path = os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]
        yield pa.RecordBatch.from_pydict({"path": [path]})


@pytest.mark.spark
def test_python_workers_are_reached_in_a_folder_for_this_user_alone(spark):
    rows = spark.range(1).mapInArrow(_folder_of_sockets, "path string").collect()

    folder = Path(rows[0].path)
    assert any(path.is_socket() for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()


def test_a_folder_with_a_name_too_long_for_a_socket_leaves_spark_as_it_is(tmp_path):
    assert _own_sockets(tmp_path / ("x" * 100)) == {}


@pytest.mark.spark
def test_a_checkpoint_that_fails_in_its_middle_leaves_nothing_on_the_executors(spark):
    persistent = spark.sparkContext._jsc.getPersistentRDDs
    before = set(persistent().keySet())
    half = spark.range(0, 4, 1, 4).selectExpr("if(id = 3, raise_error('no'), id) AS n")

    with pytest.raises(Exception, match="no"):
        keep(half, Staging([]))

    assert set(persistent().keySet()) <= before
    assert spark.sparkContext.getLocalProperty("callSite.short") is None
