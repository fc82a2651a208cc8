"""A Kafka broker on this machine, until Ctrl-C: `make kafka-broker`, for the tutorial."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

from tests.services.kafka import KafkaCluster
from tests.services.servers import HOST, MissingServer


def main(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            sys.exit(f"Port {port} is in use; another one: make kafka-broker PORT={port + 1}")
    try:
        cluster = KafkaCluster()
    except MissingServer as error:
        sys.exit(str(error))
    cluster.brokers[0].port = port
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), cluster:
        print(f"Kafka is at {cluster.bootstrap}; Ctrl-C ends it and removes its data.", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]))
