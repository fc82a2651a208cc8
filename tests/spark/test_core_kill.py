"""Core topologies whose driver is killed: at least once, and no more often than it must be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.core_components import logged
from tests.spark.killing import REMOTE
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.faults import ENVIRONMENT_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]

# When a letter is stored but its message not acked; and when positions are about to be stored,
# long after a wave was over and its messages acked.
KILL = {"action": "kill"}
KILLS = [("letters.after", 1), ("positions.before", 1)]


def start(what, source, folder, remote, faults=(), **more):
    env = {
        **os.environ,
        ENVIRONMENT_VARIABLE: json.dumps(list(faults)),
        REMOTE: remote,
        **more,
    }
    with open(folder / "child.out", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.core_child", what, str(source), str(folder)],
            env=env, stdout=log, stderr=log, cwd=ROOT,
        )  # fmt: skip


def output(folder):
    return (folder / "child.out").read_text()[-3000:]


def committed(folder):
    ledger = EmbeddedStore(folder / "home", "killed").peek()
    return 0 if ledger is None else sum(ledger.positions.get("source", {}).values())


@pytest.mark.soak
def test_a_killed_driver_goes_on_from_the_acked_prefix(tmp_path, connect_server):
    remote = connect_server.url
    source = tmp_path / "in"
    source.mkdir()
    for part in range(2):
        lines = [f"{part}-{n}" for n in range(3_000)]
        lines[1_500] = f"{part}-poison" if part else "poison"
        (source / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))
    expected = {f"{part}-{n}" for part in range(2) for n in range(3_000) if n != 1_500}
    expected.add("1-poison")

    for point, nth in KILLS:
        child = start("lines", source, tmp_path, remote, [{**KILL, "point": point, "nth": nth}])
        assert child.wait(timeout=120) == -signal.SIGKILL, output(tmp_path)
    child = start("lines", source, tmp_path, remote)

    assert child.wait(timeout=120) == 0, output(tmp_path)
    found = logged(tmp_path)
    assert set(found) == expected
    # What was on the way at a kill, at most, is processed again.
    assert sum(found.values()) - len(found) <= len(KILLS) * 2 * 2_000
    letters = DeadLetters(tmp_path / "home" / "killed").all()
    assert {letter.values for letter in letters} == {("poison",)}
    # Each kill may come between a letter and the position that says it need not be read again.
    assert 1 <= len(letters) <= 1 + len(KILLS)
    assert committed(tmp_path) == sum(path.stat().st_size for path in source.iterdir())


def rabbit(rabbitmq, remote, folder, messages, kills, pending):
    import pika

    with rabbitmq.channel() as channel:
        channel.queue_declare("numbers", durable=True)
        channel.queue_purge("numbers")
        for n in range(messages):
            properties = pika.BasicProperties(message_id=str(n))
            channel.basic_publish("", "numbers", str(n).encode(), properties)
    for kill in range(kills):
        child = start("rabbit", rabbitmq.url, folder, remote, PENDING=str(pending))
        goal = messages * (kill + 1) // (kills + 1)
        wait_until(lambda g=goal: sum(logged(folder).values()) >= g, child, folder)
        child.send_signal(signal.SIGKILL)
        child.wait()
    child = start("rabbit", rabbitmq.url, folder, remote, PENDING=str(pending))
    assert child.wait(timeout=300) == 0, output(folder)
    return rabbitmq.waiting("numbers"), kills * pending


def wait_until(holds, child, folder, timeout_s=200):
    until = time.monotonic() + timeout_s
    while not holds():
        assert child.poll() is None, output(folder)
        assert time.monotonic() < until, output(folder)
        time.sleep(0.05)


def check_rabbit(rabbitmq, remote, folder, messages, kills, pending):
    left, in_flight = rabbit(rabbitmq, remote, folder, messages, kills, pending)

    found = logged(folder)
    failed = len(list(folder.glob("failed-*")))
    assert set(found) == {str(n) for n in range(messages)}
    assert left == 0
    # A message that failed was not logged then: replays alone make no duplicates.
    duplicates = sum(found.values()) - messages
    assert duplicates <= in_flight
    assert messages // 200 < failed < messages // 50
    assert list(DeadLetters(folder / "home" / "killed").all()) == []
    return duplicates, failed


@pytest.mark.services
@pytest.mark.soak
def test_rabbitmq_twenty_thousand_messages_two_kills_one_in_a_hundred_failing(
    rabbitmq, connect_server, tmp_path, capsys
):
    duplicates, failed = check_rabbit(
        rabbitmq, connect_server.url, tmp_path, messages=20_000, kills=2, pending=5_000
    )

    with capsys.disabled():
        print(f"\n20,000 messages, 2 kills, {failed} failed once, {duplicates} processed twice")
