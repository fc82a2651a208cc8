"""Reaching a Spark Connect server: soon, or with an error, and without a word of its token."""

from __future__ import annotations

import time
import uuid
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from waterspout._addresses import Secrets, resolved, shown
from waterspout.errors import ConfigError, MissingDependencyError, OutsideError

__all__ = ["connect_session"]

# What a server, or a proxy before it, says that is not there yet.
_AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN")
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_PAUSE_S = 0.2


def connect_session(remote: str, timeout_secs: float) -> SparkSession:
    """Return a session of the server at an address, in which `${NAME}` is from the environment.

    Spark's own client tries for ten minutes to reach a server that is not there. So the server
    is asked something beforehand, for as long as is given.
    """
    address = resolved(remote)
    secrets = _secrets(address)
    try:
        if not address.startswith("local"):  # a server that Spark starts for us is there
            _await_answer(address, timeout_secs)
        session: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    except (OutsideError, ConfigError):
        raise
    except ImportError as error:
        raise MissingDependencyError("Spark Connect's client", "connect") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OutsideError(
            f"Spark at {shown(address)} cannot be used: {secrets.hidden(reason)}. Check the "
            "address and that the server runs."
        ) from secrets.cause(error)
    return session


def _secrets(address: str) -> Secrets:
    # Not only the token: whatever else is given is sent as a header, and may open a door too.
    pairs = [part.partition("=") for part in address.partition("/;")[2].split(";")]
    harmless = ("use_ssl", "user_id", "session_id", "user_agent")
    values = [value for name, _, value in pairs if name not in harmless]
    return Secrets.of(address, words=tuple(values))


def _builder(address: str) -> Any:
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    try:
        return DefaultChannelBuilder(address)
    except Exception:  # Spark's own, whose text may quote a piece of the token
        raise ConfigError(
            "the address of Spark Connect cannot be read; write sc://host:port, and options as in "
            "sc://host:443/;use_ssl=true;token=${TOKEN}. It is not shown here because it may hold "
            "a token."
        ) from None


def _await_answer(address: str, timeout_secs: float) -> None:
    import grpc
    from pyspark.sql.connect.proto import ReleaseSessionRequest
    from pyspark.sql.connect.proto.base_pb2_grpc import SparkConnectServiceStub

    builder, place = _builder(address), shown(address)
    deadline = time.monotonic() + timeout_secs
    channel: Any = builder.toChannel()
    try:
        # To release a session that is not there changes nothing, and is answered by any server.
        request = ReleaseSessionRequest(session_id=str(uuid.uuid4()))
        request.user_context.user_id = builder.userId or ""
        stub: Any = SparkConnectServiceStub
        ask = stub(channel).ReleaseSession
        while True:
            left = deadline - time.monotonic()
            try:
                ask(request, metadata=builder.metadata(), timeout=max(left, 0.001))
            except grpc.RpcError as error:
                code, said = error.code().name, str(error.details())
            else:
                return
            if code in _REFUSED:
                raise OutsideError(
                    f"Spark at {place} does not let us in ({code}). See that the token of the "
                    "address is right; best write ${NAME} there, for a variable of the environment."
                )
            if code not in _AWAY:
                return  # it is there, and does not know the session
            if time.monotonic() + _PAUSE_S >= deadline:
                _give_up(place, timeout_secs, _secrets(address).hidden(said))
            time.sleep(_PAUSE_S)
    finally:
        channel.close()


def _give_up(place: str, timeout_secs: float, said: str) -> NoReturn:
    raise OutsideError(
        f"no Spark Connect server answers at {place} within {timeout_secs:g} s: {said[:300]}. "
        "Check the address, use_ssl, and that the server runs; connect_timeout_secs is how long it "
        "is waited for."
    )
