"""Cassandra states on a real server: rows, both modes, zombies, lost answers, restarts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import pytest

from tests.soaking import stepped
from tests.state.comparing_support import Task, pause_after_the_head
from tests.state_support import Add, Batches
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._serde import checksum
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    MissingDependencyError,
    NewerFormatError,
    StateMismatchError,
    StoreError,
)
from waterspout.state._base import StateKind
from waterspout.state._kinds import OpaqueMap, OpaqueValue
from waterspout.state.cassandra import CassandraState
from waterspout.state.cassandra import _state as module
from waterspout.state.cassandra._session import CassandraClient, close_all
from waterspout.testing._proxy import FaultProxy

A, B = ("a",), ("b",)
LONG = ("k" * 100_000,)

pytestmark = pytest.mark.usefixtures("cassandra_sessions")


def record(value, txid=1, attempt=0, prev=None):
    return OpaqueValue(txid, attempt, value, prev)


@pytest.fixture(scope="module")
def keyspace(cassandra_server):
    return cassandra_server.fresh_keyspace()


@pytest.fixture
def cql(cassandra_server):
    """Run statements as anyone would."""
    return cassandra_server.run


@pytest.fixture
def table(request, keyspace):
    """A name of the test's own."""
    return f"t_{checksum(request.node.nodeid)}"


@pytest.fixture
def recipe(cassandra_server, keyspace, table):
    """Make the recipe of the test's own table."""

    def make(mode="lwt", kind=StateKind.OPAQUE, address=cassandra_server.address, **options):
        options = {"keyspace": keyspace, "table": table, **options}
        return CassandraState(address, mode=mode, kind=kind, **options)

    return make


@pytest.fixture
def proxy(cassandra_server):
    with FaultProxy(*cassandra_server.address) as proxy:
        yield proxy


@pytest.mark.parametrize("mode", ["lwt", "single_writer"])
def test_rows_can_be_read_by_anyone(recipe, cql, keyspace, table, mode):
    batches = Batches(recipe(mode).make_state(Config(), 0, 1))
    batches.commit({"the": 5})
    batches.commit({"the": 2, (1, None): 1})

    (rows, heads) = cql(
        f"SELECT key, txid, attempt, value, prev FROM {keyspace}.{table}",
        f"SELECT kind, layout, format FROM {keyspace}.waterspout_heads WHERE name = '{table}'",
    )

    assert sorted(rows) == [('["the"]', 2, 0, "[7]", "[5]"), ("[1,null]", 2, 0, "[1]", None)]
    assert heads == [("opaque", "(any key) -> value", 1)]


def test_a_key_too_long_for_cassandra_stands_under_a_hash(recipe, cql, keyspace, table):
    backing = recipe().backing()
    backing.multi_put([LONG, A], [record(1), record(2)])

    assert backing.multi_get([LONG, A, (LONG[0] + "k",)]) == [record(1), record(2), None]
    assert {key for page in backing.scan() for key, _ in page} == {LONG, A}
    (rows,) = cql(f"SELECT key, long_key FROM {keyspace}.{table}")
    assert sorted((key[:1], len(key), len(long or "")) for key, long in rows) == [
        ("#", 65, 100_004),
        ("[", 5, 0),
    ]


def test_two_keys_with_one_hash_are_refused(recipe, cql, keyspace, table):
    backing = recipe().backing()
    backing.multi_put([LONG], [record(1)])
    ((((key,),)),) = cql(f"SELECT key FROM {keyspace}.{table}")
    cql(f"""UPDATE {keyspace}.{table} SET long_key = '["other"]' WHERE key = '{key}'""")

    with pytest.raises(DamagedStoreError, match="stands another key"):
        backing.multi_get([LONG])


@pytest.mark.parametrize(
    "change", ["value = '[1'", "value = '[1,2]'", "value = '7'", "txid = null", "prev = '{}'"]
)
def test_what_cannot_be_read_is_an_error_that_names_the_key(recipe, cql, keyspace, table, change):
    backing = recipe("single_writer").backing()
    backing.multi_put([A], [record(1, prev=0)])
    cql(f"""UPDATE {keyspace}.{table} SET {change} WHERE key = '["a"]'""")

    with pytest.raises(DamagedStoreError, match=r"""under key '\["a"\]'"""):
        backing.multi_get([A])
    with pytest.raises(DamagedStoreError, match=r"""under key '\["a"\]'"""):
        list(backing.scan())


def test_shards_share_the_rows_out(recipe):
    backing = recipe("single_writer").backing()
    backing.multi_put([(n,) for n in range(300)], [record(n) for n in range(300)])

    shares = [sum(len(page) for page in backing.scan(shard, 4)) for shard in range(4)]

    assert sum(shares) == 300
    assert min(shares) > 30


