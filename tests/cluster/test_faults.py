"""What only a cluster has: executors, workers, a driver's JVM that die, stand still or go away."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.cluster.faulty import LARGE, SUMS, sums_below
from tests.services.servers import await_condition
from tests.services.spark import EXECUTOR, StandaloneCluster, Worker
from tests.spark.jvm import executor_settings, submit_args
from waterspout.faults import ENVIRONMENT_VARIABLE, Fault, FaultPlan

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
# An executor that is silent is given up soon.
IMPATIENT = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}


@pytest.fixture(scope="module")
def cluster():
    with StandaloneCluster() as cluster:
        yield cluster


class Driver:
    """A driver in a process of its own."""

    def __init__(self, folder, master, faults=(), settings=None, spark=None):
        self.folder = folder
        given = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            **executor_settings(),
            **(spark or {}),
        }
        env = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": submit_args(given),
            ENVIRONMENT_VARIABLE: FaultPlan(list(faults)).to_json(),
        }
        options = [f"{name}={value}" for name, value in (settings or {}).items()]
        self.log = folder / "driver.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.faulty", str(folder), master, *options],
                env=env,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")[-3000:]

    def reaches(self, path):
        """Wait until a file is there, if the driver lives."""

        def there():
            assert self.process.poll() is None, self.said()
            return path.exists() and path.stat().st_size > 0

        await_condition(there, 120, self.said)
        return path

    def ends(self):
        return self.process.wait(timeout=240)

    def jvm(self):
        (found,) = [
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if child.name() == "java"
        ]
        return found


def executor_above(pid):
    """Return the executor that a Python worker belongs to."""
    return next(
        process
        for process in psutil.Process(pid).parents()
        if any(EXECUTOR in word for word in process.cmdline())
    )


def sums(folder):
    with closing(sqlite3.connect(folder / "sums.db")) as db:
        return {k: (total, n) for k, total, n in db.execute("SELECT k, total, n FROM sums")}


def attempts(folder):
    """Return by which attempt each batch was committed."""
    file = folder / "committed"
    lines = file.read_text().split() if file.exists() else []
    return dict(map(int, line.split(":")) for line in lines)


def hanging(folder, point):
    """A fault: one task of batch 2 stands still at a point until it is told to go on."""
    token = folder / "hung"
    return token, Fault(point, "hang", where={"txid": 2}, token=str(token))


@pytest.mark.parametrize("point", ["processing", "write.after"])
def test_an_executor_that_is_killed_loses_and_doubles_nothing(cluster, tmp_path, point):
    token, fault = hanging(tmp_path, point)
    with Driver(tmp_path, cluster.url, [fault]) as driver:
        pid = int(driver.reaches(token).read_text())
        executor_above(pid).kill()
        Path(f"{token}.go").touch()
        assert driver.ends() == 0, driver.said()

    assert sums(tmp_path) == SUMS


def test_a_worker_that_is_gone_leaves_its_work_to_the_others(tmp_path):
    token, fault = hanging(tmp_path, "write.before")
    with StandaloneCluster() as cluster, Driver(tmp_path, cluster.url, [fault]) as driver:
        executor = executor_above(int(driver.reaches(token).read_text()))
        (gone,) = [w for w in cluster.workers if executor in w.executors()]
        gone.kill()
        cluster.workers.append(Worker(cluster.url).start())
        Path(f"{token}.go").touch()
        assert driver.ends() == 0, driver.said()

        assert sums(tmp_path) == SUMS


def test_a_driver_whose_jvm_is_killed_says_so_and_the_next_goes_on(cluster, tmp_path):
    token, fault = hanging(tmp_path, "write.after")
    with Driver(tmp_path, cluster.url, [fault]) as driver:
        driver.reaches(token)
        driver.jvm().kill()
        Path(f"{token}.go").touch()
        assert driver.ends() not in (0, -signal.SIGKILL)

    with Driver(tmp_path, cluster.url) as driver:
        assert driver.ends() == 0, driver.said()
    assert sums(tmp_path) == SUMS


def test_an_executor_that_stands_still_is_replaced_and_what_it_writes_later_is_refused(tmp_path):
    token, fault = hanging(tmp_path, "write.before")
    settings = {"batch_timeout_secs": 8}
    with StandaloneCluster() as cluster:
        master = cluster.url
        with Driver(tmp_path, master, [fault], settings, IMPATIENT) as driver:
            pid = int(driver.reaches(token).read_text())
            executor = executor_above(pid)
            still = [executor, *executor.children(recursive=True)]
            for process in still:
                process.suspend()
            await_condition(lambda: 2 in attempts(tmp_path), 150, driver.said)
            Path(f"{token}.go").touch()
            for process in reversed(still):
                process.resume()
            assert driver.ends() == 0, driver.said()

    assert sums(tmp_path) == SUMS


def test_a_lost_shuffle_fails_the_attempt_and_no_part_of_it_is_computed_anew(cluster, tmp_path):
    """Four tasks behind the shuffle, two at a time: when two stand still, two are still to come."""
    (tmp_path / "hold").touch()
    spark = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.enabled": "false"}
    with Driver(tmp_path, cluster.url, spark=spark) as driver:
        held = lambda: [int(f.name.removeprefix("held-")) for f in tmp_path.glob("held-*")]  # noqa: E731
        await_condition(lambda: len(held()) == 2, 150, driver.said)
        executor_above(held()[0]).kill()
        (tmp_path / "go").touch()
        assert driver.ends() == 0, driver.said()

    assert attempts(tmp_path)[1] > 0
    assert sums(tmp_path) == sums_below(LARGE)


def test_lost_blocks_of_a_checkpoint_fail_the_attempt_and_it_is_replayed(cluster, tmp_path):
    """The driver stands still between the phases; what it has staged goes with the executors."""
    token, fault = hanging(tmp_path, "commit.before_record")
    with Driver(tmp_path, cluster.url, [fault]) as driver:
        driver.reaches(token)
        for executor in cluster.executors():
            executor.kill()
        Path(f"{token}.go").touch()
        assert driver.ends() == 0, driver.said()

    assert attempts(tmp_path)[2] > 0
    assert sums(tmp_path) == SUMS


def test_of_speculative_twins_of_a_commit_task_one_counts(cluster, tmp_path):
    token, fault = hanging(tmp_path, "write.before")
    spark = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        # The slow twin is not killed when the other is done: it writes later.
        "spark.python.task.killTimeout": "120s",
    }
    with Driver(tmp_path, cluster.url, [fault], spark=spark) as driver:
        driver.reaches(token)
        await_condition(lambda: 2 in attempts(tmp_path), 60, driver.said)
        Path(f"{token}.go").touch()
        assert driver.ends() == 0, driver.said()

    assert attempts(tmp_path)[2] == 0
    assert sums(tmp_path) == SUMS


def test_executors_that_come_and_go_change_nothing(cluster, tmp_path):
    spark = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    }
    with Driver(tmp_path, cluster.url, spark=spark) as driver:
        assert driver.ends() == 0, driver.said()

    assert sums(tmp_path) == SUMS


def test_executors_with_a_python_that_lacks_packages_are_refused(cluster, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare / "bin" / "python"))
    with Driver(
        tmp_path, cluster.url, spark={"spark.python.daemon.module": "pyspark.daemon"}
    ) as driver:
        assert driver.ends() == 1

        assert "the workers of this Spark cannot run Python for us" in driver.said()
        assert "set PYSPARK_PYTHON (spark.pyspark.python) to such a Python" in driver.said()
    assert not (tmp_path / "sums.db").exists()
