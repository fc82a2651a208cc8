"""The store in ZooKeeper: one holder, one ledger, whatever happens to the network."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import sqlite3
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from tests.coordination.commanded import until
from tests.coordination.drivers import (
    FINGERPRINT,
    TOPOLOGY,
    ledger_at,
    metadata,
    realistic_ledger,
)
from tests.coordination.zookeeper_driver import ZooKeeperDriver
from tests.semantics.simulation import Watcher, _check_end
from tests.semantics.test_crash_points import CONFIG, CrashAt, fixed_world
from tests.services.servers import await_condition
from tests.soaking import stepped
from waterspout import Config, faults
from waterspout.coordination import zookeeper, zookeeper_records
from waterspout.coordination.commit_protocol import CommitProtocol
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.events import ServiceAway
from waterspout.coordination.factory import ZOOKEEPER_AUTH
from waterspout.coordination.lease import this_process
from waterspout.coordination.preflight import prepare
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.coordination.zookeeper import ZooKeeperStore
from waterspout.coordination.zookeeper_records import Home, Owner, pack, unpack
from waterspout.coordination.zookeeper_session import Address, check_root
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    ForeignStoreError,
    LeaseHeldError,
    LeaseLostError,
    MissingDependencyError,
    NewerFormatError,
    StateMismatchError,
    StoreError,
    TopologyError,
)
from waterspout.spouts._base import SpoutKind
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState, StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash
from waterspout.testing._proxy import FaultProxy
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import EmittedBatch, Ledger
from waterspout.trident import Count, TridentTopology

FIRST = TransactionAttempt(1, 0)
# The server takes 0.4 to 4 s; the short one is for sessions that are meant to end.
LONG_S, SHORT_S = 6.0, 2.5


@pytest.fixture
def root(zookeeper_server):
    return zookeeper_server.fresh_root()


@pytest.fixture
def new_store(zookeeper_server, root):
    """Make stores of one root; all are released at the end."""
    stores = []

    def make(topology=TOPOLOGY, **options):
        chosen = {"root": root, "session_s": LONG_S, "operation_s": 10.0, **options}
        place = chosen.pop("place", zookeeper_server.address)
        stores.append(ZooKeeperStore([place], topology, **chosen))
        return stores[-1]

    yield make
    for store in stores:
        store.release()


@pytest.fixture
def store(new_store):
    return new_store()


@pytest.fixture
def stored(store):
    """A store that was used and given up."""
    store.acquire(FINGERPRINT)
    store.save(realistic_ledger())
    store.release()
    return store


@pytest.fixture
def zk(zookeeper_server):
    """A client that may do anything, as an administrator would."""
    client = KazooClient(zookeeper_server.address, timeout=LONG_S)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def proxy(zookeeper_server):
    with FaultProxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        yield proxy


@pytest.fixture
def through(new_store, proxy):
    """Make stores that are connected through the proxy."""
    return lambda **options: new_store(place=f"127.0.0.1:{proxy.port}", **options)


@pytest.fixture
def new_driver(zookeeper_server, root):
    @contextmanager
    def make(session_s=LONG_S):
        with ZooKeeperDriver(zookeeper_server.address, root, session_s=session_s) as driver:
            yield driver

    return make


def unnamed(ledger: Ledger | None) -> Ledger | None:
    """The ledger without the random name that no two have in common."""
    assert ledger is None or ledger.history
    return ledger and replace(ledger, history="")


def refusal(store: ZooKeeperStore) -> str:
    with pytest.raises(LeaseHeldError) as held:
        store.acquire(FINGERPRINT)
    return str(held.value)


def refused(store: ZooKeeperStore, error: type[Exception]) -> str:
    """Have every way into the store refused with this very error; return what it says."""
    texts = set()
    for way in (store.peek, store.load, lambda: store.acquire(FINGERPRINT)):
        with pytest.raises(error) as refusal:
            way()
        assert type(refusal.value) is error
        texts.add(str(refusal.value))
    return texts.pop()


def content(zk, root: str, topology: str = TOPOLOGY) -> dict[str, tuple[bytes, int]]:
    """All that is stored for a topology, with the versions."""
    node = f"{root}/{topology}"
    paths = [node, *(f"{node}/{name}" for name in zk.get_children(node))]
    return {path: (data, stat.version) for path in paths for data, stat in [zk.get(path)]}


def expire(store: ZooKeeperStore, address: str) -> None:
    """End the session of a store, as a server does that has not heard from it.

    Both requests go in one packet. A client would wait for the answer to the first, and meanwhile
    the store, which the server turns out for the newcomer, comes back and turns out the newcomer.
    """
    session, password = store._session._client.client_id
    greeting = struct.pack("!iqiqi16s?", 0, 0, int(LONG_S * 1000), session, 16, password, False)
    farewell = struct.pack("!ii", 1, -11)
    packet = b"".join(struct.pack("!i", len(part)) + part for part in (greeting, farewell))
    host, port = address.split(":")
    for _ in range(100):
        with socket.create_connection((host, int(port)), timeout=LONG_S) as twin:
            twin.sendall(packet)
            with suppress(ConnectionError):
                answer = b"".join(iter(lambda: twin.recv(1024), b""))
                # Length, version, how long it lasts: nothing, where there is no such session.
                if answer[8:12] == bytes(4):
                    return
    raise AssertionError("the session was taken back again and again")


# What every coordination store does.


def test_the_first_run_finds_a_fresh_ledger(store):
    assert store.peek() is None
    assert store.acquire(FINGERPRINT) == 1
    assert unnamed(store.load()) == Ledger(TOPOLOGY, FINGERPRINT)


def test_load_gives_what_was_saved_last(store):
    store.acquire(FINGERPRINT)
    for ledger in (ledger_at(1), realistic_ledger(), ledger_at(3)):
        store.save(ledger)
        assert store.load() == store.peek() == ledger


def test_the_next_run_goes_on_with_a_higher_epoch_and_the_same_ledger(stored, new_store):
    again = new_store()

    assert again.peek() == realistic_ledger()
    assert again.acquire(FINGERPRINT) == 2
    assert again.load() == realistic_ledger()


def test_epochs_only_rise(store):
    epochs = []
    for _ in range(5):
        epochs.append(store.acquire(FINGERPRINT))
        store.release()

    assert epochs == [1, 2, 3, 4, 5]


def test_the_ledger_shares_nothing_with_the_caller(store):
    store.acquire(FINGERPRINT)
    given = {"s": [(0, 1)]}
    store.save(store.load().emit(FIRST, given))

    given["s"].append((2, 3))

    assert store.load().emitted == {1: EmittedBatch(0, {"s": [[0, 1]]})}


def test_metadata_of_any_text_comes_back_as_it_was(store):
    store.acquire(FINGERPRINT)
    odd = {"s": {"ünïcödé ☃": ["\0", "\ud800", "\n", 1e300, -0.0]}}
    ledger = store.load().emit(FIRST, {**odd, **metadata(1)})

    store.save(ledger)

    assert store.load() == ledger


def test_a_save_that_cannot_be_json_changes_nothing(store):
    store.acquire(FINGERPRINT)

    with pytest.raises(TypeError):
        store.save(store.load().emit(FIRST, {"s": object()}))

    store.save(ledger_at(1))
    assert store.load() == ledger_at(1)


def test_a_committed_batch_can_be_looked_up(store):
    store.acquire(FINGERPRINT)
    store.save(ledger_at(3))

    assert store.batch(3) == (0, metadata(3))
    assert store.batch(2) == (0, metadata(2))
    assert store.batch(1) is None


def test_peek_creates_nothing(store, zk, root):
    assert store.peek() is None
    store.refuse_if_held()

    assert zk.exists(root) is None


def test_a_topology_does_not_see_its_neighbour(stored, new_store):
    other = new_store("other")

    assert other.peek() is None
    assert other.acquire({}) == 1
    other.save(Ledger("other", {}).emit(FIRST, {"s": 1}))

    assert stored.peek() == realistic_ledger()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spouts": {"sentences": "opaque"}}, "Spouts had sentences transactional and has opaque"),
        ({"states": None}, "States is not in the topology any more."),
        ({"partitions": 4}, "Partitions was not there, and is 4 now."),
    ],
)
def test_a_changed_graph_is_refused_by_name_and_nothing_changes(stored, zk, root, change, told):
    given = {key: value for key, value in {**FINGERPRINT, **change}.items() if value is not None}
    before = content(zk, root)

    with pytest.raises(ForeignStoreError) as refusal:
        stored.acquire(given)

    assert told in str(refusal.value)
    assert content(zk, root) == before


def test_a_graph_is_compared_as_it_reads_back_from_json(store):
    store.acquire({"keys": ("word", "day"), "n": {1: "a"}})
    store.release()

    assert store.acquire({"keys": ["word", "day"], "n": {"1": "a"}}) == 2


def test_a_store_that_holds_no_lease_writes_nothing(stored, zk, root):
    before = content(zk, root)

    for write in (lambda: stored.save(ledger_at(1)), stored.renew):
        with pytest.raises(LeaseLostError, match="is not held by this driver"):
            write()

    assert content(zk, root) == before
    assert stored._session is None


def test_release_may_be_called_twice_and_without_acquire(store):
    store.release()
    store.acquire(FINGERPRINT)
    store.release()
    store.release()

    assert store.acquire(FINGERPRINT) == 2


def test_only_the_holder_stays_connected_and_nothing_is_left_of_it(store, new_store):
    before = threading.active_count()
    other = new_store()
    store.acquire(FINGERPRINT)

    other.peek()
    refusal(other)

    assert other._session is None
    store.release()
    assert threading.active_count() == before


def test_saves_and_renewals_from_two_threads_do_not_disturb_each_other(store, new_store):
    store.acquire(FINGERPRINT)
    done = threading.Event()
    seen: list[int] = []

    def renew() -> None:
        while not done.is_set():
            store.renew()

    def look() -> None:
        while not done.is_set():
            found = new_store().peek()
            assert replace(found, history="") == ledger_at(found.current - 1)
            seen.append(found.current)

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(renew), pool.submit(look)]
        for step in range(1, 30):
            store.save(ledger_at(step))
        done.set()
        for other in others:
            other.result()

    assert seen
    assert seen == sorted(seen)


# Where it is kept, and how.


def test_the_layout_is_four_nodes(store, zk, root):
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))

    node = f"{root}/{TOPOLOGY}"
    (lease,) = set(zk.get_children(node)) - {"ledger", "settled"}
    owner = Owner.from_bytes(zk.get(node)[0], node)
    assert lease == f"lease-{owner.lease}"
    assert (owner.epoch, owner.holder, owner.session_s) == (1, this_process(), LONG_S)
    data, stat = zk.get(f"{node}/{lease}")
    assert data == zk.get(node)[0]
    assert stat.ephemeralOwner == store._session.session_id
    assert unpack("ledger", zk.get(f"{node}/ledger")[0], "x") == ledger_at(1).to_json()

    store.release()

    assert sorted(zk.get_children(node)) == ["ledger", "settled"]


def test_a_note_that_all_have_settled_is_sent_and_read_with_the_ledger(store, new_store):
    store.acquire(FINGERPRINT)
    ledger = replace(ledger_at(3), history=store.load().history)
    store.save(ledger)
    assert not store.peek().settled

    store.note(ledger.settle())
    await_condition(lambda: store.peek() == ledger.settle(), 20)

    store.release()
    assert new_store().peek() == ledger.settle()
    later = new_store()
    later.acquire(FINGERPRINT)
    later.save(replace(ledger, committed_attempt=7))
    assert not later.peek().settled


@pytest.mark.parametrize("from_before", [False, True])
def test_a_note_is_kept_though_the_session_ends_at_once(new_store, zk, from_before):
    """It is one request, and the end of the session comes after it."""
    for name in (f"{TOPOLOGY}-{n}" for n in range(10)):
        store = new_store(name)
        store.acquire(FINGERPRINT)
        if from_before:  # a topology that ran before there was a node for the note at once
            store.release()
            zk.delete(store._settled_path)
            store.acquire(FINGERPRINT)
        ledger = replace(ledger_at(3), topology=name, history=store.load().history)
        store.save(ledger)
        store.note(ledger.settle())
        store.release()

        assert new_store(name).peek() == ledger.settle()


def test_a_driver_without_the_lease_notes_nothing(stored):
    with pytest.raises(LeaseLostError):
        stored.note(realistic_ledger().settle())


def test_a_store_stays_small_over_many_batches(store, zk, root):
    store.acquire(FINGERPRINT)
    ledger, sizes = store.load(), []

    for txid in range(1, 301):
        attempt = TransactionAttempt(txid, 0)
        ledger = ledger.emit(attempt, metadata(txid)).begin(attempt).commit(attempt)
        store.save(ledger)
        if txid % 100 == 0:
            sizes.append(sum(len(data) for data, _ in content(zk, root).values()))

    assert store.load() == ledger
    assert max(sizes) < 4000
    assert len(content(zk, root)) == 4


def test_a_small_ledger_can_be_read_by_people_and_a_large_one_is_compressed():
    small = pack("ledger", ledger_at(0).to_json())
    large = pack("ledger", realistic_ledger().to_json())

    assert b'"coding":"plain"' in small
    assert json.loads(small.splitlines()[1])["topology"] == TOPOLOGY
    assert b'"coding":"zlib"' in large
    assert len(large) < len(json.dumps(realistic_ledger().to_json())) / 4


def test_a_ledger_that_is_too_large_is_refused_with_its_remedy_and_the_old_one_stays(store):
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))
    dice = random.Random(1)
    names = [dice.randbytes(20).hex() for _ in range(50_000)]

    with pytest.raises(StoreError, match=r"bytes, compressed.*Nothing was stored.*max_files"):
        store.save(ledger_at(1).emit(TransactionAttempt(2, 0), {"files": names}))

    assert store.load() == ledger_at(1)
    store.save(ledger_at(2))


def test_a_ledger_just_below_the_limit_is_taken(store):
    store.acquire(FINGERPRINT)
    dice = random.Random(1)
    names = [dice.randbytes(20).hex() for _ in range(41_000)]
    ledger = ledger_at(1).emit(TransactionAttempt(2, 0), {"files": names})
    assert 960_000 < len(pack("ledger", ledger.to_json())) < 1_000_000

    store.save(ledger)

    assert store.load() == ledger


@pytest.mark.parametrize("topology", ["", ".", "..", "a/b", "a\0b", "a b", "é"])
def test_an_id_that_is_no_node_name_is_refused(topology):
    with pytest.raises(TopologyError, match="cannot be an id"):
        ZooKeeperStore(["x"], topology)


@pytest.mark.parametrize("root", ["", "a", "//", "/a//b", "/a/../b", "/a/.", "/a\0", "/zookeeper"])
def test_a_root_that_is_no_path_is_refused(root):
    with pytest.raises(ConfigError):
        check_root(root, "t")


def test_a_root_may_be_the_root_of_all_or_deep_below():
    assert check_root("/", "t") == "/t"
    assert check_root("/a/b/", "t") == "/a/b/t"
    with pytest.raises(ConfigError, match="ZooKeeper's own"):
        check_root("/", "zookeeper")


def test_servers_are_given_with_or_without_a_port():
    servers = ["one", "two:3", "::1", "[::2]", "[::3]:4"]

    assert Address(servers, 2181).hosts == "one:2181,two:3,[::1]:2181,[::2]:2181,[::3]:4"


@pytest.mark.parametrize(
    "servers",
    ["host", [], [""], [":1"], ["a:b"], ["a:0"], ["a:"], ["a,b"], ["a/chroot"], ["u:p@host"]],
)
def test_servers_that_are_none_are_refused(servers):
    with pytest.raises(ConfigError):
        ZooKeeperStore(servers, "t")


def test_a_missing_client_library_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kazoo.client", None)

    with pytest.raises(MissingDependencyError, match=r"waterspout\[zookeeper\]"):
        ZooKeeperStore(["x"], "t")


def test_a_deep_root_is_created(new_store, root, zk):
    store = new_store(root=f"{root}/a/b")

    assert store.acquire(FINGERPRINT) == 1
    assert zk.get_children(f"{root}/a/b") == [TOPOLOGY]


def test_a_node_that_was_prepared_empty_is_a_fresh_start(store, zk, root):
    zk.ensure_path(f"{root}/{TOPOLOGY}")

    assert store.peek() is None
    assert store.acquire(FINGERPRINT) == 1
    assert unnamed(store.load()) == Ledger(TOPOLOGY, FINGERPRINT)


# What may be left of damaged content is an error: never another ledger, never none.


@pytest.mark.parametrize("node", ["", "/ledger"], ids=["owner", "ledger"])
def test_content_cut_at_any_length_is_damaged(stored, zk, root, node):
    path = f"{root}/{TOPOLOGY}{node}"
    whole, _ = zk.get(path)

    for length in sorted({0, 1, 10, len(whole) - 1, *range(0, len(whole), len(whole) // 20)}):
        zk.set(path, whole[:length])
        assert path in refused(stored, DamagedStoreError), length

    zk.set(path, whole)
    assert stored.peek() == realistic_ledger()


@pytest.mark.parametrize("name", ["owner", "ledger"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_flipped_bit_anywhere_is_noticed(name, size):
    ledger = ledger_at(0) if size == "small" else realistic_ledger()
    data = pack(name, ledger.to_json())
    dice = random.Random(3)
    header = data.index(b"\n") + 1
    places = [*range(header), *dice.sample(range(header, len(data)), min(800, len(data) - header))]

    for place in places:
        for bit in range(8) if place < header else (dice.randrange(8),):
            odd = bytearray(data)
            odd[place] ^= 1 << bit
            with pytest.raises(StoreError):
                unpack(name, bytes(odd), "/x")


@pytest.mark.parametrize("data", [b"7", b"\x80\x04K\x07.", b"{}", b"waterspout", b"\0" * 100])
def test_content_of_another_program_is_foreign_and_left_alone(stored, zk, root, data):
    path = f"{root}/{TOPOLOGY}"
    zk.set(path, data)

    assert "was not written by waterspout" in refused(stored, ForeignStoreError)
    assert zk.get(path)[0] == data


def test_a_topology_of_storm_of_the_same_name_is_foreign(store, zk, root):
    for name in ("coordinator/currtx", "user"):
        zk.create(f"{root}/{TOPOLOGY}/{name}", b"7", makepath=True)
    zk.set(f"{root}/{TOPOLOGY}", b"7")

    assert "was not written by waterspout" in refused(store, ForeignStoreError)
    assert zk.get(f"{root}/{TOPOLOGY}")[0] == b"7"


def test_a_node_without_content_but_with_something_below_is_not_a_fresh_start(store, zk, root):
    zk.create(f"{root}/{TOPOLOGY}/coordinator", b"7", makepath=True)

    assert f"{root}/{TOPOLOGY}" in refused(store, DamagedStoreError)


def test_a_ledger_that_is_gone_is_damage_and_not_made_anew(stored, zk, root):
    zk.delete(f"{root}/{TOPOLOGY}/ledger")

    assert f"{root}/{TOPOLOGY}/ledger" in refused(stored, DamagedStoreError)
    assert zk.get_children(f"{root}/{TOPOLOGY}") == ["settled"]


def test_a_ledger_of_something_else_is_damage(stored, zk, root):
    pickle = b"\x80\x04\x95 a pickle"
    zk.set(f"{root}/{TOPOLOGY}/ledger", pickle)

    assert f"{root}/{TOPOLOGY}/ledger" in refused(stored, DamagedStoreError)
    assert zk.get(f"{root}/{TOPOLOGY}/ledger")[0] == pickle


def test_swapped_records_are_damage(stored, zk, root):
    path = f"{root}/{TOPOLOGY}"
    zk.set(f"{path}/ledger", zk.get(path)[0])

    assert f"{path}/ledger" in refused(stored, DamagedStoreError)


@pytest.mark.parametrize("node", ["", "/ledger"], ids=["owner", "ledger"])
def test_the_record_of_another_topology_is_foreign(stored, new_store, zk, root, node):
    other = new_store("other")
    other.acquire(FINGERPRINT)
    other.release()
    zk.set(f"{root}/{TOPOLOGY}{node}", zk.get(f"{root}/other{node}")[0])

    assert "belongs to topology 'other'" in refused(stored, ForeignStoreError)


@pytest.mark.parametrize("node", ["", "/ledger"], ids=["owner", "ledger"])
def test_a_newer_format_asks_for_an_upgrade(stored, zk, root, node):
    path = f"{root}/{TOPOLOGY}{node}"
    zk.set(path, zk.get(path)[0].replace(b'"format":1', b'"format":2'))

    text = refused(stored, NewerFormatError)

    assert path in text
    assert "Upgrade" in text


@pytest.mark.parametrize("body", ["[]", "{}", "7", '{"topology":"word-count"}', "[" * 100_000])
@pytest.mark.parametrize("name", ["owner", "ledger"])
def test_a_right_checksum_over_nonsense_is_damage(stored, zk, root, name, body):
    path = f"{root}/{TOPOLOGY}" + ("/ledger" if name == "ledger" else "")
    zk.set(path, zookeeper_records._header(name, "plain", body.encode()) + body.encode())

    refused(stored, DamagedStoreError)


def test_a_few_bytes_that_stand_for_gigabytes_are_damage(monkeypatch):
    monkeypatch.setattr(zookeeper_records, "MAX_SIZE", 1000)
    body = zlib.compress(b"0" * 10_000_000)

    with pytest.raises(DamagedStoreError):
        unpack("ledger", zookeeper_records._header("ledger", "zlib", body) + body, "/x")


def test_what_damage_says_does_not_quote_the_data(stored, zk, root):
    path = f"{root}/{TOPOLOGY}/ledger"
    zk.set(path, zk.get(path)[0][:-1])

    assert "part-0" not in refused(stored, DamagedStoreError)


def test_a_topology_removed_under_its_driver_is_noticed(store, zk, root):
    store.acquire(FINGERPRINT)
    zk.delete(f"{root}/{TOPOLOGY}", recursive=True)

    for write in (lambda: store.save(ledger_at(1)), store.renew):
        with pytest.raises(DamagedStoreError, match="removed or replaced while this driver held"):
            write()

    assert zk.exists(f"{root}/{TOPOLOGY}") is None


def test_a_driver_whose_topology_was_replaced_cannot_write_into_the_new_one(
    store, new_store, zk, root
):
    # All versions are what they were: it is the name of the lease that is another.
    store.acquire(FINGERPRINT)
    zk.delete(f"{root}/{TOPOLOGY}", recursive=True)
    other = new_store()
    assert other.acquire(FINGERPRINT) == 1
    before = content(zk, root)

    with pytest.raises(LeaseLostError):
        store.save(ledger_at(1))

    assert content(zk, root) == before


def test_a_ledger_changed_by_hand_under_its_driver_is_not_written_over(store, zk, root):
    store.acquire(FINGERPRINT)
    odd = pack("ledger", ledger_at(2).to_json())
    zk.set(f"{root}/{TOPOLOGY}/ledger", odd)

    with pytest.raises(ForeignStoreError, match="does not hold the topology"):
        store.save(ledger_at(1))

    assert zk.get(f"{root}/{TOPOLOGY}/ledger")[0] == odd


# Who holds it.


def test_a_second_driver_is_refused_at_once_with_pid_and_host_and_changes_nothing(
    new_driver, store, zk, root
):
    with new_driver() as driver:
        assert driver.ask("acquire")["value"] == 1
        before = content(zk, root)

        text = refusal(store)
        with pytest.raises(LeaseHeldError):
            store.refuse_if_held()

        assert f"process {driver.pid} on host {socket.gethostname()} runs it now" in text
        assert "after 6 s" in text
        assert content(zk, root) == before
        assert driver.ask("save 3") == {"order": "save 3", "value": None}


def test_a_second_store_in_the_same_process_is_refused_too(store, new_store):
    store.acquire(FINGERPRINT)

    assert f"process {os.getpid()} " in refusal(new_store())


def test_a_released_lease_is_free_at_once(new_driver, store):
    with new_driver() as driver:
        driver.ask("acquire")
        driver.ask("save 2")
        driver.ask("release")

        assert store.acquire(FINGERPRINT) == 2
        assert store.load() == ledger_at(2)


def test_a_killed_driver_on_this_machine_is_taken_over_at_once(new_driver, store):
    with new_driver(LONG_S) as driver:
        driver.ask("acquire")
        driver.ask("save 2")
        driver.kill()

        store.refuse_if_held()
        assert store.acquire(FINGERPRINT) == 2
        assert store.load() == ledger_at(2)
        store.save(ledger_at(3))


@pytest.mark.soak
def test_a_killed_driver_elsewhere_is_taken_over_when_its_session_runs_out(
    new_driver, store, monkeypatch
):
    with new_driver(SHORT_S) as driver:
        driver.ask("acquire")
        driver.ask("save 2")
        driver.kill()
        monkeypatch.setattr(zookeeper, "is_seen_dead", lambda holder: False)

        assert f"process {driver.pid} " in refusal(store)
        assert take_over(store) == 2
        assert store.load() == ledger_at(2)


def take_over(store: ZooKeeperStore) -> int:
    """Try until the lease is free."""
    epochs: list[int] = []

    def taken() -> bool:
        with suppress(LeaseHeldError):
            epochs.append(store.acquire(FINGERPRINT))
        return bool(epochs)

    await_condition(taken, 10.0)
    return epochs[0]


def test_a_holder_of_another_boot_under_our_name_is_not_taken_for_dead():
    me = this_process()

    assert not zookeeper_records.is_seen_dead(replace(me, boot="another", started="1"))
    assert not zookeeper_records.is_seen_dead(me)
    assert zookeeper_records.is_seen_dead(replace(me, started="1"))


@pytest.mark.soak
def test_a_paused_driver_is_taken_over_after_its_session_and_can_then_no_longer_write(
    new_driver, store, zk, root
):
    with new_driver(SHORT_S) as driver:
        driver.ask("acquire")
        driver.ask("save 2")
        driver.pause()
        refusal(store)
        assert take_over(store) == 2
        store.save(ledger_at(3))
        before = content(zk, root)
        driver.resume()

        for order in ("save 4", "renew", "save 4"):
            answer = driver.ask(order)
            assert answer["error"] == "LeaseLostError", answer
        assert driver.ask("release") == {"order": "release", "value": None}
        assert driver.ask("acquire")["error"] == "LeaseHeldError"

    assert content(zk, root) == before
    store.renew()
    store.save(ledger_at(4))


def test_of_two_drivers_that_start_together_exactly_one_runs(new_driver, root, tmp_path):
    outcomes = []
    with new_driver() as one, new_driver() as two:
        for round_ in range(8):
            barrier = tmp_path / f"go-{round_}"
            for driver in (one, two):
                assert driver.ask(f"race {barrier} {root}/{round_}") == {"ready": True}
            barrier.touch()
            answers = {driver.pid: driver.answer() for driver in (one, two)}
            (winner,) = (pid for pid, answer in answers.items() if "value" in answer)
            (loser,) = (answer for answer in answers.values() if "error" in answer)
            outcomes.append((answers[winner]["value"], loser["error"]))
            assert f"process {winner} " in loser["message"]

    assert outcomes == [(1, "LeaseHeldError")] * 8


def test_of_many_threads_that_take_over_a_dead_driver_exactly_one_does(new_driver, new_store):
    with new_driver() as driver:
        driver.ask("acquire")
        driver.kill()

    def acquire(store):
        try:
            return store.acquire(FINGERPRINT)
        except LeaseHeldError:
            return None

    with ThreadPoolExecutor(4) as pool:
        epochs = list(pool.map(acquire, [new_store() for _ in range(4)]))

    assert sorted(epochs, key=str) == [2, None, None, None]


# C1: the connection is lost for less than the session.


@contextmanager
def in_background(work):
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def test_a_save_waits_out_a_lost_connection_and_goes_on(through, proxy, new_store):
    store = through()
    store.acquire(FINGERPRINT)
    proxy.refuse()
    proxy.cut()

    with in_background(lambda: store.save(ledger_at(1))) as saving:
        with pytest.raises(TimeoutError):
            saving.result(0.3)
        proxy.refuse(False)
        saving.result(10)

    assert new_store().peek() == ledger_at(1)
    store.renew()
    assert "runs it now" in refusal(new_store())


def test_a_connection_that_hangs_for_a_while_changes_nothing(through, proxy):
    store = through()
    epoch = store.acquire(FINGERPRINT)
    proxy.hang()

    with in_background(lambda: store.save(ledger_at(1))) as saving:
        with pytest.raises(TimeoutError):
            saving.result(0.3)
        proxy.hang(False)
        saving.result(10)

    store.renew()
    assert store.load() == ledger_at(1)
    assert epoch == 1


def test_a_server_that_is_silent_for_too_long_is_told_and_the_ledger_is_old_or_new(
    through, proxy, new_store
):
    store = through(operation_s=0.7)
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))
    proxy.hang()

    with pytest.raises(StoreError, match=r"has not answered for 0.7 s.*the same command goes on"):
        store.save(ledger_at(2))
    proxy.hang(False)

    # It may have been on its way all the time; it is not a rival's.
    store.save(ledger_at(3))
    assert new_store().peek() == ledger_at(3)


def test_no_server_at_all_is_told_with_where_it_was_looked_for(new_store):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = new_store(place=f"127.0.0.1:{port}", connect_s=0.3)

    for way in (store.peek, store.refuse_if_held, lambda: store.acquire(FINGERPRINT)):
        with pytest.raises(StoreError, match=f"no ZooKeeper answers at 127.0.0.1:{port} within"):
            way()
    store.release()


def test_release_with_the_server_gone_does_not_raise(through, proxy):
    store = through(session_s=SHORT_S)
    store.acquire(FINGERPRINT)
    proxy.refuse()
    proxy.cut()

    store.release()

    with pytest.raises(LeaseLostError):
        store.renew()


# C2: the session ends.


def test_a_driver_whose_session_expired_has_lost_the_topology_at_once(
    store, new_store, zookeeper_server, zk, root
):
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))
    expire(store, zookeeper_server.address)
    before = content(zk, root)

    for write in (lambda: store.save(ledger_at(2)), store.renew, lambda: store.save(ledger_at(2))):
        with pytest.raises(LeaseLostError, match="ZooKeeper did not hear from it"):
            write()

    assert content(zk, root) == before
    other = new_store()
    assert other.acquire(FINGERPRINT) == 2
    other.save(ledger_at(2))
    with pytest.raises(LeaseLostError):
        store.save(ledger_at(3))
    assert other.load() == ledger_at(2)


@pytest.mark.soak
def test_a_driver_cut_off_for_longer_than_its_session_writes_nothing_afterwards(
    through, proxy, new_store, zk, root
):
    first, second = through(session_s=SHORT_S), new_store()
    first.acquire(FINGERPRINT)
    proxy.hang()
    assert take_over(second) == 2
    second.save(ledger_at(1))
    before = content(zk, root)
    proxy.hang(False)

    for write in (lambda: first.save(ledger_at(2)), first.renew):
        with pytest.raises(LeaseLostError):
            write()

    assert content(zk, root) == before
    first.release()
    second.renew()


@pytest.mark.soak
def test_a_write_held_back_by_the_network_until_after_the_takeover_changes_nothing(
    through, proxy, new_store, zk, root
):
    first, second = through(session_s=SHORT_S), new_store()
    first.acquire(FINGERPRINT)
    proxy.hang()
    with in_background(lambda: first.save(ledger_at(2))) as saving:
        assert take_over(second) == 2
        second.save(ledger_at(1))
        before = content(zk, root)
        proxy.hang(False)

        with pytest.raises(LeaseLostError):
            saving.result(10)

    assert content(zk, root) == before


def test_a_lease_deleted_by_hand_is_a_lost_lease(store, zk, root):
    store.acquire(FINGERPRINT)
    (lease,) = set(zk.get_children(f"{root}/{TOPOLOGY}")) - {"ledger", "settled"}
    zk.delete(f"{root}/{TOPOLOGY}/{lease}")

    with pytest.raises(LeaseLostError, match="the lease was deleted"):
        store.save(ledger_at(1))


# C3: done, but the answer was lost; or the request.

OWNER, LEDGER = b'{"waterspout":"owner"', b'{"waterspout":"ledger"'


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_save_whose_answer_or_request_was_lost_is_stored_once(through, proxy, zk, root, lost):
    store = through()
    store.acquire(FINGERPRINT)
    getattr(proxy, f"drop_next_{lost}")(LEDGER)

    store.save(ledger_at(1))

    assert proxy.dropped == 1
    data, stat = zk.get(f"{root}/{TOPOLOGY}/ledger")
    assert unpack("ledger", data, "") == ledger_at(1).to_json()
    assert stat.version == 1
    store.save(ledger_at(2))
    assert store.load() == ledger_at(2)


@pytest.mark.parametrize("first", [True, False], ids=["first run", "later run"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_driver_does_not_take_its_own_lease_for_a_rivals(
    through, proxy, new_store, zk, root, lost, first
):
    if not first:
        earlier = new_store()
        earlier.acquire(FINGERPRINT)
        earlier.release()
    store = through()
    getattr(proxy, f"drop_next_{lost}")(OWNER)

    assert store.acquire(FINGERPRINT) == (1 if first else 2)

    assert proxy.dropped == 1
    store.save(ledger_at(1))
    assert len(content(zk, root)) == 4
    assert "runs it now" in refusal(new_store())


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_any_one_answer_or_request_of_a_whole_life_may_be_lost(through, proxy, root, lost):
    for struck in range(6):
        store = through(root=f"{root}/{struck}")
        steps = [
            store.peek,
            lambda: store.acquire(FINGERPRINT),  # noqa: B023
            store.load,
            lambda: store.save(ledger_at(1)),  # noqa: B023
            store.renew,
            lambda: store.save(ledger_at(2)),  # noqa: B023
        ]
        for number, step in enumerate(steps):
            if number == struck:
                getattr(proxy, f"drop_next_{lost}")()
            found = step()
            assert number != 1 or found == 1
        assert store.load() == ledger_at(2)
        store.release()

    assert proxy.dropped == 6


# C5: nothing is decided by reading alone.


def test_a_stale_answer_of_a_server_that_lags_behind_decides_nothing(
    stored, new_store, zk, root, monkeypatch
):
    with stored._connected() as session:
        stale = [stored._read(session)]
    rival = new_store()
    assert rival.acquire(FINGERPRINT) == 2
    before = content(zk, root)
    read = stored._read
    monkeypatch.setattr(stored, "_read", lambda session: stale.pop() if stale else read(session))

    assert "runs it now" in refusal(stored)

    assert stale == []
    assert content(zk, root) == before
    rival.save(ledger_at(1))


# C4: the server.


@pytest.mark.soak
def test_a_server_that_takes_a_connection_and_never_greets_is_left_long_before_the_session_ends(
    through, proxy, new_store
):
    # As one does, now and then, that is just starting.
    store = through(session_s=12.0, operation_s=20.0)
    store.acquire(FINGERPRINT)
    proxy.hang()
    proxy.cut()
    taken = proxy.connections

    with in_background(lambda: store.save(ledger_at(1))) as saving:
        until(lambda: proxy.connections >= taken + 2, 9.0)  # the first was given up
        proxy.hang(False)
        saving.result(20)

    store.renew()
    assert "runs it now" in refusal(new_store())


@pytest.mark.soak
def test_a_restart_of_the_server_in_the_middle_is_waited_out(new_store, zookeeper_server):
    # Long enough for a server that takes its time to start.
    store = new_store(session_s=40.0, operation_s=40.0)
    store.acquire(FINGERPRINT)
    store.save(ledger_at(1))
    zookeeper_server.kill()

    with in_background(lambda: store.save(ledger_at(2))) as saving:
        zookeeper_server.start()
        saving.result(40)

    store.renew()
    assert new_store().peek() == ledger_at(2)
    assert "runs it now" in refusal(new_store())


def word_count(path) -> TridentTopology:
    topology = TridentTopology(TOPOLOGY)
    spout = FixedBatchSpout("word string", 2, [["a"], ["b"], ["a"], ["c"]])
    words = topology.new_stream("words", spout)
    counts = SQLiteState.opaque(path, "counts")
    words.group_by("word").persistent_aggregate(counts, Count(), "n")
    return topology


def test_a_run_waits_for_a_server_that_is_away(new_store, zookeeper_server, tmp_path):
    # The session is long enough for a server that takes its time to start.
    events = []
    run = LocalRun(
        word_count(tmp_path / "counts.db"),
        store=new_store(session_s=40.0, operation_s=0.2),
        listener=events.append,
    )
    while run.loop.ledger.current == 1:
        run.step()
    zookeeper_server.kill()

    def pause(_: float) -> bool:
        if len(away()) == 3:
            zookeeper_server.start()
        return False

    def away() -> list[str]:
        return [event.service for event in events if isinstance(event, ServiceAway)]

    run.loop.pause = pause
    run.finish()

    assert run.loop.ledger.current == 3
    assert set(away()) == {"zookeeper"}
    assert len(away()) >= 3
    run.close()
    with closing(sqlite3.connect(tmp_path / "counts.db")) as db:
        counts = dict(db.execute("SELECT word, n FROM counts"))
    assert counts == {"a": 2, "b": 1, "c": 1}


def test_a_wiped_server_stops_the_run_and_nothing_is_written(
    new_store, zookeeper_server, tmp_path, zk, root
):
    database = tmp_path / "counts.db"
    run = LocalRun(word_count(database), store=new_store())
    run.finish()
    run.close()
    before = database.read_bytes()
    zk.stop()
    zookeeper_server.wipe()

    with pytest.raises(StateMismatchError):
        LocalRun(word_count(database), store=new_store())

    assert database.read_bytes() == before
    zk.start()
    assert zk.exists(root) is None


# The whole: a run that crashes anywhere.


def run_with_crashes(hook: CrashAt, new_store):
    world = fixed_world(SpoutKind.OPAQUE, StateKind.OPAQUE, 2)
    root = f"/crash-{id(world)}-{random.random()}"
    faults.install(hook)
    try:
        while True:
            world.now += 1
            store, watcher = new_store("simulated", root=root), Watcher(world)
            try:
                run = LocalRun(
                    world.topology(),
                    CONFIG,
                    store=store,
                    clock=lambda: world.now,
                    listener=watcher,
                )
                watcher.run = run
                run.finish(max_steps=500)
                break
            except SimulatedCrash:
                world.crashes += 1
                store.release()  # as its session ends when a process does
    finally:
        faults.install(None)
    _check_end(world, run)
    run.close()
    return world


@stepped(3)
def test_a_crash_at_every_point_loses_and_doubles_nothing(new_store, step):
    seen = CrashAt()
    run_with_crashes(seen, new_store)

    for n in range(1, len(seen.seen) + 1, step):
        hook = CrashAt(n)
        world = run_with_crashes(hook, new_store)
        assert hook.all_fired
        assert world.wrong == [], f"crash at point {n} ({hook.seen[n - 1]})"


# Secrets and noise.


def test_with_credentials_others_can_neither_read_nor_take_nor_delete(
    new_store, zk, root, monkeypatch
):
    monkeypatch.setenv("ZK_AUTH", "me:hunter2")
    mine = new_store(auth="${ZK_AUTH}")
    mine.acquire(FINGERPRINT)
    mine.save(ledger_at(1))
    mine.renew()

    for other in (new_store(), new_store(auth="you:hunter3")):
        for way, given in ((other.peek, ()), (other.acquire, (FINGERPRINT,))):
            with pytest.raises(StoreError, match="belongs to another user") as refusal:
                way(*given)
            assert "hunter" not in str(refusal.value)
    for path in (f"{root}/{TOPOLOGY}/ledger", f"{root}/{TOPOLOGY}"):
        with pytest.raises(Exception, match=r"^$"):
            zk.delete(path)
        with pytest.raises(Exception, match=r"^$"):
            zk.set(path, b"")
    mine.save(ledger_at(2))
    mine.release()

    again = new_store(auth="me:hunter2")
    assert again.acquire(FINGERPRINT) == 2
    assert again.load() == ledger_at(2)


def test_topologies_of_others_may_live_under_the_same_root(new_store):
    mine, yours = new_store(auth="me:hunter2"), new_store("other", auth="you:hunter3")

    assert mine.acquire(FINGERPRINT) == 1
    assert yours.acquire(FINGERPRINT) == 1


def test_secrets_are_never_shown(through, proxy, caplog):
    caplog.set_level(logging.DEBUG)
    store = through(auth="me:hunter2")
    store.acquire(FINGERPRINT)
    proxy.drop_next_reply(LEDGER)
    store.save(ledger_at(1))

    shown = [repr(store), repr(store._address), caplog.text, *map(str, vars(store).values())]

    assert "hunter2" not in "".join(shown)
    assert "part-00001" not in caplog.text
    assert {record.name for record in caplog.records} <= {
        "waterspout.coordination.zookeeper_session"
    }


@pytest.mark.parametrize("auth", ["me", ":x", "me:", "hunter2${NOT_SET}"])
def test_odd_credentials_are_refused_without_quoting_them(new_store, auth):
    with pytest.raises(ConfigError) as refusal:
        new_store(auth=auth).peek()

    assert "hunter2" not in str(refusal.value)


def test_a_lost_connection_is_told_once_and_not_by_the_client_library(through, proxy, caplog):
    store = through()
    store.acquire(FINGERPRINT)
    proxy.cut()
    store.load()
    store.load()

    assert len(caplog.records) <= 1


# From a configuration.


@pytest.fixture
def conf(zookeeper_server, root):
    return Config(
        zookeeper_servers=[zookeeper_server.host],
        zookeeper_port=zookeeper_server.port,
        zookeeper_root=root,
        lease_secs=LONG_S,
    )


def files_count(tmp_path) -> TridentTopology:
    (tmp_path / "in").mkdir(exist_ok=True)
    topology = TridentTopology(TOPOLOGY)
    lines = topology.new_stream("lines", FileSpout(tmp_path / "in", max_files=1))
    counts = SQLiteState.opaque(tmp_path / "counts.db", "counts")
    lines.group_by("value").persistent_aggregate(counts, Count(), "n")
    return topology


def test_zookeeper_is_used_where_its_servers_are_set(conf, tmp_path, home, monkeypatch, zk, root):
    prepared = prepare(word_count(tmp_path / "counts.db"), conf)

    assert isinstance(prepared.store, ZooKeeperStore)
    assert prepared.folder is None
    assert prepared.store.peek() is None
    prepared.close()
    assert not home.exists()
    assert zk.exists(root) is None
    assert isinstance(prepare(word_count(tmp_path / "counts.db"), Config()).store, EmbeddedStore)


def test_the_credentials_come_from_the_environment(conf, tmp_path, monkeypatch, new_store):
    monkeypatch.setenv(ZOOKEEPER_AUTH, "me:hunter2")
    prepared = prepare(word_count(tmp_path / "counts.db"), conf)
    prepared.store.acquire(FINGERPRINT)

    with pytest.raises(StoreError, match="belongs to another user"):
        new_store().peek()
    prepared.close()


def test_states_that_end_with_the_process_need_no_zookeeper(conf):
    topology = TridentTopology(TOPOLOGY)
    words = topology.new_stream("words", FixedBatchSpout("word string", 2, [["a"]]))
    words.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")

    prepared = prepare(topology, conf.replace(zookeeper_servers=["nowhere.invalid"]))

    assert isinstance(prepared.store, MemoryCoordinationStore)


def test_a_second_driver_is_refused_before_a_jvm_is_started(conf, tmp_path, store):
    prepared = prepare(word_count(tmp_path / "counts.db"), conf)
    prepared.store.acquire(prepared.plan.fingerprint())

    with pytest.raises(LeaseHeldError, match=f"process {os.getpid()}"):
        prepare(word_count(tmp_path / "counts.db"), conf)
    prepared.close()


def test_files_that_were_read_are_listed_in_the_local_home(conf, tmp_path, home):
    prepared = prepare(files_count(tmp_path), conf)

    assert prepared.folder == home / TOPOLOGY == prepared.store.folder
    assert not home.exists(), "nothing is written before the lease is taken"
    prepared.store.acquire(prepared.plan.fingerprint())
    assert {path.name for path in prepared.folder.iterdir()} == {"zookeeper-leases"}
    prepared.close()


def test_a_driver_without_the_list_of_files_is_refused(conf, tmp_path, monkeypatch, home):
    def attempt(current):
        prepared = prepare(files_count(tmp_path), conf)
        try:
            prepared.store.acquire(prepared.plan.fingerprint())
            if current is not None:
                graph = prepared.plan.fingerprint()
                prepared.store.save(replace(ledger_at(current - 1), fingerprint=graph))
        finally:
            prepared.close()

    def on_another_machine():
        monkeypatch.setenv("WATERSPOUT_HOME", str(tmp_path / "other"))

    # The states never ran; that is another story.
    monkeypatch.setattr(CommitProtocol, "verify", lambda *_, **__: None)
    attempt(2)
    on_another_machine()
    attempt(None)  # what the only batch held is in the ledger
    attempt(4)
    monkeypatch.setenv("WATERSPOUT_HOME", str(home))

    with pytest.raises(StoreError, match=r"run last by process .*copy the folder word-count"):
        attempt(None)

    on_another_machine()
    attempt(None)
    attempt(None)


def test_a_folder_notes_every_lease_that_may_have_been_taken_and_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(zookeeper_records, "_NOTES_BYTES_MAX", 1000)
    home = Home(tmp_path / "home" / "t")
    names = [f"{n:032x}" for n in range(100)]
    owner = Owner("t", 1, names[0], this_process(), 1.0)

    with pytest.raises(StoreError, match="counted again"):
        home.refuse_unless_complete(owner)
    for name in names:
        home.note(name)
        home.refuse_unless_complete(replace(owner, lease=name))
        home.forget_all_but(name)

    assert sum(path.stat().st_size for path in home.folder.iterdir()) < 1100
    with pytest.raises(StoreError, match="counted again"):
        home.refuse_unless_complete(replace(owner, lease="f" * 32))


def test_a_note_cut_short_does_not_spoil_the_next(tmp_path):
    home = Home(tmp_path)
    home.note("a" * 32)
    with open(tmp_path / "zookeeper-leases", "a") as file:
        file.write("\nbbbb")
    home.note("c" * 32)

    for name in ("a", "c"):
        home.refuse_unless_complete(Owner("t", 1, name * 32, this_process(), 1.0))


def test_a_home_that_cannot_be_written_is_told_and_nothing_is_taken(new_store, tmp_path, zk, root):
    (tmp_path / "file").write_text("")
    store = new_store(folder=tmp_path / "file" / "t")

    with pytest.raises(StoreError, match="WATERSPOUT_HOME"):
        store.acquire(FINGERPRINT)

    assert zk.exists(f"{root}/{TOPOLOGY}") is None
