"""PostgreSQL states under faults: servers that die, locks, lost answers, forks, the cost."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.services.fixtures import provided
from tests.services.servers import PostgresServer, await_condition
from tests.state.postgres_support import Database
from tests.state_support import OWNER, Add, Batches
from waterspout.errors import FencedError, OutageError, StoreError
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueValue
from waterspout.state.postgres import _connections as postgres_connections
from waterspout.state.postgres._connections import close_idle
from waterspout.state.postgres._map import PostgresMap
from waterspout.testing._proxy import FaultProxy
from waterspout.trident import Sum

pytestmark = pytest.mark.services

each_exact_kind = pytest.mark.parametrize(
    "kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL], ids=lambda kind: kind.value
)
any_path = pytest.mark.parametrize("combine", [None, Sum()], ids=["folded", "combined"])
COMMIT = b"COMMIT"
numbers = count()


@pytest.fixture(scope="module")
def own_server(postgres_server):
    """A server that tests may kill; they start it again."""
    with provided("postgres", PostgresServer) as server:
        yield server


@pytest.fixture
def mortal(own_server):
    """A database on that server."""
    own_server.start()
    yield Database(own_server.fresh_database())
    close_idle()


@pytest.fixture(scope="module")
def emptied(postgres_server):
    return Database(postgres_server.fresh_database())


@pytest.fixture
def database(emptied):
    """A database with nothing in it."""
    yield emptied
    close_idle()
    emptied.change("DROP SCHEMA public CASCADE")
    emptied.change("CREATE SCHEMA public")


@pytest.fixture
def proxied(database, postgres_server):
    """The same database, behind a proxy."""
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        host, port = proxy.address
        far = Database(make_conninfo(database.dsn, host=host, port=port))
        yield far, proxy
        close_idle()
        assert proxy.connections >= 0  # it has taken note that they are closed


def head_at(txid, attempt=0, *, committed=False):
    return Head(Stamp(Writer(OWNER, 1), txid, attempt), committed)


@contextmanager
def in_thread(work):
    """Do something meanwhile; raise what it raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(60)
    assert not thread.is_alive()


