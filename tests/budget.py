"""What each test file takes, printed at the end of a run, so that a slow newcomer is seen.

Times are those of all processes together, set-up and tear-down included. A file over its budget
is a warning, not a failure: machines differ, and so does what else they do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SHOWN = 15
SHOWN_IN_SOAK = 40

# Seconds on two idle cores, generously; without Spark, with Spark. Soaking files may take more.
FAST_S, SPARK_S, SOAK_S = 10.0, 20.0, 400.0

# Files that are worth more: what they find needs real servers, kills or many system calls.
BUDGETS_S: dict[str, float] = {
    "tests/cluster/test_everywhere.py": 600,
    "tests/cluster/test_faults.py": 660,
    "tests/docs/test_console.py": 240,
    "tests/cluster/test_hosts.py": 200,
    "tests/cluster/test_shipped.py": 200,
    "tests/semantics/test_driver_kill.py": 60,
    "tests/spark/test_sinks.py": 60,
    "tests/spark/test_states.py": 60,
    "tests/spark/test_trident_spouts.py": 60,
    "tests/spark/test_worker_faults.py": 60,
    "tests/spark/test_core.py": 50,
    "tests/spark/test_run.py": 50,
    "tests/spark/test_backends.py": 45,
    "tests/spark/test_jobs_per_batch.py": 45,
    "tests/coordination/test_zookeeper.py": 40,
    "tests/spark/test_connect.py": 45,
    "tests/spark/test_canary.py": 40,
    "tests/spark/test_core_kill.py": 40,
    "tests/spark/test_transactional_schedules.py": 40,
    "tests/spark/test_whole_topology.py": 40,
    "tests/cli/test_demo.py": 35,
    "tests/cli/test_prove.py": 45,
    "tests/cli/test_run.py": 35,
    "tests/spark/operations/test_on_error.py": 35,
    "tests/spark/test_transactional_examples.py": 35,
    "tests/state/test_cassandra.py": 35,
    "tests/contracts/test_postgres.py": 30,
    "tests/coordination/test_embedded.py": 30,
    "tests/spark/operations/test_each.py": 30,
    "tests/spark/operations/test_join.py": 30,
    "tests/spark/operations/test_windows.py": 30,
    "tests/spark/test_prepared.py": 30,
    "tests/spark/test_spouts.py": 30,
    "tests/spark/test_three_forms.py": 30,
    "tests/spark/test_transactional.py": 40,
    "tests/spark/test_kafka.py": 40,
    "tests/spouts/test_kafka.py": 30,
    "tests/state/test_kafka_rows.py": 40,
    "tests/state/test_kafka_to_kafka.py": 20,
    "tests/spouts/test_rabbitmq.py": 30,
    "tests/spouts/test_rabbitmq_streams.py": 20,
    "tests/spark/test_stream_spouts.py": 30,
    "tests/cli/test_examples.py": 25,
    "tests/contracts/test_cassandra.py": 20,
    "tests/contracts/test_redis.py": 20,
    "tests/semantics/test_simulation.py": 30,
    "tests/semantics/test_transactional_simulation.py": 30,
    "tests/semantics/test_drawn_topologies.py": 30,
    "tests/semantics/test_drawn_topologies_more.py": 25,
    "tests/semantics/test_transactional_crash_points.py": 20,
    "tests/semantics/test_copies.py": 20,
    "tests/coordination/test_commands.py": 15,
    "tests/spark/test_service.py": 60,
    "tests/spark/test_transactional_states.py": 50,
    "tests/test_tls.py": 20,
    "tests/state/test_postgres_faults.py": 20,
    "tests/state/test_redis_combining.py": 20,
    "tests/trident/test_event_windows_crashes.py": 15,
    "tests/trident/test_windows_crashes.py": 20,
    "tests/trident/test_deduplicate_crashes.py": 20,
    "tests/contracts/test_backing_map.py": 15,
    "tests/coordination/test_outages.py": 15,
    "tests/contracts/test_file_state.py": 15,
    "tests/semantics/test_letters.py": 15,
    "tests/state/test_file_faults.py": 15,
    "tests/state/test_postgres.py": 15,
    "tests/state/test_sqlite_faults.py": 15,
    "tests/testing/test_conformance.py": 15,
    "tests/services/test_rabbitmq.py": 12,
    "tests/services/test_servers.py": 12,
}

# Which files take long in soak, and so begin early: else the last one is waited for alone.
SOAKS_S: dict[str, float] = {
    "tests/contracts/test_kafka.py": 350,
    "tests/semantics/test_drawn_topologies.py": 260,
    "tests/semantics/test_trees.py": 260,
    "tests/contracts/test_cassandra.py": 220,
    "tests/lake/test_kills.py": 210,
    "tests/contracts/test_postgres.py": 200,
    "tests/semantics/test_drawn_topologies_more.py": 170,
    "tests/contracts/test_redis.py": 155,
    "tests/trident/test_windows_crashes.py": 145,
    "tests/state/test_file_faults.py": 130,
    "tests/semantics/test_transactional_crash_points.py": 220,
    "tests/coordination/test_embedded.py": 170,
    "tests/state/test_kafka_to_kafka.py": 170,
    "tests/semantics/test_transactional_simulation.py": 150,
    "tests/semantics/test_simulation.py": 140,
    "tests/semantics/test_drpc_reads.py": 130,
    "tests/lake/test_races.py": 110,
    "tests/spark/test_backends.py": 400,
    "tests/spark/test_kafka_storm.py": 400,
    "tests/spark/test_sinks.py": 370,
    "tests/semantics/test_driver_kill.py": 360,
    "tests/cli/test_prove.py": 270,
    "tests/spark/test_transactional_states.py": 250,
    "tests/spark/test_core_soak.py": 215,
    "tests/spark/test_service.py": 190,
    "tests/spark/test_transactional_schedules.py": 135,
    "tests/drpc/test_hunt.py": 130,
    "tests/spark/test_lake.py": 130,
    "tests/spark/test_whole_topology.py": 105,
    "tests/spark/test_transactional_drivers.py": 100,
    "tests/spark/test_core_kill.py": 90,
    "tests/spark/operations/test_on_error.py": 80,
    "tests/cli/test_run.py": 70,
    "tests/spark/test_rows.py": 40,
}

SLOW_SERVERS = ("cassandra", "kafka", "rabbitmq", "zookeeper")


class Budget:
    """Sums up the time of each file; with xdist, in the process that prints."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self.longest: dict[str, tuple[float, str]] = {}
        self.spark: set[str] = set()
        self.soak: set[str] = set()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = Path(report.nodeid.partition("::")[0]).as_posix()
        self.spent[name] += report.duration
        self.counts[name] += report.when == "call"
        test = (report.duration, report.nodeid.partition("::")[2])
        self.longest[name] = max(test, self.longest.get(name, test))
        if "spark" in report.keywords:
            self.spark.add(name)
        if "soak" in report.keywords:
            self.soak.add(name)

    def of(self, name: str) -> float:
        """Return the budget of a file."""
        if name in self.soak:
            return SOAK_S
        return BUDGETS_S.get(name, SPARK_S if name in self.spark else FAST_S)

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown = SHOWN_IN_SOAK if self.soak else SHOWN
        slowest = sorted(self.spent, key=lambda name: -self.spent[name])[:shown]
        over = [name for name in self.spent if self.spent[name] > self.of(name)]
        if len(self.spent) < 2 and not over:
            return
        terminalreporter.section("time by file")
        total = sum(self.spent.values())
        terminalreporter.write_line(f"{total:7.1f} s in {len(self.spent)} files; the slowest:")
        for name in slowest:
            line = f"{self.spent[name]:7.1f} s of {self.of(name):4.0f}  {name}"
            terminalreporter.write_line(f"{line} ({self.counts[name]} tests)")
        for name in sorted(over, key=lambda name: -self.spent[name]):
            terminalreporter.write_line(
                f"OVER BUDGET: {name} took {self.spent[name]:.0f} s, "
                f"{self.of(name):.0f} s at most: make it cheaper, or give it a budget of its own "
                "in tests/budget.py. "
                f"{self.longest[name][0]:.0f} s were {self.longest[name][1]}",
                yellow=True,
                bold=True,
            )


class ByServer(LoadFileScheduling):
    """Files go to processes whole, and all those to one that need a server slow to start.

    Two files are too long for that: in one each kind of Spark is a share, in the other each test.
    """

    def _split_scope(self, nodeid: str) -> str:
        name, _, test = nodeid.partition("::")
        if name == "tests/cluster/test_everywhere.py":
            engine = test.partition("[")[2].partition("-")[0]
            return f"{name}[{engine}"
        if name == "tests/cluster/test_faults.py":
            return nodeid
        return next((server for server in SLOW_SERVERS if server in name), name)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files: one that comes last would have a core to itself."""
    in_soak = os.environ.get("WATERSPOUT_TEST_PROFILE") == "soak"
    known = BUDGETS_S | SOAKS_S if in_soak else BUDGETS_S
    items.sort(key=lambda item: -known.get(item.nodeid.partition("::")[0], 0.0))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in a process of xdist, which prints nothing
        config.pluginmanager.register(Budget(), "waterspout-budget")
