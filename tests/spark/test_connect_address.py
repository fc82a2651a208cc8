"""A Spark Connect server that is not there: an error, soon, that says nothing of the token."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator

import pytest

from waterspout.errors import ConfigError, OutsideError
from waterspout.spark.connect import connect_session

pytestmark = pytest.mark.timeout(20)

TOKEN = "kAn4rY"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("options", ["token={}", "use_ssl=true;token={}", "x-api-key={}"])
def test_a_server_that_is_not_there_is_an_error_in_time(options):
    began = time.monotonic()

    with pytest.raises(OutsideError, match=r"sc://127\.0\.0\.1:1 within 0\.5 s") as told:
        connect_session(f"sc://127.0.0.1:1/;{options.format(TOKEN)}", 0.5)

    assert time.monotonic() - began < 10  # and not the ten minutes of Spark's own client
    assert TOKEN not in "".join(traceback.format_exception(told.value))


def test_a_server_that_never_answers_is_an_error_in_time(silent_port, monkeypatch):
    monkeypatch.setenv("SPARK_TOKEN", TOKEN)

    with pytest.raises(OutsideError, match=r"no Spark Connect server answers .* within 0\.5 s"):
        connect_session(f"sc://127.0.0.1:{silent_port}/;token=${{SPARK_TOKEN}}", 0.5)


@pytest.mark.parametrize(
    "address",
    [
        f"sc://host:1/{TOKEN};token={TOKEN}",
        f"sc://host:1/;token{TOKEN}",
        f"sc://host:{TOKEN}/;token={TOKEN}",
        f"sc:/host/;token={TOKEN}",
        f"token={TOKEN}",
    ],
)
def test_an_address_that_cannot_be_read_is_not_quoted(address):
    with pytest.raises(ConfigError, match=r"write sc://host:port.*token=\$\{TOKEN\}") as told:
        connect_session(address, 0.5)

    assert TOKEN not in "".join(traceback.format_exception(told.value))