def test_a_missing_keyspace_is_named_with_the_statement_that_makes_it(recipe):
    for act in (
        lambda: recipe(keyspace="nowhere").check(),
        lambda: recipe(keyspace="nowhere").backing().multi_put([A], [record(1)]),
    ):
        with pytest.raises(StoreError, match=r'no such keyspace.*CREATE KEYSPACE "nowhere"'):
            act()


def test_a_check_makes_nothing(recipe, cql, keyspace, table):
    recipe().check()

    assert recipe().backing().multi_get([A]) == [None]
    (found,) = cql(
        f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}' "
        f"AND table_name = '{table}'"
    )
    assert found == []


def test_somebody_elses_table_is_left_alone(recipe, cql, keyspace, table):
    cql(f"CREATE TABLE {keyspace}.{table} (key text PRIMARY KEY, value text)")

    for act in (
        recipe().check,
        lambda: recipe().backing().multi_get([A]),
        lambda: recipe().backing().multi_put([A], [record(1)]),
        lambda: Batches(OpaqueMap(recipe().backing())).claim(),
    ):
        with pytest.raises(ForeignStoreError, match="waterspout did not make it"):
            act()


def test_a_dropped_table_is_noticed(recipe, cql, keyspace, table):
    batches = Batches(recipe().make_state(Config(), 0, 1))
    batches.commit({"x": 1})
    cql(f"DROP TABLE {keyspace}.{table}")
    close_all()  # as in a new process, which has not seen the table

    with pytest.raises(StateMismatchError, match="was dropped: there is a head at batch 1"):
        recipe().backing().read_head()


def test_another_kind_or_layout_is_refused(recipe):
    Batches(recipe().make_state(Config(), 0, 1)).commit({"x": 1})

    with pytest.raises(ForeignStoreError, match=r"is an opaque state of .* wants a transactional"):
        recipe(kind=StateKind.TRANSACTIONAL).check()
    with pytest.raises(ForeignStoreError, match="Use another table"):
        recipe().bind(Schema.parse("word string"), Schema.parse("n bigint")).check()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ("format = 2", NewerFormatError, "format 2, this one knows 1"),
        ("head = '{}'", DamagedStoreError, "does not match its checksum"),
        ("checksum = '0'", DamagedStoreError, "does not match its checksum"),
    ],
)
def test_a_head_that_is_not_ours_stops_us(recipe, cql, keyspace, table, change, error, words):
    Batches(recipe().make_state(Config(), 0, 1)).commit({"x": 1})
    cql(f"UPDATE {keyspace}.waterspout_heads SET {change} WHERE name = '{table}'")

    with pytest.raises(error, match=words):
        recipe().check()


def test_what_a_zombie_writes_where_nobody_has_since_is_never_counted(recipe):
    batches = Batches(OpaqueMap(recipe().backing()))
    batches.commit({"x": 1})
    batches.claim()
    zombie = Task(recipe().backing(), 2, 0, {"x": 10, "new": 10})
    pause_after_the_head(zombie, lambda: batches.commit({"y": 1}))

    zombie.write()

    assert batches.state.records([("x",), ("new",)]) == [record(11, 2, 0, 1), record(10, 2, 0)]
    assert batches.values("x", "y", "new") == [1, 1, None]
    batches.commit({"x": 5, "new": 5})
    assert batches.values("x", "y", "new") == [6, 1, 5]


def test_a_zombie_cannot_overwrite_what_was_written_since(recipe):
    batches = Batches(OpaqueMap(recipe().backing()))
    batches.commit({"x": 1, "y": 1})
    batches.claim()
    zombie = Task(recipe().backing(), 2, 0, {"x": 10, "y": 10, "new": 10})
    pause_after_the_head(zombie, lambda: batches.commit({"x": 2, "new": 2}))

    with pytest.raises(FencedError, match=r"key \('x',\) was written by someone else"):
        zombie.write()

    assert batches.values("x", "y", "new") == [3, 1, 2]
    batches.commit({"x": 1, "y": 1, "new": 1})
    assert batches.values("x", "y", "new") == [4, 2, 3]


@pytest.mark.parametrize("mode", ["lwt", "single_writer"])
@pytest.mark.parametrize("first", [0, 1])
def test_of_two_tasks_of_one_attempt_either_may_come_first(recipe, mode, first):
    batches = Batches(OpaqueMap(recipe(mode).backing()))
    batches.commit({"x": 1})
    batches.claim()
    tasks = [Task(recipe(mode).backing(), 2, 0, {"x": 10, "new": 10}) for _ in range(2)]

    tasks[first].write()
    tasks[1 - first].write()
    batches.mark()
    batches.settle()

    assert batches.values("x", "new") == [11, 10]


