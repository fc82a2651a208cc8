"""A user's modules, and this package, come to executors that have neither.

The package is there as people install it: as files, as a wheel or a zip that is on the path, or as
one of the `--py-files` of spark-submit.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.services.spark import StandaloneCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TOPOLOGY = """
from keys import key_of
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

topology = TridentTopology("shipped")
state = SQLiteState.opaque("counts.db", table="counts", driver_only=False)
(
    topology.new_stream("numbers", FixedBatchSpout("n bigint", 30, [[n] for n in range(100)]))
    .each("n", key_of, out="k")
    .group_by("k")
    .persistent_aggregate(state, Count(), "count")
    .parallelism_hint(2)
)
"""
KEYS = """
def key_of(n: int) -> int:
    return n % 3
"""
MAIN = """
from pyspark.sql import SparkSession
from topology import topology
from waterspout import Config, submit

spark = SparkSession.builder.getOrCreate()
run = submit(topology, spark, Config(commit_in="tasks"))
run.process_all_available(timeout=200)
run.stop()
spark.stop()
"""
COUNTS = [(0, 34), (1, 33), (2, 33)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python with all that waterspout needs, but without it."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # What a .pth names is searched for modules, but not for further .pth files, as ours is.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "bin" / "python")
    found = subprocess.run([python, "-c", "import pyspark, pyarrow, waterspout"], cwd=folder,
                           capture_output=True, text=True, env=without_path())  # fmt: skip
    assert "No module named 'waterspout'" in found.stderr
    return python


@pytest.fixture(scope="module")
def cluster(bare):
    with StandaloneCluster(bare=bare) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "keys.py").write_text(KEYS)
    (tmp_path / "main.py").write_text(MAIN)
    return tmp_path


def without_path():
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run_in(project, command, bare, **env):
    given = {
        **without_path(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": bare,
        "WATERSPOUT_HOME": str(project / "home"),
        **env,
    }
    done = subprocess.run(command, cwd=project, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with closing(sqlite3.connect(project / "counts.db")) as db:
        return sorted(db.execute("SELECT k, count FROM counts"))


@pytest.mark.parametrize("form", ["files", "wheel", "zip"])
def test_the_package_and_modules_beside_the_topology_come_along(
    cluster, project, bare, wheel, form
):
    unpacked = project / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    path = {"files": unpacked, "wheel": wheel, "zip": project / "waterspout.zip"}[form]
    if form == "zip":
        zipped(unpacked / "waterspout", path)
    command = [
        bare, "-m", "waterspout.cli", "run", "topology.py", "--until-idle",
        "--master", cluster.url, "-c", "commit_in=tasks",
    ]  # fmt: skip

    settings = "--conf spark.driver.host=127.0.0.1 --conf spark.executor.memory=512m pyspark-shell"
    env = {"PYTHONPATH": str(path), "PYSPARK_SUBMIT_ARGS": settings}
    assert run_in(project, command, bare, **env) == COUNTS


def test_they_come_as_py_files_of_spark_submit(cluster, project, bare, wheel):
    unpacked = project / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    zipped(unpacked / "waterspout", project / "waterspout.zip")
    submit = Path(sysconfig.get_path("purelib")) / "pyspark" / "bin" / "spark-submit"
    command = [
        str(submit), "--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1",
        "--conf", "spark.executor.memory=512m", "--py-files", "waterspout.zip,keys.py", "main.py",
    ]  # fmt: skip

    assert run_in(project, command, bare) == COUNTS


def zipped(package, target):
    with zipfile.ZipFile(target, "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, file.relative_to(package.parent))
