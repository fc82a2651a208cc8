"""TLS and passwords, against real servers that want both: who is let in, and who is refused how."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.coordination.drivers import FINGERPRINT
from tests.services.fixtures import provided
from tests.services.secured import (
    PASSWORD,
    USER,
    Certificates,
    SecuredCassandra,
    SecuredMemcached,
    SecuredPostgres,
    SecuredRabbitMQ,
    SecuredRedis,
    SecuredZooKeeper,
)
from tests.spouts.test_rabbitmq import Recorder, context
from tests.state_support import Batches
from waterspout import TLS, Config
from waterspout.coordination.factory import ZOOKEEPER_AUTH, coordination_store
from waterspout.errors import ConfigError, SourceError, StoreError, TopologyError
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.state.cassandra import CassandraState
from waterspout.state.cassandra._session import close_all
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState

pytestmark = pytest.mark.services

WRONG = "kAn4rY-wrong"


def counted(recipe: Any) -> list[Any]:
    """Commit two batches, and return what the state holds then."""
    state = recipe.make_state(Config(), 0, 1)
    batches = Batches(state)
    batches.commit({"a": 1, "b": 2})
    batches.commit({"a": 10})
    return batches.values("a", "b")


def refused(recipe: Any, *, error: type[Exception] = StoreError) -> str:
    """Return what is said when the store is not let in, or does not let us in; no secrets."""
    with pytest.raises(error) as told:
        recipe.check()
    said = "".join(traceback.format_exception(told.value))
    assert PASSWORD not in said
    assert WRONG not in said
    return str(told.value)


@pytest.fixture(scope="module")
def redis(certificates: Certificates) -> Iterator[SecuredRedis]:
    with provided("redis", lambda: SecuredRedis(certificates)) as server:
        yield server


def test_redis_by_tls_and_an_acl_user(redis, certificates, monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)

    def state(user: str = USER, password: str = "${REDIS_PASSWORD}", ca: str = certificates.ca):
        url = f"rediss://{user}:{password}@{redis.host}:{redis.port}/0?ssl_ca_certs={ca}"
        return RedisState.opaque(url, prefix="words")

    assert counted(state()) == [11, 2]
    assert "certificate verify failed" in refused(state(ca=certificates.stranger))
    assert "invalid username-password" in refused(state(password=WRONG))
    plain = f"redis://{USER}:{PASSWORD}@{redis.host}:{redis.port}/0"
    assert "cannot be used" in refused(RedisState.opaque(plain, prefix="words"))


@pytest.fixture(scope="module")
def memcached(certificates: Certificates) -> Iterator[SecuredMemcached]:
    with provided("memcached", lambda: SecuredMemcached(certificates)) as server:
        yield server


def test_memcached_by_tls_and_a_password(memcached, certificates, monkeypatch):
    monkeypatch.setenv("CACHE_PASSWORD", PASSWORD)

    known = TLS(certificates.ca)

    def state(password: str | None = "${CACHE_PASSWORD}", tls: TLS | None = known):
        user = None if password is None else USER
        options = {"username": user, "password": password, "tls": tls}
        return MemcachedState.opaque([memcached.address], prefix="words", **options)

    assert counted(state()) == [11, 2]
    assert "certificate verify failed" in refused(state(tls=TLS(certificates.stranger)))
    assert "does not let us in with this user name and password" in refused(state(WRONG))
    assert "unauthenticated" in refused(state(None))
    assert "cannot be used" in refused(state(tls=None))
    assert PASSWORD not in repr(state(PASSWORD)) + repr(state(PASSWORD).identity())


@pytest.fixture(scope="module")
def postgres(certificates: Certificates) -> Iterator[SecuredPostgres]:
    with provided("postgres", lambda: SecuredPostgres(certificates)) as server:
        server.make_user()
        yield server


def test_postgres_by_verified_tls_and_scram(postgres, certificates, monkeypatch):
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)

    def state(password: str = "${PG_PASSWORD}", ca: str = certificates.ca, mode="verify-full"):
        options = f"sslmode={mode}&sslrootcert={ca}"
        place = f"{postgres.host}:{postgres.port}/app"
        return PostgresState.opaque(f"postgresql://{USER}:{password}@{place}?{options}", table="t")

    assert counted(state()) == [11, 2]
    assert "certificate verify failed" in refused(state(ca=certificates.stranger))
    assert "password authentication failed" in refused(state(WRONG))
    assert "no pg_hba.conf entry" in refused(state(mode="disable"))


@pytest.fixture(scope="module")
def zookeeper(certificates: Certificates) -> Iterator[SecuredZooKeeper]:
    with provided("zookeeper", lambda: SecuredZooKeeper(certificates)) as server:
        yield server


def test_zookeeper_by_tls_a_certificate_of_our_own_and_a_user(zookeeper, certificates, monkeypatch):
    monkeypatch.setenv(ZOOKEEPER_AUTH, f"{USER}:{PASSWORD}")
    conf = Config(
        zookeeper_servers=[zookeeper.address],
        zookeeper_tls_ca=certificates.ca,
        zookeeper_tls_cert=certificates.cert("client"),
        zookeeper_tls_key=certificates.key("client"),
        zookeeper_acl=["world:anyone:r"],
        connect_timeout_secs=15,
    )
    store = coordination_store("words", conf)

    epoch = store.acquire(FINGERPRINT)
    client = store._session._client
    acls = {str(acl.id.scheme): acl.perms for acl in client.get_acls("/transactional/words")[0]}
    store.release()

    assert epoch == 1
    assert acls == {"digest": 31, "world": 1}  # all, and read
    monkeypatch.setenv(ZOOKEEPER_AUTH, f"other:{WRONG}")
    with pytest.raises(StoreError, match="belongs to another user") as told:
        coordination_store("words", conf).acquire(FINGERPRINT)
    assert WRONG not in "".join(traceback.format_exception(told.value))


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # kazoo leaves its sockets to the collector
)
def test_zookeeper_with_a_certificate_of_somebody_else_is_not_used(zookeeper, certificates):
    conf = Config(
        zookeeper_servers=[zookeeper.address],
        zookeeper_tls_ca=certificates.stranger,
        connect_timeout_secs=1,
    )

    with pytest.raises(StoreError, match=r"no ZooKeeper answers at .* with these certificates"):
        coordination_store("words", conf).acquire(FINGERPRINT)


@pytest.fixture(scope="module")
def secured_rabbitmq(certificates: Certificates) -> Iterator[SecuredRabbitMQ]:
    with provided("rabbitmq", lambda: SecuredRabbitMQ(certificates)) as server:
        yield server


@pytest.mark.soak  # its broker takes ten seconds to start
def test_rabbitmq_by_tls(secured_rabbitmq, certificates):
    import pika

    tls = TLS(certificates.ca)
    parameters = pika.URLParameters(secured_rabbitmq.url)
    parameters.ssl_options = pika.SSLOptions(tls.context(), secured_rabbitmq.host)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"one")

    spout, recorder = RabbitMQSpout(secured_rabbitmq.url, "orders", tls=tls), Recorder()
    spout.open({}, context(), recorder)
    for _ in range(200):
        spout.next_tuple()
        if recorder.values:
            break
        spout._link.poll(0.05)
    spout.close()

    assert recorder.values == [("one",)]
    wrong = RabbitMQSpout(secured_rabbitmq.url, "orders", tls=TLS(certificates.stranger))
    with pytest.raises(SourceError, match="certificate verify failed"):
        wrong.open({}, context(), Recorder())
    secret = secured_rabbitmq.url.replace("guest:guest", f"guest:{WRONG}")
    with pytest.raises(SourceError, match="ACCESS_REFUSED") as told:
        RabbitMQSpout(secret, "orders", tls=tls).open({}, context(), Recorder())
    assert WRONG not in "".join(traceback.format_exception(told.value))


@pytest.fixture(scope="module")
def cassandra(certificates: Certificates) -> Iterator[SecuredCassandra]:
    with provided("cassandra", lambda: SecuredCassandra(certificates)) as server:
        yield server
    close_all()


@pytest.mark.soak  # its server takes twenty seconds to start
def test_cassandra_by_tls_and_a_password(cassandra, certificates, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "cassandra")

    known = TLS(certificates.ca)

    def state(password: str = "${DB_PASSWORD}", tls: TLS | None = known):
        options = {"username": "cassandra", "password": password, "tls": tls, "mode": "lwt"}
        return CassandraState.opaque([cassandra.address], keyspace="app", table="t", **options)

    cassandra.create_keyspace("app")
    assert counted(state()) == [11, 2]
    assert "cannot be used" in refused(state(WRONG))
    assert "CERTIFICATE_VERIFY_FAILED" in refused(state(tls=TLS(certificates.stranger)))


def test_a_key_needs_its_certificate_and_files_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="without its certificate"):
        TLS(key="a.key")
    with pytest.raises(ConfigError, match=r"ca=/nowhere/ca\.pem\): No such file.*on the executors"):
        TLS("/nowhere/ca.pem").context()
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"ca=.*ca\.pem\): .*files in PEM form"):
        TLS(str(tmp_path / "ca.pem")).context()


def test_certificates_are_for_an_encrypted_connection():
    with pytest.raises(TopologyError, match="write amqps://"):
        RabbitMQSpout("amqp://me:x@mq/v", "q", tls=TLS())


def test_an_acl_that_shuts_us_out_is_refused_before_anything_is_created():
    conf = Config(zookeeper_servers=["127.0.0.1"], zookeeper_acl=["world:anyone:r"])

    with pytest.raises(ConfigError, match="zookeeper_acl lets nobody do everything"):
        coordination_store("words", conf)
