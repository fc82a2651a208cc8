"""Drivers on hosts of their own: one that is cut off waits or is followed, and all is exact."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.elsewhere import LEASE_S, OUTAGE_S, summed
from tests.cluster.faulty import KEYS
from tests.services.fixtures import provided
from tests.services.hosts import Network, RedisOn, ZooKeeperOn, run_on
from tests.services.servers import await_condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TAKEOVERS = 8
PROMISED_S = LEASE_S + 15


class Driver:
    """A driver's process, and what it tells."""

    def __init__(self, folder, host, zookeeper, redis, cables):
        self.name = host.name
        self.told = folder / f"{host.name}.jsonl"
        self.log = folder / f"{host.name}.log"
        self.to_zookeeper, self.to_store = cables
        self.process = run_on(
            host,
            self.log,
            *(sys.executable, "-m", "tests.cluster.elsewhere"),
            *(folder, host.name, zookeeper.address, redis.url),
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"},
        )

    def events(self, what):
        if not self.told.exists():
            return []
        found = map(json.loads, self.told.read_text().splitlines())
        return [event for event in found if event["what"] == what]

    def said(self):
        told = self.told.read_text()[-2000:] if self.told.exists() else ""
        return f"{self.name}: {told}\n{self.log.read_text(errors='replace')[-2000:]}"

    def awaits(self, is_so, timeout_s):
        def so():
            assert self.process.poll() is None, self.said()
            return is_so()

        await_condition(so, timeout_s, self.said)

    def commits_after(self, moment, timeout_s):
        """Wait for its first commit after a moment, and return when that was."""

        def after():
            return [event["at"] for event in self.events("committed") if event["at"] > moment]

        self.awaits(after, timeout_s)
        return after()[0]

    def lost_since(self, moment):
        return [event for event in self.events("lost it") if event["at"] > moment]

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def setting(tmp_path):
    """Two drivers on two hosts, ZooKeeper on a third, Redis on a fourth."""
    with ExitStack() as stack:
        network = stack.enter_context(provided("hosts", Network))
        outside, zoo, store = network.outside(), network.host("zoo"), network.host("store")
        network.cable(outside, zoo)
        network.cable(outside, store)
        zookeeper = stack.enter_context(provided("zookeeper", lambda: ZooKeeperOn(zoo)))
        redis = stack.enter_context(provided("redis", lambda: RedisOn(store)))
        drivers = []
        for name in ("drv-a", "drv-b"):
            host = network.host(name)
            cables = network.cable(host, zoo), network.cable(host, store)
            drivers.append(Driver(tmp_path, host, zookeeper, redis, cables))
            stack.callback(drivers[-1].kill)
        for driver in drivers:
            driver.awaits(lambda driver=driver: driver.events("ready"), 90)
        yield drivers, redis, tmp_path


def holder_of(drivers):
    """Return the driver that has the topology, and the other one."""

    def holder():
        last = [(d.events("took over") or [{"at": 0}])[-1]["at"] for d in drivers]
        return drivers[last.index(max(last))] if any(last) else None

    drivers[0].awaits(holder, 60)
    first = holder()
    return first, next(driver for driver in drivers if driver is not first)


def stopped(drivers, folder):
    (folder / "stop").touch()
    for driver in drivers:
        assert driver.process.wait(60) == 0, driver.said()


def assert_exact(redis):
    """All numbers from 0 on, each once: as many as there are, and their sums."""
    found = summed(redis.url)[1].multi_get(range(KEYS))
    numbers = sum(n for _, n in found)
    of = [range(k, numbers, KEYS) for k in range(KEYS)]
    assert found == [(sum(each), len(each)) for each in of]


def test_whoever_is_cut_off_from_zookeeper_is_followed_in_time(setting):
    drivers, redis, folder = setting
    took = []
    for _ in range(TAKEOVERS):
        holder, other = holder_of(drivers)
        holder.commits_after(time.time(), 30)
        cut = time.time()
        holder.to_zookeeper.pull()
        took.append(other.commits_after(cut, 60) - cut)
        # It still reaches the store: whatever it had begun must not count beside the other's.
        holder.to_zookeeper.plug()
        holder.awaits(lambda driver=holder, since=cut: driver.lost_since(since), 60)
    stopped(drivers, folder)

    print(f"takeovers, s: {', '.join(f'{s:.1f}' for s in sorted(took))}")
    assert max(took) <= PROMISED_S
    assert_exact(redis)


def test_whoever_is_cut_off_from_the_store_waits_for_it_or_is_followed(setting):
    drivers, redis, folder = setting
    holder, other = holder_of(drivers)
    holder.commits_after(time.time(), 30)
    holder.to_store.pull()
    time.sleep(5)  # shorter than it waits for a store
    holder.to_store.plug()
    holder.commits_after(time.time(), 60)
    assert not other.events("took over"), other.said()

    cut = time.time()
    holder.to_store.pull()
    other.commits_after(cut, OUTAGE_S + 60)
    holder.to_store.plug()
    stopped(drivers, folder)

    assert_exact(redis)
