"""A real RabbitMQ of one node, without plugins, that nobody else's Erlang can see."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services.fixtures import provided
from tests.services.servers import (
    HOST,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    MissingServer,
    Server,
    await_condition,
    free_port,
    is_free,
    missing,
)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQServer]:
    """A RabbitMQ for all tests; `fresh_queue` gives each its own. Takes 6 s or more."""
    with provided("rabbitmq", RabbitMQServer) as server:
        yield server


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "rabbitmq" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.services)


class RabbitMQServer(Server):
    """RabbitMQ with its user guest; persistent messages that it confirmed survive `kill`.

    It finds itself by way of epmd. It gets one of its own, a child of ours like itself: the one
    that it would start otherwise outlives it.
    """

    program = "rabbitmq-server"
    package = "rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self.epmd: subprocess.Popen[bytes] | None = None
        self.epmd_port, self.distribution_port = free_port(), free_port()
        self.queues = 0

    @classmethod
    def find(cls) -> Path:
        """Return the script itself, not Debian's wrapper, which insists on the user rabbitmq."""
        inner = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        found = str(inner) if inner.exists() else shutil.which(cls.program)
        if found is None:
            raise MissingServer(missing(cls.program, cls.package))
        if shutil.which("epmd") is None:
            raise MissingServer(missing("epmd", "erlang-base"))
        return Path(found)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"

    def command(self) -> list[str]:
        return ["env", *(f"{name}={value}" for name, value in self.settings()), str(self.binary)]

    def settings(self) -> Iterator[tuple[str, object]]:
        """Yield the variables by which the script is told everything."""
        yield from self.erlang()
        yield from {
            "RABBITMQ_NODENAME": f"ws{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self.distribution_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} -rabbit disk_free_limit 1000000"
            ),
            "RABBITMQ_MNESIA_BASE": self.folder / "mnesia",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PLUGINS_EXPAND_DIR": self.folder / "plugins",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "enabled_plugins",
            # None of these is there: nothing in /etc has a say, and it starts a second sooner.
            "RABBITMQ_CONF_ENV_FILE": self.folder / "none.env",
            "RABBITMQ_CONFIG_FILE": self.folder / "none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "none.advanced",
            # Else a shell stays between us and it, and it would not die with us.
            "RUNNING_UNDER_SYSTEMD": "true",
        }.items()

    def erlang(self) -> Iterator[tuple[str, object]]:
        yield from {
            "HOME": self.folder,  # where the cookie is
            "XDG_CONFIG_HOME": self.folder,
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": self.epmd_port,
        }.items()

    def launch(self) -> None:
        (self.folder / "enabled_plugins").write_text("[].\n")
        self.launch_epmd()
        super().launch()

    def launch_epmd(self) -> None:
        self.end_epmd()
        environment = os.environ | {name: str(value) for name, value in self.erlang()}
        with self.log.open("ab") as log:
            self.epmd = subprocess.Popen(
                ["epmd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                **self.identity(),
            )
        await_condition(lambda: not is_free(self.epmd_port), START_TIMEOUT_S, self.said)

    def end_epmd(self) -> None:
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait(STOP_TIMEOUT_S)
            self.epmd = None

    def stop(self) -> None:
        super().stop()
        self.end_epmd()

    def kill(self) -> None:
        super().kill()
        self.end_epmd()

    def close(self) -> None:
        """End it without the second that it takes to end in peace, and remove its data."""
        self.kill()
        super().close()

    def answers(self) -> bool:
        # It begins with a method frame, or with its own header if it does not like ours.
        return self.roundtrip(b"AMQP\x00\x00\x09\x01").startswith(b"\x01")

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Connect as someone from outside would."""
        import pika

        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            yield connection.channel()

    def fresh_queue(self, **arguments: object) -> str:
        """Declare an empty durable queue and return its name."""
        self.queues += 1
        name = f"fresh-{self.queues}"
        with self.channel() as channel:
            named = {key.replace("_", "-"): value for key, value in arguments.items()}
            channel.queue_declare(name, durable=True, arguments=named)
        return name

    def publish(self, queue: str, bodies: Iterable[bytes], **properties: object) -> None:
        """Put messages into a queue; they are on disk when this returns."""
        import pika

        lasting = pika.BasicProperties(delivery_mode=2, **properties)
        with self.channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", queue, body, lasting)

    def waiting(self, queue: str) -> int:
        """Return how many messages wait, without those that some consumer has."""
        with self.channel() as channel:
            return channel.queue_declare(queue, passive=True).method.message_count

    def bodies(self, queue: str) -> list[bytes]:
        """Take all waiting messages out of a queue."""
        found = []
        with self.channel() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
        return found