def await_waiter(database, number=1):
    """Wait until so many sessions wait for a lock of another."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    await_condition(lambda: database.select(waiting)[0][0] >= number, 20)


@each_exact_kind
@any_path
def test_a_server_killed_in_the_middle_of_a_write_has_written_all_or_nothing(
    mortal, own_server, kind, combine
):
    batches = Batches(mortal.state(kind=kind), combine=combine)
    batches.commit({"x": 1, "y": 1})
    batches.claim()
    holder = psycopg.connect(mortal.dsn)
    # The write has written what comes before y, and waits.
    holder.execute("SELECT * FROM word_counts WHERE word = 'y' FOR UPDATE")

    with in_thread(lambda: batches.write({"x": 10, "y": 10, "new": 10})) as raised:
        await_waiter(mortal)
        own_server.kill()
    holder.close()
    own_server.start()

    assert [type(error) for error in raised] == [OutageError]
    assert mortal.counts() == {"x": 1, "y": 1}
    batches.commit({"x": 10, "y": 10, "new": 10})
    assert mortal.counts() == {"x": 11, "y": 11, "new": 10}


@each_exact_kind
def test_what_was_answered_survives_a_kill_at_once(mortal, own_server, kind):
    batches = Batches(mortal.state(kind=kind), combine=Sum())
    for n in range(3):
        batches.lose({"x": 1, f"batch {n}": 1})
        own_server.kill()
        own_server.start()
        batches.mark()
        batches.settle()

    assert mortal.counts() == {"x": 3, "batch 0": 1, "batch 1": 1, "batch 2": 1}


def test_a_restart_between_batches_is_not_noticed(mortal, own_server):
    batches = Batches(mortal.state(), combine=Sum())
    others = [mortal.state() for _ in range(3)]
    batches.commit({"x": 1})
    with _lent(others):
        pass  # several connections are idle now, all of them soon dead
    for _ in range(3):
        own_server.restart()
        batches.commit({"x": 1})
        assert batches.values("x") == [batches.txid - 1]


@contextmanager
def _lent(states):
    clients = [state._backing._client.lent() for state in states]
    for client in clients:
        client.__enter__()
    yield
    for client in clients:
        client.__exit__(None, None, None)


def test_a_session_that_was_terminated_is_replaced(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"x": 1})
    me = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"

    database.select(me, "waterspout")
    batches.commit({"x": 1})

    assert batches.values("x") == [2]


def test_a_server_that_is_gone_is_an_error_at_once(mortal, own_server):
    batches = Batches(mortal.state())
    batches.commit({"x": 1})
    own_server.kill()

    started = time.monotonic()
    with pytest.raises(StoreError, match=r"cannot be used: .*onnection.* refused"):
        batches.values("x")

    assert time.monotonic() - started < 5
    own_server.start()
    assert batches.values("x") == [1]


def test_a_replica_is_refused(mortal, own_server):
    own_server.stop()
    signal = own_server.data / "standby.signal"
    signal.touch()
    own_server.start()
    try:
        with pytest.raises(StoreError, match="is a replica, which only reads"):
            mortal.recipe().check()
    finally:
        own_server.stop()
        signal.unlink()


def test_a_deadlock_is_resolved_within_the_attempt(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"a": 1, "b": 1})
    batches.claim()
    with psycopg.connect(database.dsn) as other:
        # We are to be the ones who give up.
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("UPDATE word_counts SET _nulls = _nulls WHERE word = 'b'")
        with in_thread(lambda: batches.write({"a": 10, "b": 10})) as raised:
            await_waiter(database)
            # Waits for a, which our write holds, as it waits for b.
            other.execute("UPDATE word_counts SET _nulls = _nulls WHERE word = 'a'")
            other.commit()

    assert raised == []
    assert database.counts() == {"a": 11, "b": 11}
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    await_condition(lambda: database.select(deadlocks)[0][0] >= 1, 20)


def test_a_lock_held_too_long_is_waited_for_again(database, monkeypatch):
    batches = Batches(database.state(lock_timeout_secs=0.05), combine=Sum())
    batches.commit({"a": 1})
    batches.claim()
    slept = []
    with psycopg.connect(database.dsn) as other:
        other.execute("UPDATE word_counts SET _nulls = _nulls WHERE word = 'a'")

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                other.commit()

        monkeypatch.setattr(postgres_connections, "sleep", sleep)
        batches.write({"a": 10})

    assert len(slept) == 3
    assert database.counts() == {"a": 11}


def test_a_lock_that_is_never_freed_ends_in_an_error(database, monkeypatch):
    batches = Batches(database.state(lock_timeout_secs=0.01), combine=Sum())
    batches.commit({"a": 1})
    batches.claim()
    slept = []
    monkeypatch.setattr(postgres_connections, "sleep", slept.append)
    with psycopg.connect(database.dsn) as other:
        other.execute("UPDATE word_counts SET _nulls = _nulls WHERE word = 'a'")
        with pytest.raises(StoreError, match="lock timeout"):
            batches.write({"a": 10})

    assert len(slept) == 8
    assert max(slept) < 3
    assert database.counts() == {"a": 1}


def test_a_server_that_is_serializable_by_default_is_no_trouble(database):
    name = psycopg.conninfo.conninfo_to_dict(database.dsn)["dbname"]
    database.change(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"a": 1})

    with in_thread(
        lambda: [database.state().multi_put([(f"{n}",)], [n]) for n in range(20)]
    ) as bad:
        for _ in range(10):
            batches.commit({"a": 1})

    assert bad == []
    assert batches.values("a", "19") == [11, 19]
    database.change(f"ALTER DATABASE {name} RESET default_transaction_isolation")


def test_the_head_cannot_move_while_a_write_of_the_old_attempt_is_under_way(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"x": 1})
    batches.claim()
    old = Batches(database.state(), 1, Sum(), batches.ledger, batches.attempt)
    with psycopg.connect(database.dsn) as holder:
        holder.execute("SELECT * FROM word_counts WHERE word = 'x' FOR UPDATE")
        with in_thread(lambda: old.write({"x": 100, "new": 100})) as raised:
            await_waiter(database)
            with in_thread(batches.claim) as claim:
                await_waiter(database, 2)
                holder.commit()

    assert raised == claim == []
    assert database.counts() == {"x": 1}  # written first, and then undone
    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* at batch 2 attempt 1"):
        old.write({"x": 100})
    batches.write({"x": 2})
    assert database.counts() == {"x": 3}


def test_tasks_of_one_attempt_write_at_the_same_time(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"x": 1, "y": 1})
    batches.claim()
    other = Batches(database.state(), 1, Sum(), batches.ledger, batches.attempt)
    with psycopg.connect(database.dsn) as holder:
        holder.execute("SELECT * FROM word_counts WHERE word = 'x' FOR UPDATE")
        with in_thread(lambda: other.write({"x": 1})) as raised:
            await_waiter(database)
            batches.write({"y": 1})  # is not held up by the other
            assert database.counts() == {"x": 1, "y": 2}
            holder.commit()

    assert raised == []
    assert database.counts() == {"x": 2, "y": 2}


def test_a_writer_that_stops_in_the_middle_is_thrown_out(database):
    recipe = database.recipe(lock_timeout_secs=0.2)
    batches = Batches(database.state(lock_timeout_secs=0.2), combine=Sum())
    batches.commit({"x": 1})
    with recipe.backing()._client.lent() as stopped:
        stopped.execute("BEGIN")
        stopped.execute("SELECT * FROM _waterspout_heads FOR SHARE")

        batches.commit({"x": 1})  # needs the head

        with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
            stopped.execute("COMMIT")
    assert database.counts() == {"x": 2}


def test_many_writers_outside_of_batches_lose_nothing(database):
    Batches(database.state()).commit({"a": 1})

    def add(state):
        for _ in range(10):
            state.multi_update([("b",), ("a",), ("new",)], [Add(1)] * 3)

    with (
        in_thread(lambda: add(database.state())) as one,
        in_thread(lambda: add(database.state())) as two,
    ):
        add(database.state())

    assert one == two == []
    assert database.counts() == {"a": 31, "b": 30, "new": 30}


def test_a_table_that_another_driver_makes_between_two_looks_is_not_foreign(database, monkeypatch):
    backing, other = database.state()._backing, database.state()
    look, looks = PostgresMap._exists, []

    def look_and_let_the_other_make_it(self, connection, table):
        found = look(self, connection, table)
        if self is backing:
            looks.append(table)
            if len(looks) == 1:
                other.multi_put([("a",)], [1])
        return found

    monkeypatch.setattr(PostgresMap, "_exists", look_and_let_the_other_make_it)

    assert backing.multi_get([("a",)]) == [None]  # as it was when the look began
    assert len(looks) > 1
    assert backing.multi_get([("a",)])[0].value == 1


def test_two_drivers_may_make_the_same_new_table(database):
    threads = [lambda n=n: database.state().multi_put([(f"{n}",)], [n]) for n in range(4)]

    with (
        in_thread(threads[0]) as a,
        in_thread(threads[1]) as b,
        in_thread(threads[2]) as c,
    ):
        threads[3]()

    assert a == b == c == []
    assert database.counts() == {"0": 0, "1": 1, "2": 2, "3": 3}


@each_exact_kind
@any_path
def test_a_write_whose_commit_was_answered_in_vain_is_done_once(proxied, kind, combine):
    far, proxy = proxied
    batches = Batches(far.state(kind=kind), combine=combine)
    batches.commit({"x": 1})
    batches.claim()

    proxy.drop_next_reply(COMMIT)
    batches.write({"x": 10, "new": 10})

    assert proxy.dropped == 1
    batches.mark()
    batches.settle()
    assert far.counts() == {"x": 11, "new": 10}


@each_exact_kind
def test_a_write_whose_commit_never_arrived_is_done_once(proxied, kind):
    far, proxy = proxied
    batches = Batches(far.state(kind=kind), combine=Sum())
    batches.commit({"x": 1})
    batches.claim()

    proxy.drop_next_request(COMMIT)
    batches.write({"x": 10})

    assert proxy.dropped == 1
    assert far.counts() == {"x": 11}


def test_an_addition_that_has_no_batch_beside_it_is_not_made_twice(proxied):
    far, proxy = proxied
    batches = Batches(far.state(kind=StateKind.NON_TRANSACTIONAL), combine=Sum())
    batches.commit({"x": 1})
    batches.claim()

    proxy.drop_next_reply(COMMIT)
    with pytest.raises(StoreError, match="not known whether it was"):
        batches.write({"x": 10})

    assert far.counts() == {"x": 11}


def test_a_comparison_whose_answer_was_lost_is_not_made_twice(proxied):
    far, proxy = proxied
    state = far.state()
    state.multi_put([("x",)], [1])

    proxy.drop_next_reply(COMMIT)
    with pytest.raises(StoreError, match="not known whether it was"):
        state.multi_update([("x",)], [Add(10)])

    assert far.counts() == {"x": 11}


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_head_is_moved_once_whatever_of_its_commit_was_lost(proxied, lost):
    far, proxy = proxied
    backing = far.recipe().backing()
    backing.move_head(None, head_at(1))

    getattr(proxy, f"drop_next_{lost}")(COMMIT)
    backing.move_head(head_at(1), head_at(1, committed=True))

    assert proxy.dropped == 1
    assert backing.read_head() == head_at(1, committed=True)


def test_a_head_that_another_has_moved_meanwhile_stays_his(proxied, monkeypatch):
    far, proxy = proxied
    backing = far.recipe().backing()
    backing.move_head(None, head_at(1))
    real, direct = postgres_connections.close_idle, far.recipe(table="word_counts").backing()

    def another_comes(address=None):
        monkeypatch.undo()
        real(address)
        direct.move_head(head_at(1), head_at(1, 7))

    monkeypatch.setattr(postgres_connections, "close_idle", another_comes)
    proxy.drop_next_request(COMMIT)
    with pytest.raises(FencedError, match="another driver has moved the head"):
        backing.move_head(head_at(1), head_at(2))

    assert backing.read_head() == head_at(1, 7)


@pytest.mark.soak
def test_a_server_that_stops_answering_is_given_up_and_the_write_is_done_once(proxied, monkeypatch):
    monkeypatch.setattr(postgres_connections, "_PATIENCE_S", 0.1)
    far, proxy = proxied
    batches = Batches(far.state(statement_timeout_secs=0.5, connect_timeout_secs=2), combine=Sum())
    batches.commit({"x": 1})
    batches.claim()

    proxy.hang()
    with pytest.raises(StoreError, match=r"not answered for 0\.6 s|timeout expired"):
        batches.write({"x": 10})
    proxy.hang(False)

    batches.commit({"x": 10})
    assert far.counts() == {"x": 11}


def test_a_forked_process_leaves_its_parents_connections_alone(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"x": 1})
    mine = postgres_connections._idle._kept.get().items[0][1].info.backend_pid

    child = os.fork()
    if child == 0:
        with database.recipe().backing()._client.lent() as connection:
            os._exit(connection.info.backend_pid == mine)
    _, status = os.waitpid(child, 0)
    batches.commit({"x": 1})

    assert os.waitstatus_to_exitcode(status) == 0
    assert postgres_connections._idle._kept.get().items[0][1].info.backend_pid == mine
    assert batches.values("x") == [2]


def test_no_more_than_a_few_connections_are_kept(database):
    with _lent([database.state() for _ in range(12)]):
        pass

    assert len(postgres_connections._idle._kept.get().items) == 8


@pytest.mark.parametrize("keys", [1, 5_000])
def test_a_write_takes_two_round_trips_whatever_the_number_of_keys(proxied, keys):
    far, proxy = proxied
    backing = far.recipe().backing()
    backing.move_head(None, head_at(1))
    names = [(f"word {n}",) for n in range(keys)]
    trips = {}

    def count_trips(name, work):
        before = proxy.requests
        work()
        trips[name] = proxy.requests - before

    stamp = head_at(1).stamp
    count_trips("combine", lambda: backing.fenced_combine(stamp, names, [1] * keys, Sum()))
    count_trips("put", lambda: backing.fenced_put(stamp, names, [OpaqueValue(1, 0, 1)] * keys))
    count_trips("get", lambda: backing.multi_get(names))
    count_trips("head", backing.read_head)
    count_trips("move", lambda: backing.move_head(head_at(1), head_at(1, committed=True)))

    slack = 2 if keys > 1 else 0  # a large request may be answered before it is all sent
    wanted = {"combine": 2, "put": 2, "get": 1, "head": 1, "move": 3}
    assert all(wanted[name] <= n <= wanted[name] + slack for name, n in trips.items()), trips
    assert proxy.connections == 1


def test_neither_reading_nor_writing_many_keys_reads_the_whole_table(database):
    backing = database.recipe().backing()
    backing.move_head(None, head_at(1))
    keys = [(f"word {n:06}",) for n in range(40_000)]
    backing.fenced_combine(head_at(1).stamp, keys, [1] * len(keys), Sum())
    database.change("ANALYZE word_counts")
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'word_counts'"
    plans = []
    real = backing._sql.select_wanted()
    with backing._client.lent() as connection:
        arrays = [backing._layout.key_columns(keys[:20_000])[i] for i in (0, 1)]
        texts = ["{" + ",".join(f'"{v}"' for v in column) + "}" for column in arrays]
        plans = connection.execute(f"EXPLAIN {real}", texts).fetchall()
        connection.execute("SELECT pg_stat_force_next_flush()")
    before = database.select(scans)

    assert backing.multi_get(keys[:20_000])[0] == OpaqueValue(1, 0, 1)
    backing.fenced_combine(head_at(1).stamp, keys[::2], [1] * 20_000, Sum())

    with backing._client.lent() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
    assert not re.search("Seq Scan", str(plans))
    assert "word_counts_pkey" in str(plans)
    assert database.select(scans) == before


def test_updates_stay_in_their_pages_and_leave_the_index_alone(database):
    batches = Batches(database.state(), combine=Sum())
    keys = {f"word {n:05}": 1 for n in range(2_000)}
    for _ in range(2):
        batches.commit(keys)
    few = dict.fromkeys(list(keys)[::10], 1)
    for _ in range(5):
        batches.commit(few)
    with batches.state._backing._client.lent() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")

    ((updated, hot),) = database.select(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'word_counts'"
    )
    assert updated == 3_000
    assert hot >= 0.5 * updated


def test_a_scan_in_parts_has_each_record_once_also_while_rows_move(database):
    batches = Batches(database.state(), combine=Sum())
    names = [f"word {n}" for n in range(3_000)]
    batches.commit(dict.fromkeys(names, 1))
    found = []
    for shard in range(4):
        for chunk in batches.state._backing.scan(shard, 4):
            found += [key for (key,), _ in chunk]
        batches.commit(dict.fromkeys(names, 1))  # every row has another place now

    assert sorted(found) == sorted(names)


def test_a_scan_that_is_left_gives_its_connection_back(database):
    state = database.state()
    Batches(state).commit({"a": 1, "b": 2})

    scan = state._backing.scan()
    next(scan)
    scan.close()

    idle = "SELECT state FROM pg_stat_activity WHERE application_name = 'waterspout'"
    assert {state for (state,) in database.select(idle)} == {"idle"}
