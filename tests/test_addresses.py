"""Addresses: what is shown of them, and that no password ever is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waterspout._addresses import Secrets, addresses, check_url, masked, resolved, shown
from waterspout.coordination.zookeeper_session import Address
from waterspout.errors import ConfigError, StoreError, WaterspoutError
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.state.cassandra import CassandraState
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState

# In every password, and nowhere else.
CANARY = "kAn4rY"
ODD = "/@?#%&;:=+ \\'\"[]{}$,é\t"

pieces = st.text(st.sampled_from(ODD + "ab1"), max_size=5)
passwords = st.builds(lambda before, after: before + CANARY + after, pieces, pieces)

# How a password gets into an address: as it is, as it should be, in a query, from the environment.
URLS = (
    "{scheme}://me:{raw}@127.0.0.1:1/x",
    "{scheme}://:{raw}@127.0.0.1:1/x",
    "{scheme}://me:{quoted}@127.0.0.1:1/x",
    "{scheme}://127.0.0.1:1/x?password={raw}",
    "{scheme}://127.0.0.1:1/x?password={quoted}",
    "{scheme}://me:{raw}@127.0.0.1:notaport/x",
    "{scheme}://me:{variable}@127.0.0.1:1/x",
    "{scheme}://me:{raw}@{unset}:1/x",
    "{scheme}:/me:{raw}@127.0.0.1:1/x",
    "{variable}",
)
DSNS = (
    "host=127.0.0.1 port=1 user=me password={raw} dbname=x",
    "host=127.0.0.1 port=1 user=me password={escaped} dbname=x",
    "host=127.0.0.1 port=1 user=me password = {variable} dbname=x",
    "host={unset} password={raw}",
    "host=127.0.0.1 passwor={raw}",
    "host=127.0.0.1 port=1 dbname=postgresql://me:{quoted}@127.0.0.1:1/x",
)


def written(form: str, scheme: str, password: str) -> str:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    return form.format(
        scheme=scheme,
        raw=password,
        quoted=quote(password, safe=""),
        escaped=f"'{escaped}'",
        variable="${CANARY_OF_THE_TESTS}",
        unset="${NOBODY_HAS_SET_THIS}",
    )


def said_by(*acts: Callable[[], object]) -> str:
    """Return all that is said while doing this, errors with their causes included."""
    said = []
    for act in acts:
        try:
            said.append(repr(act()))
        except (WaterspoutError, ValueError) as error:
            said += traceback.format_exception(error)
    return "\n".join(said)


def of_state(make: Callable[[], object]) -> str:
    """Return all that a state says of itself, and that its store says when it is not there."""
    told = said_by(make)
    try:
        state = make()
    except WaterspoutError:
        return told
    return told + said_by(
        lambda: state,
        lambda: state.title,
        lambda: state.location(),
        lambda: state.identity(),
        lambda: state.check(),
        lambda: state.backing().read_head(),
    )


@settings(max_examples=4 * settings().max_examples)
@given(password=passwords, form=st.sampled_from([*URLS, *DSNS]))
@example(password=f"%a1{CANARY}", form=URLS[0])
def test_a_postgres_password_is_never_shown(form, password):
    dsn = written(form, "postgresql", password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY_OF_THE_TESTS", password)
        told = of_state(lambda: PostgresState.opaque(dsn, table="t"))

    assert CANARY not in told


@settings(max_examples=2 * settings().max_examples)
@given(password=passwords, scheme=st.sampled_from(["redis", "rediss"]), form=st.sampled_from(URLS))
def test_a_redis_password_is_never_shown(scheme, form, password):
    url = written(form, scheme, password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY_OF_THE_TESTS", password)
        told = of_state(lambda: RedisState.opaque(url, prefix="p", timeout_secs=2))

    assert CANARY not in told


@given(password=passwords, form=st.sampled_from(URLS))
def test_a_secret_of_an_object_store_is_never_shown(form, password):
    uri = written(form, "foo", password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY_OF_THE_TESTS", f"foo://me:{password}@127.0.0.1:1/x")
        told = said_by(
            lambda: FileState.opaque(uri).title,
            lambda: FileState.opaque(uri).location() if "://" in uri else "",
            lambda: FileState.opaque(uri).backing() if "foo://" in uri else "",
        )

    # A path of this machine is shown: it holds no secret.
    assert CANARY not in told or "foo://" not in uri


@given(password=passwords, form=st.sampled_from(URLS))
def test_a_rabbitmq_password_is_never_shown(form, password):
    url = written(form, "amqp", password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY_OF_THE_TESTS", password)
        told = said_by(
            lambda: RabbitMQSpout(url, "q"),
            lambda: RabbitMQSpout(url, "q")._described(ConnectionError(f"no: {url}"), final=False),
        )

    assert CANARY not in told


@given(password=passwords)
@example(password=f"//{CANARY}/")
def test_a_password_among_hosts_is_not_shown(password):
    address = f"me:{password}@127.0.0.1:1"

    told = said_by(
        lambda: MemcachedState.opaque(address, prefix="p").title,
        lambda: MemcachedState.opaque([address], prefix="p").title,
        lambda: MemcachedState.opaque([(address, 1)], prefix="p").title,
        lambda: MemcachedState.opaque([(address, 1, 2)], prefix="p").title,
        lambda: CassandraState.opaque(address, keyspace="k", table="t", mode="lwt").title,
        lambda: Address([address]).hosts,
    )

    assert CANARY not in told


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa/ss@db/app",
        "postgresql://me:pa@ss@db/app",
        "postgresql://me:12/ss@${DB}/app",
    ],
)
def test_a_url_that_hides_its_host_behind_a_password_is_refused_when_it_is_given(url):
    with pytest.raises(
        ConfigError, match=r"has an @ behind its host.*%40 for @, %2F for /"
    ) as told:
        PostgresState.opaque(url, table="t")

    assert "ss" not in str(told.value).replace("password", "")


@pytest.mark.parametrize("password", ["pa?ss", "pa#ss", "pa%2Fss", "pa%40ss", "pa%20ss", "pa:ss"])
def test_a_password_that_libpq_understands_is_let_through(password):
    state = PostgresState.opaque(f"postgresql://me:{password}@db/app", table="t")

    assert state.location() == "postgres:db:5432/app#public.t"


@pytest.mark.parametrize("url", ["redis://u:12/ss@h:1/0", "redis://u:pa?ss@h", "amqp://u:1#s@h/v"])
def test_an_at_behind_the_host_is_refused_where_a_password_may_be_before_it(url):
    with pytest.raises(ConfigError, match="the address has an @ behind its host"):
        check_url(url, "address")


@pytest.mark.parametrize("url", ["s3://bucket/a@b", "redis://me:p@ss@h:1/0", "${URL}", "/a/@b"])
def test_an_at_that_ends_no_password_is_fine(url):
    check_url(url, "address")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("rediss://me:hunter2@db:6379/0?ssl_keyfile=k", "rediss://db:6379/0"),
        ("redis://db/0?password=a@hunter2", "redis://db/0"),
        ("redis://u:12/hunter2@db/0", "redis://..."),
        ("sc://spark:443/;use_ssl=true;token=hunter2;x-key=hunter2", "sc://spark:443"),
        ("me:hunter2@db", "db"),
        ("host=db password=hunter2 3 dbname=app", "a DSN"),
        ("${URL}", "${URL}"),
    ],
)
def test_an_address_is_shown_without_what_opens_the_door(address, place):
    assert shown(address) == place


@pytest.mark.parametrize(
    "text",
    [
        "no route to redis://me:hun@ter/2@db:1",
        "password='a hunter2\\' x' failed",
        "password=a\\ hunter2 failed",
        "secret_key=hunter2",
        "access_token = hunter2&x",
    ],
)
def test_a_text_of_an_unknown_address_is_masked(text):
    assert "ter2" not in masked(text)
    assert "/2@" not in masked(text)


def test_secrets_are_found_as_they_are_written_quoted_and_shown():
    secrets = Secrets.of("redis://me:p%40ss'w%C3%A9rd@db/0")

    texts = ["p%40ss'w%C3%A9rd", "p@ss'wérd", "p%40ss%27w%C3%A9rd", repr("p@ss'wérd")]

    assert [secrets.hidden(f"said {text}.").count("***") for text in texts] == [1] * 4


def test_a_short_password_is_hidden_only_where_it_stands_alone():
    secrets = Secrets.of("redis://me:ab@db/0")

    assert secrets.hidden("ab is not about 'ab'") == "*** is not about '***'"


def test_a_cause_is_chained_unless_it_or_what_led_to_it_says_a_secret():
    secrets = Secrets.of(words=("hunter2",))
    harmless, guilty = OSError("refused"), OSError("refused")
    guilty.__context__ = OSError("cannot resolve hunter2@db")

    assert secrets.cause(harmless) is harmless
    assert secrets.cause(guilty) is None
    assert secrets.cause(None) is None


def test_a_variable_that_is_not_set_is_named_and_the_address_shown_without_its_secret():
    with pytest.raises(ConfigError, match="redis://db/0 names the environment variable NO_SUCH"):
        resolved("redis://${NO_SUCH}:hunter2@db/0")


@pytest.mark.parametrize("given", ["me:hunter2@db:1", "redis://me:hunter2@db:1", ["a", "b@c"]])
def test_a_host_has_no_password(given):
    with pytest.raises(ConfigError, match=r"names no server; write 'host:port'") as told:
        addresses(given, port=1, what="server")

    assert "hunter2" not in str(told.value)


def test_an_error_of_the_client_that_says_the_password_is_not_chained(monkeypatch):
    import psycopg

    state = PostgresState.opaque("postgresql://me:hunter2@127.0.0.1:1/app", table="t")

    def connect(*args: object, **options: object) -> None:
        raise psycopg.OperationalError("no host 'hunter2@127.0.0.1'")

    monkeypatch.setattr("waterspout.state.postgres._connections.Connection.connect", connect)
    with pytest.raises(StoreError, match=r"no host '\*\*\*@127\.0\.0\.1'") as told:
        state.check()

    assert "hunter2" not in "".join(traceback.format_exception(told.value))