def test_a_single_writer_whose_clock_is_behind_still_replaces_what_it_has_read(recipe, monkeypatch):
    batches = Batches(OpaqueMap(recipe("single_writer").backing()))
    batches.commit({"x": 1})
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() - 3_600_000_000)

    batches.commit({"x": 10})

    assert batches.values("x") == [11]


def test_a_single_writers_zombie_that_had_read_before_loses_to_the_later_write(recipe):
    batches = Batches(OpaqueMap(recipe("single_writer").backing()))
    batches.commit({"x": 1})
    batches.claim()
    zombie = Task(recipe("single_writer").backing(), 2, 0, {"x": 100})
    pause_after_the_head(zombie, lambda: batches.commit({"x": 10}))

    zombie.write()

    assert batches.values("x") == [11]


def test_many_who_add_at_once_lose_nothing(recipe):
    states = [OpaqueMap(recipe().backing()) for _ in range(3)]
    states[0].multi_update([A], [Add(0)])

    def add(state):
        for _ in range(10):
            state.multi_update([A, B], [Add(1), Add(2)])

    threads = [threading.Thread(target=add, args=[state]) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert states[0].multi_get([A, B]) == [30, 60]


class Unanswered:
    """Carry out the next execution of some statement, and say that it timed out."""

    def __init__(self, monkeypatch, word, meanwhile=lambda: None):
        from cassandra import WriteTimeout

        real, self.struck = CassandraClient._execute, 0

        def execute(live, statement, values):
            results = real(live, statement, values)
            if not self.struck and word in statement.cql:
                self.struck += 1
                meanwhile()
                timeout = WriteTimeout("injected", write_type=0, consistency=1)
                return [(False, timeout) for _ in results]
            return results

        monkeypatch.setattr(CassandraClient, "_execute", staticmethod(execute))


@pytest.mark.parametrize("word", ["IF NOT EXISTS", "AND prev = ?", "AND checksum = ?"])
def test_a_serial_write_that_timed_out_is_done_once(recipe, monkeypatch, word):
    batches = Batches(OpaqueMap(recipe().backing()))
    batches.commit({"x": 1})
    lost = Unanswered(monkeypatch, word)

    batches.commit({"x": 10, "new": 10})

    assert lost.struck == 1
    assert batches.values("x", "new") == [11, 10]


def test_an_update_outside_of_a_batch_that_timed_out_is_not_applied_twice(recipe, monkeypatch):
    state = OpaqueMap(recipe().backing())
    state.multi_update([A], [Add(1)])
    lost = Unanswered(monkeypatch, "AND prev = ?")

    assert state.multi_update([A], [Add(100)]) == [101]
    assert lost.struck == 1
    assert state.multi_get([A]) == [101]


def test_if_someone_else_wrote_after_a_lost_answer_nothing_is_pretended(recipe, monkeypatch):
    mine, other = recipe().backing(), recipe().backing()
    mine.multi_put([A], [record(1)])
    Unanswered(monkeypatch, "AND prev = ?", lambda: other.multi_put([A], [record(9)]))

    with pytest.raises(StoreError, match="cannot be known whether it was carried out"):
        mine.multi_compare_and_put([A], [record(1)], [record(2)])


def test_over_a_connection_that_breaks_the_batch_is_committed_once(recipe, proxy):
    batches = Batches(OpaqueMap(recipe(address=proxy.address).backing()))
    batches.commit({"x": 1})
    for n in range(3):
        batches.claim()
        if n:
            proxy.drop_next_reply(b'["x"]')
        else:
            proxy.cut()
        batches.write({"x": 10})
        batches.mark()
        batches.settle()

    assert proxy.dropped == 2
    assert batches.values("x") == [31]


@stepped(4)
def test_a_server_that_is_gone_is_an_error_that_names_it(recipe, proxy, step):
    backing = recipe(address=proxy.address, timeout_secs=2, connect_timeout_secs=1).backing()
    backing.multi_put([A], [record(1)])
    proxy.refuse()
    proxy.cut()

    acts = [
        lambda: backing.multi_get([A]),
        lambda: backing.multi_put([A], [record(2)]),
        lambda: backing.multi_compare_and_put([A], [None], [record(2)]),
        lambda: list(backing.scan()),
        backing.read_head,
    ]
    for act in acts[::step]:
        with pytest.raises(StoreError, match=f"Cassandra at 127.0.0.1:{proxy.port} cannot be"):
            act()
    proxy.refuse(False)
    assert backing.multi_get([A]) == [record(1)]


@pytest.mark.soak
def test_a_server_that_was_killed_and_started_again_has_everything(recipe, cassandra_server):
    batches = Batches(OpaqueMap(recipe().backing()))
    batches.commit({"x": 1})
    batches.claim()
    cassandra_server.kill()
    cassandra_server.start()

    batches.persist({"x": 10})

    assert batches.values("x") == [11]


@pytest.mark.parametrize(("mode", "said"), [({}, "missing"), ({"mode": "fast"}, "is 'fast'")])
def test_the_mode_has_to_be_chosen_knowingly(mode, said):
    with pytest.raises(ConfigError, match=said) as refused:
        CassandraState.opaque("db", keyspace="app", table="counts", **mode)

    assert "mode='lwt' compares each row" in str(refused.value)
    assert "mode='single_writer' writes without looking" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contact_points": []}, "names no contact point"),
        ({"contact_points": "a:b"}, "names no contact point"),
        ({"contact_points": ("a", 0)}, "names no contact point"),
        ({"keyspace": "a b"}, "cannot be a keyspace name"),
        ({"table": 't"; DROP'}, "cannot be a table name"),
        ({"table": "waterspout_heads"}, "cannot be a table name"),
        ({"table": "x" * 49}, "cannot be a table name"),
        ({"consistency": "ONE"}, "might not read what the one before it wrote"),
        ({"timeout_secs": 0}, "timeout_secs is"),
        ({"connect_timeout_secs": True}, "connect_timeout_secs is"),
        ({"cache": -1}, "cache is"),
    ],
)
def test_bad_arguments_are_refused_at_once(options, words):
    options = {"contact_points": "a", "keyspace": "k", "table": "t", "mode": "lwt", **options}

    with pytest.raises(ConfigError, match=words):
        CassandraState.opaque(**options)


