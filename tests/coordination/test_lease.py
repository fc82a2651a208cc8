"""Who may take a topology over, and when: by the holder's life and a clock nobody can set."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordination.drivers import FINGERPRINT, TOPOLOGY, Driver, ledger_at
from tests.soaking import soaked
from waterspout import Config
from waterspout.coordination import embedded, lease
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.factory import make_way
from waterspout.coordination.lease import Lease, Process, boot_clock, may_take_over, this_process
from waterspout.coordination.stopped import HolderNote, end_if_stopped, writers_of
from waterspout.coordination.store import acquire_when_free
from waterspout.errors import DamagedStoreError, LeaseHeldError, LeaseLostError, StoreError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="without /proc a process has no start time"
)

ME = this_process()
ELSEWHERE = Process("far-away", "another-boot", 4711, "99", "pid:[1]")


def held_by(holder: Process | None, *, renewed: float = 100.0) -> Lease:
    return Lease(epoch=3, holder=holder, renewed=renewed, duration_s=10.0)


@pytest.fixture
def driver(home):
    with Driver(home) as process:
        assert process.ask("acquire")["value"] == 1
        assert "error" not in process.ask("save 2")
        yield process


@pytest.fixture
def store(home):
    store = EmbeddedStore(home, TOPOLOGY)
    yield store
    store.release()


def late(home: Path) -> EmbeddedStore:
    """A store for which every lease has run out."""
    return EmbeddedStore(home, TOPOLOGY, clock=lambda: boot_clock() + 1000)


def refusal(store: EmbeddedStore) -> str:
    with pytest.raises(LeaseHeldError) as held:
        store.acquire(FINGERPRINT)
    return str(held.value)


def test_a_process_knows_that_it_is_alive():
    assert ME.is_alive() is True
    assert ME.host == socket.gethostname()
    assert ME.pid == os.getpid()


def test_a_lease_without_holder_is_free():
    assert may_take_over(held_by(None), 0.0) is None


def test_a_live_holder_is_not_taken_over_while_it_renews():
    assert may_take_over(held_by(ME), 109.9) == f"process {ME.pid} on host {ME.host} runs it now"


def test_a_live_holder_that_did_not_renew_in_time_is_taken_over():
    assert may_take_over(held_by(ME), 110.0) is None


def test_the_time_that_counts_is_the_one_the_holder_promised():
    patient = replace(held_by(ME), duration_s=500.0)

    assert may_take_over(patient, 599.9) is not None
    assert may_take_over(patient, 600.0) is None


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_a_killed_holder_is_taken_over_at_once(driver, store, reap):
    driver.kill(reap=reap)

    assert store.acquire(FINGERPRINT) == 2
    assert store.load() == ledger_at(2)


def test_a_live_holder_in_another_process_is_refused_at_once_with_its_pid_and_host(driver, store):
    text = refusal(store)

    assert f"process {driver.pid} on host {socket.gethostname()} runs it now" in text
    assert f"topology {TOPOLOGY!r} is taken" in text


def test_a_refused_driver_changes_nothing(driver, store):
    before = (store.folder / "coordination.db").read_bytes()

    refusal(store)

    assert (store.folder / "coordination.db").read_bytes() == before
    assert driver.ask("save 3") == {"order": "save 3", "value": None}


def test_a_second_store_in_the_same_process_is_refused_too(home, store):
    store.acquire(FINGERPRINT)

    assert f"process {os.getpid()} " in refusal(EmbeddedStore(home, TOPOLOGY))


def test_a_later_process_with_the_pid_of_the_holder_is_not_the_holder():
    reused = replace(ME, started=str(int(ME.started) - 1))

    assert reused.is_alive() is False
    assert may_take_over(held_by(reused), 100.0) is None


def test_a_pid_that_nobody_has_is_dead():
    unused = int(Path("/proc/sys/kernel/pid_max").read_text())

    assert replace(ME, pid=unused).is_alive() is False


@pytest.mark.parametrize(
    "name", [soaked(b"\xff\xfe"), b"a) S 1 (", soaked(b") Z 0 0"), soaked(b"\xc3")], ids=repr
)
def test_a_holder_may_have_any_process_name(home, store, name):
    with Driver(home) as driver:
        driver.ask(f"name {name.hex()}")

        assert driver.ask("acquire") == {"order": "acquire", "value": 1}
        assert f"process {driver.pid} " in refusal(store)


def test_a_holder_of_another_boot_under_our_host_name_may_live_on_another_machine():
    # This machine before its last start, or a second machine of that name: it cannot be told.
    namesake = replace(ME, boot="another boot")

    assert namesake.is_alive() is None
    for renewed in (100.0, 1e12):
        assert "cannot be seen from here" in may_take_over(held_by(namesake, renewed=renewed), 1e9)
    watched = held_by(namesake).watched_from(ME.boot, 5000.0)
    assert may_take_over(watched, 5009.9) is not None
    assert may_take_over(watched, 5010.0) is None


def test_a_holder_under_another_host_name_of_this_boot_is_judged_by_the_clock_alone():
    container = replace(ME, host="container-7")

    assert container.is_alive() is None
    assert "cannot be seen from here" in may_take_over(held_by(container), 109.9)
    assert may_take_over(held_by(container), 110.0) is None


def test_a_holder_in_another_pid_namespace_is_not_mistaken_for_dead():
    # Two containers that share host name and volume: here, its pid is nobody's or another's.
    container = replace(ME, namespace="pid:[4026539999]", started="1")

    assert container.is_alive() is None
    assert may_take_over(held_by(container), 109.9) is not None
    assert may_take_over(held_by(container), 110.0) is None


def test_a_holder_on_another_machine_is_never_judged_by_its_own_clock():
    assert may_take_over(held_by(ELSEWHERE, renewed=100.0), 1e12) is not None
    assert may_take_over(held_by(ELSEWHERE, renewed=1e12), 1.0) is not None


def test_a_holder_on_another_machine_is_taken_over_when_it_was_seen_silent_for_its_time():
    watched = held_by(ELSEWHERE).watched_from(ME.boot, 5000.0)

    assert may_take_over(watched, 5009.9) is not None
    assert may_take_over(watched, 5010.0) is None


def test_what_a_third_machine_has_watched_does_not_count_here():
    watched = held_by(ELSEWHERE).watched_from("a third boot", 0.0)

    assert may_take_over(watched, 1e12) is not None
    assert dict(watched.watched_from(ME.boot, 7.0).watched) == {"a third boot": 0.0, ME.boot: 7.0}


def test_watching_starts_when_a_lease_is_seen_first():
    watched = held_by(ELSEWHERE).watched_from(ME.boot, 5.0)

    assert watched.watched_from(ME.boot, 9.0) == watched


@pytest.mark.parametrize("holder", [None, ME], ids=["nobody", "a holder of this boot"])
def test_only_a_holder_with_another_clock_needs_watching(holder):
    assert held_by(holder).watched_from(ME.boot, 5.0) == held_by(holder)


def test_a_driver_gone_with_its_machine_is_taken_over_by_the_second_try(home, monkeypatch):
    now = [1000.0]
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "this_process", lambda: ELSEWHERE)
        gone = EmbeddedStore(home, TOPOLOGY, clock=lambda: 77.0)
        gone.acquire(FINGERPRINT)

    store = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])
    assert "process 4711 on host far-away held it last" in refusal(store)
    now[0] = 1009.9
    assert "wait 10 s" in refusal(EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0]))
    now[0] = 1010.0

    assert store.acquire(FINGERPRINT) == 2
    gone.release()
    store.release()


def test_after_a_reboot_the_next_driver_waits_for_the_lease_and_says_so(home, monkeypatch, caplog):
    now = [1000.0]
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "this_process", lambda: replace(ME, boot="the boot before"))
        EmbeddedStore(home, TOPOLOGY, clock=lambda: 77.0).acquire(FINGERPRINT)
    store = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])

    epoch = acquire_when_free(
        store, FINGERPRINT, clock=lambda: now[0], pause=lambda s: now.append(now.pop() + s)
    )

    assert (epoch, now) == (2, [1010.0])
    assert [record.message[:22] for record in caplog.records] == ["waiting up to 10 s, be"]
    store.release()


def test_a_namesake_that_renews_is_not_waited_for_longer_than_its_lease(home, monkeypatch):
    now = [1000.0]
    far = EmbeddedStore(home, TOPOLOGY, clock=lambda: 77.0)
    near = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])

    def renew_and_pause(seconds):
        now[0] += seconds
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "this_process", lambda: replace(ME, boot="another boot"))
            far.renew()

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "this_process", lambda: replace(ME, boot="another boot"))
        far.acquire(FINGERPRINT)

    with pytest.raises(LeaseHeldError, match="held it last"):
        acquire_when_free(near, FINGERPRINT, clock=lambda: now[0], pause=renew_and_pause)

    assert now == [1011.0]
    far.release()


def test_a_driver_that_is_seen_at_work_is_refused_without_a_wait(driver, store):
    def pause(seconds):
        raise AssertionError("nobody must wait for a driver that runs")

    with pytest.raises(LeaseHeldError, match="runs it now"):
        acquire_when_free(store, FINGERPRINT, pause=pause)


def test_a_driver_on_another_machine_that_renews_is_not_taken_over(home, monkeypatch):
    now = [1000.0]
    far = EmbeddedStore(home, TOPOLOGY, clock=lambda: 77.0)
    near = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "this_process", lambda: ELSEWHERE)
        far.acquire(FINGERPRINT)

    for _ in range(5):
        assert "held it last" in refusal(near)
        now[0] += 1000.0
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "this_process", lambda: ELSEWHERE)
            far.renew()

    far.save(ledger_at(1))
    assert near.peek() == ledger_at(1)
    far.release()


def test_a_paused_driver_is_refused_as_a_rival_until_its_lease_runs_out(driver, home):
    driver.pause()
    now = boot_clock()
    store = EmbeddedStore(home, TOPOLOGY, clock=lambda: now + 50)

    assert f"process {driver.pid} " in refusal(store)


def test_a_paused_driver_is_taken_over_after_its_time_and_can_then_no_longer_write(driver, home):
    driver.pause()
    store = EmbeddedStore(home, TOPOLOGY, clock=lambda: boot_clock() + 61)
    assert store.acquire(FINGERPRINT) == 2
    store.save(ledger_at(3))
    content = (store.folder / "coordination.db").read_bytes()
    driver.resume()

    for order in ("save 4", "renew"):
        answer = driver.ask(order)
        assert answer["error"] == "LeaseLostError"
        assert f"process {os.getpid()} on {socket.gethostname()}" in answer["message"]
        assert "epoch 2, ours was 1" in answer["message"]
    assert driver.ask("release") == {"order": "release", "value": None}
    assert driver.ask("save 4")["error"] == "LeaseLostError"

    assert (store.folder / "coordination.db").read_bytes() == content
    assert store.load() == ledger_at(3)
    store.renew()
    store.release()


def test_a_driver_that_missed_its_time_but_was_not_taken_over_goes_on(home):
    now = [0.0]
    store = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0], lease_s=10.0)
    store.acquire(FINGERPRINT)
    now[0] = 1000.0

    store.save(ledger_at(1))
    store.renew()

    assert f"process {os.getpid()} " in refusal(EmbeddedStore(home, TOPOLOGY, clock=lambda: 1009.9))
    store.release()


def test_a_driver_paused_in_the_middle_of_a_write_is_named_as_the_obstacle(
    driver, store, monkeypatch
):
    monkeypatch.setattr(embedded, "_BUSY_S", 0.05)
    driver.ask("begin")
    driver.pause()

    with pytest.raises(
        StoreError, match=rf"process {driver.pid} is stopped .*kill -9 {driver.pid}"
    ):
        store.acquire(FINGERPRINT)
    driver.kill()

    assert store.acquire(FINGERPRINT) == 2
    assert store.load() == ledger_at(2)


@pytest.mark.parametrize("place", ["begin", "half"])
def test_a_driver_that_stands_still_in_the_middle_of_a_write_is_ended_by_its_successor(
    driver, home, place, monkeypatch
):
    driver.ask(place)
    driver.pause()
    with monkeypatch.context() as impatient:
        impatient.setattr(embedded, "_BUSY_S", 0.05)
        with pytest.raises(StoreError, match=rf"process {driver.pid} is stopped"):
            # In the middle of the second nobody can even read.
            late(home).peek() if place == "half" else late(home).acquire(FINGERPRINT)
    conf = Config(home=home, lease_secs=0.3)
    began = time.monotonic()

    make_way(TOPOLOGY, conf)
    store = EmbeddedStore(home, TOPOLOGY)

    assert time.monotonic() - began >= 0.3
    assert store.peek() == ledger_at(2)
    assert store.acquire(FINGERPRINT) == 2
    store.save(ledger_at(3))
    assert driver.returncode == -signal.SIGKILL
    store.release()


def test_a_driver_that_goes_on_in_time_is_left_alone(driver, home):
    driver.ask("begin")
    driver.pause()
    note, path = HolderNote(home / TOPOLOGY / "holder"), home / TOPOLOGY / "coordination.db"

    ended = end_if_stopped(path, note.read(), 0.3, pause=lambda _: driver.resume())

    assert not ended
    assert driver.ask("current")["value"] == ledger_at(2).current


def test_nobody_else_is_ended(driver, home):
    """Not one that works, that only stands still, or that is not the one who has the lease."""
    note, path = HolderNote(home / TOPOLOGY / "holder"), home / TOPOLOGY / "coordination.db"
    holder = note.read()
    assert holder is not None
    assert (holder.pid, writers_of(path)) == (driver.pid, [])

    assert not end_if_stopped(path, holder, 0.0)
    driver.pause()
    assert not end_if_stopped(path, holder, 0.0), "it keeps nobody from writing"
    driver.resume()
    driver.ask("begin")
    assert not end_if_stopped(path, holder, 0.0), "it works"
    driver.pause()
    assert writers_of(path) == [driver.pid]
    others = (None, replace(holder, started="1"), replace(holder, boot="x"), this_process())
    assert not any(end_if_stopped(path, other, 0.0) for other in others)
    driver.resume()

    assert driver.ask("current")["value"] == ledger_at(2).current


def test_a_released_lease_is_free_at_once_for_anybody(driver, store):
    driver.ask("release")

    assert store.acquire(FINGERPRINT) == 2


def test_epochs_only_rise(home):
    epochs = []
    for _ in range(5):
        store = EmbeddedStore(home, TOPOLOGY)
        epochs.append(store.acquire(FINGERPRINT))
        store.release()

    assert epochs == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("jump_s", [soaked(-315_360_000), -3600, soaked(3600), 315_360_000])
def test_a_jump_of_the_wall_clock_changes_nothing(driver, store, monkeypatch, jump_s):
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + jump_s * 10**9)

    assert this_process() == ME
    assert f"process {driver.pid} " in refusal(store)
    driver.kill()
    assert store.acquire(FINGERPRINT) == 2


def test_the_clock_goes_on_while_the_machine_sleeps(monkeypatch):
    asked = []
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked.append(clock) or 12.5)

    assert lease.boot_clock() == 12.5
    assert asked == [time.CLOCK_BOOTTIME]


def test_a_lease_survives_its_json_form():
    for found in (held_by(None), held_by(ME), held_by(ELSEWHERE).watched_from(ME.boot, 1.25)):
        assert Lease.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "change",
    [{"epoch": None}, {"holder": 7}, {"holder": {"host": "x"}}, {"renewed": None}, {"extra": 1}],
    ids=repr,
)
def test_an_odd_lease_is_damage(change):
    document = {**held_by(ME).to_json(), **change}
    document = {key: value for key, value in document.items() if value is not None}

    with pytest.raises(DamagedStoreError):
        Lease.from_json(document)


def test_a_lost_lease_is_noticed_by_renewing_alone(home):
    now = [0.0]
    first = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])
    first.acquire(FINGERPRINT)
    now[0] = 10.0
    second = EmbeddedStore(home, TOPOLOGY, clock=lambda: now[0])
    second.acquire(FINGERPRINT)

    with pytest.raises(LeaseLostError):
        first.renew()

    first.release()
    second.release()
