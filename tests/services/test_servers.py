"""The servers that tests start: they serve, survive, and die with us."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pymemcache
import pytest
import redis

from tests.services import fixtures
from tests.services.servers import (
    MemcachedServer,
    MissingServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    await_condition,
)


@pytest.fixture
def provide():
    """Give a server of its own to a test, by the policy of the shared ones."""
    stack = []

    def provide(name, make):
        context = fixtures.provided(name, make)
        server = context.__enter__()
        stack.append(context)
        return server

    yield provide
    for context in reversed(stack):
        context.__exit__(None, None, None)


@pytest.fixture
def open_folder():
    """A folder where servers that run as other users find their data, as in no `tmp_path`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def test_redis_keeps_what_it_acknowledged_over_a_kill(provide):
    server = provide("redis", RedisServer)
    with redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
    port = server.port

    server.kill()
    server.restart()

    with redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"v"
    assert server.port == port


def test_redis_that_is_not_durable_forgets(provide):
    server = provide("redis", lambda: RedisServer(durable=False, maxmemory="5mb"))
    with redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        assert client.config_get("maxmemory") == {"maxmemory": str(5 * 1024 * 1024)}

    server.kill()
    server.restart()

    with redis.Redis.from_url(server.url) as client:
        assert client.get("k") is None


def test_redis_restarted_in_peace_keeps_its_data(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("peace", "v")

    redis_server.restart()

    with redis.Redis.from_url(redis_server.url) as client:
        assert client.getdel("peace") == b"v"


@pytest.mark.soak
def test_a_cluster_has_all_slots_and_keeps_its_data_over_a_kill(redis_cluster):
    keys = [f"key-{number}" for number in range(30)]
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        owners = {client.get_node_from_key(key).port for key in keys}
        for key in keys:
            client.set(key, key)

    redis_cluster.kill()
    redis_cluster.restart()

    assert owners == {port for _, port in redis_cluster.addresses}
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        assert [client.get(key).decode() for key in keys] == keys


def test_postgres_keeps_what_it_committed_over_a_kill(provide):
    server = provide("postgres", PostgresServer)
    dsn = server.fresh_database()
    idle = psycopg.connect(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t AS SELECT 'v' AS v")

    server.kill()
    server.restart()

    idle.close()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT v FROM t").fetchall() == [("v",)]
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_a_fresh_database_is_empty_and_apart(postgres_server):
    one, other = postgres_server.fresh_database(), postgres_server.fresh_database()
    with psycopg.connect(one) as connection:
        connection.execute("CREATE TABLE t (v text)")

    with psycopg.connect(other) as connection:
        found = connection.execute("SELECT to_regclass('t')").fetchone()

    assert found == (None,)


def test_memcached_serves_and_forgets(provide):
    server = provide("memcached", lambda: MemcachedServer(memory_mb=8))
    with contextlib.closing(pymemcache.Client(server.address)) as client:
        client.set("k", "v", noreply=False)
        assert client.get("k") == b"v"
        assert client.stats()[b"limit_maxbytes"] == 8 * 1024 * 1024

    server.kill()
    server.restart()

    with contextlib.closing(pymemcache.Client(server.address)) as client:
        assert client.get("k") is None


def test_memcached_is_shared(memcached_server):
    assert memcached_server.running


def test_closing_leaves_nothing_behind(provide):
    server = provide("redis", RedisServer)
    process = server.process

    server.close()

    assert process.returncode is not None
    assert not server.folder.exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("redis", RedisServer), ("postgres", PostgresServer), ("memcached", MemcachedServer)],
)
def test_a_server_dies_with_whoever_started_it(provide, open_folder, name, kind):
    provide(name, kind)  # or skip
    program = f"""if True:
        import sys, tempfile
        tempfile.tempdir = {str(open_folder)!r}
        from tests.services.servers import {kind.__name__}
        server = {kind.__name__}().start()
        print(server.port, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        port = int(owner.stdout.readline())
        assert answers(port)

        owner.send_signal(signal.SIGKILL)

        await_condition(lambda: not answers(port), 20)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", [RedisServer, PostgresServer, MemcachedServer, RedisCluster])
def test_a_missing_server_names_its_package(monkeypatch, kind):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("pathlib.Path.glob", lambda path, pattern: iter(()))

    with pytest.raises(MissingServer, match=r"apt-get install (redis-server|postgresql|memcached)"):
        kind()


def absent():
    raise MissingServer("NO SUCH SERVER")


def test_without_a_server_its_tests_are_skipped(monkeypatch):
    monkeypatch.delenv(fixtures.REQUIRED, raising=False)

    with pytest.raises(pytest.skip.Exception, match="NO SUCH SERVER"):
        fixtures.provided("redis", absent).__enter__()


def test_without_a_required_server_its_tests_fail(monkeypatch):
    monkeypatch.setenv(fixtures.REQUIRED, "postgres, redis")

    with pytest.raises(pytest.fail.Exception, match=r"redis.*NO SUCH SERVER"):
        fixtures.provided("redis", absent).__enter__()


def test_who_uses_a_server_is_marked(request, redis_server):
    assert request.node.get_closest_marker("services")


def test_who_uses_none_is_not_marked(request):
    assert request.node.get_closest_marker("services") is None