def test_a_recipe_travels_and_says_what_it_is():
    state = CassandraState.transactional(
        ["a", ("b", 1)], keyspace="app", table="counts", mode="lwt", password="hunter2"
    )

    assert pickle.loads(pickle.dumps(state)) == state
    assert state.title == "table app.counts in Cassandra at a:9042, b:1"
    assert state.location() == "cassandra:a:9042,b:1#app.counts"
    assert state.identity() == {
        "backend": "cassandra",
        "kind": "transactional",
        "keyspace": "app",
        "table": "counts",
        "layout": "(any key) -> value",
    }
    assert "hunter2" not in repr(state) + repr(state.address) + state.location()
    assert not state.backing().undoes_lost_attempts


def test_each_mode_says_what_it_leaves_open():
    lwt, single = (
        CassandraState.opaque("a", keyspace="k", table="t", mode=mode).weakness
        for mode in ("lwt", "single_writer")
    )

    assert "compares row by row" in lwt
    assert "only the lease of the driver keeps zombies out" in single
    for said in (lwt, single):
        assert "set commitlog_sync to batch or group" in said


def test_credentials_come_from_the_environment_and_are_not_shown(recipe, monkeypatch, proxy):
    options = {"username": "me", "password": "${DB_PASSWORD}", "address": proxy.address}
    with pytest.raises(ConfigError, match="DB_PASSWORD, which is not set"):
        recipe(**options).check()

    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    recipe(**options).check()
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreError) as refused:
        recipe(connect_timeout_secs=1, **options).check()
    assert "hunter2" not in str(refused.value)


def test_without_the_driver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cassandra", None)

    with pytest.raises(MissingDependencyError, match=r"waterspout\[cassandra\]"):
        CassandraState.opaque("a", keyspace="k", table="t", mode="lwt")


CHILD = """
import os, sys
from waterspout.state.cassandra import CassandraState
from waterspout.state._kinds import OpaqueValue
port, keyspace, table = sys.argv[1:]
make = lambda: CassandraState.opaque(
    ("127.0.0.1", int(port)), keyspace=keyspace, table=table, mode="single_writer"
).backing()
backing = make()
backing.multi_put([("n",)], [OpaqueValue(1, 0, 0, None)])
pid = os.fork()
for n in range(20):
    key = ("child" if pid == 0 else "parent",)
    backing.multi_put([key], [OpaqueValue(1, 0, n, None)])
    assert backing.multi_get([key]) == [OpaqueValue(1, 0, n, None)]
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_process_has_a_session_of_its_own_and_nobody_warns(
    cassandra_server, keyspace, table
):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(cassandra_server.port), keyspace, table],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "src"},
    )

    assert (done.returncode, done.stderr.decode()) == (0, "")
