"""One Spark for many drivers, each of which may be killed: a server of Spark Connect in a JVM.

The JVM belongs to this process, as that of an embedded session does, and ends with it. Whoever
connects needs the token, since to connect means to run code as this user.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from waterspout.spark.session import SHARED
from waterspout.spark.starting import embedded_session

__all__ = ["can_share", "shared_spark"]

_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  (its name, not a secret)

_JAVA = "JDK_JAVA_OPTIONS"
# It does not live long enough for the second compiler to pay for itself.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
_HERE = "127.0.0.1"


def can_share() -> bool:
    """Whether the client of Spark Connect is installed (the extra `connect`)."""
    return all(find_spec(name) is not None for name in ("grpc", "grpc_status", "google.protobuf"))


@contextmanager
def shared_spark(log_file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start the server; yield its address, and what its drivers need in their environment."""
    token = os.environ.setdefault(_TOKEN, secrets.token_urlsafe(24))
    port = _free_port()
    settings = {
        "spark.plugins": _PLUGIN,
        "spark.connect.grpc.binding.address": _HERE,
        "spark.connect.grpc.binding.port": str(port),
        # Each driver that was killed leaves its session behind.
        "spark.connect.session.manager.defaultSessionTimeout": "2m",
    }
    if _ONE_COMPILER not in os.environ.get(_JAVA, ""):
        os.environ[_JAVA] = f"{os.environ.get(_JAVA, '')} {_ONE_COMPILER}".strip()
    session = embedded_session(log_file, settings)
    try:
        # By this name alone Spark's client sends a token without TLS.
        yield f"sc://localhost:{port}/;token=${{{_TOKEN}}}", {_TOKEN: token, SHARED: "1"}
    finally:
        with suppress(Exception):  # its JVM may be gone
            session.stop()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HERE, 0))
        return int(found.getsockname()[1])
