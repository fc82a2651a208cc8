"""Faults of the network, each against a server of lines and some against a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
import redis

from tests.services.servers import await_condition
from waterspout.testing import FaultProxy

TIMEOUT_S = 10.0


class LineServer:
    """Answers each line with `re:` and the line; a line `wait` only when the gate is open."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.gate = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()
        self.threads: list[threading.Thread] = []
        self.begin(self.accept)

    def begin(self, act: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=act, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.begin(self.answer, connection)

    def answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    if line == b"wait\n":
                        assert self.gate.wait(TIMEOUT_S)
                    if line == b"bye\n":
                        return
                    if not line.endswith(b"\n"):
                        continue
                    self.got.append(line)
                    connection.sendall(b"re:" + line)
            except ConnectionError:
                return

    def close(self) -> None:
        self.gate.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(TIMEOUT_S)


class Client:
    """A connection through the proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.socket = socket.create_connection(proxy.address, timeout=TIMEOUT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Return so many bytes, fewer only if the connection ends before."""
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError:
                break
            if not piece:
                break
            data += piece
        return data

    def ask(self, line: bytes) -> bytes:
        self.send(line)
        return self.receive(len(line) + 3)


@pytest.fixture
def server():
    server = LineServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server):
    with FaultProxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with Client(proxy) as client:
        yield client


def test_what_passes_is_counted(proxy, client):
    answers = [client.ask(b"a\n"), client.ask(b"bc\n")]

    assert answers == [b"re:a\n", b"re:bc\n"]
    assert (proxy.connections, proxy.requests, proxy.dropped) == (1, 2, 0)
    assert (proxy.bytes_up, proxy.bytes_down) == (5, 11)


def test_a_pipeline_is_one_request(proxy, client):
    client.send(b"a\nb\nc\n")
    client.receive(15)

    assert proxy.requests == 1


def test_requests_of_all_connections_are_counted(proxy, client):
    client.ask(b"a\n")
    with Client(proxy) as other:
        other.ask(b"a\n")
    client.ask(b"a\n")

    assert (proxy.connections, proxy.requests) == (2, 3)


def test_large_data_pass_unchanged(client):
    line = bytes(range(11, 256)) * 20_000 + b"\n"
    sending = threading.Thread(target=client.send, args=(line,), daemon=True)
    sending.start()

    answer = client.receive(len(line) + 3)
    sending.join(TIMEOUT_S)

    assert answer == b"re:" + line


def test_an_end_of_the_server_reaches_the_client(client):
    client.send(b"a\nbye\n")

    assert client.receive(100) == b"re:a\n"


def test_a_client_that_has_said_all_still_gets_its_reply(server, client):
    client.send(b"wait\n")
    client.socket.shutdown(socket.SHUT_WR)
    server.gate.set()

    assert client.receive(100) == b"re:wait\n"


def test_without_a_server_connections_end():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        host, port = gone.getsockname()

    with FaultProxy(host, port) as proxy, Client(proxy) as client:
        assert client.receive(1) == b""


def test_cut_ends_all_connections_there_are(proxy, client):
    client.ask(b"a\n")
    with Client(proxy) as silent:
        proxy.cut()

        assert client.receive(1) == silent.receive(1) == b""
    with Client(proxy) as new:
        assert new.ask(b"a\n") == b"re:a\n"


def test_refused_are_new_connections_only(proxy, client):
    proxy.refuse(True)

    with Client(proxy) as refused:
        assert refused.receive(1) == b""
    assert client.ask(b"a\n") == b"re:a\n"
    assert proxy.connections == 1
    proxy.refuse(False)
    with Client(proxy) as new:
        assert new.ask(b"a\n") == b"re:a\n"


def test_a_lost_reply_is_of_a_request_that_was_carried_out(server, proxy, client):
    proxy.drop_next_reply()

    assert client.ask(b"a\n") == b""
    assert server.got == [b"a\n"]
    assert (proxy.dropped, proxy.bytes_down) == (1, 0)


def test_a_lost_reply_is_the_only_one(proxy, client):
    proxy.drop_next_reply()
    client.ask(b"a\n")

    with Client(proxy) as new:
        assert new.ask(b"a\n") == b"re:a\n"
    assert proxy.dropped == 1


def test_a_reply_is_lost_where_the_request_matches(server, proxy, client):
    proxy.drop_next_reply(b"incr")

    assert client.ask(b"get\n") == b"re:get\n"
    assert client.ask(b"an incr\n") == b""
    assert server.got == [b"get\n", b"an incr\n"]


@pytest.mark.parametrize("arm", [FaultProxy.drop_next_reply, FaultProxy.drop_next_request])
@pytest.mark.parametrize("pieces", [(b"an in", b"cr\n"), (b"an i", b"n", b"cr\n")])
def test_a_match_may_come_in_pieces(proxy, client, arm, pieces):
    arm(proxy, b"incr")

    sent = 0
    for piece in pieces[:-1]:
        client.send(piece)
        sent += len(piece)
        await_condition(lambda sent=sent: proxy.bytes_up == sent, TIMEOUT_S)
    client.send(pieces[-1])

    assert client.receive(1) == b""
    assert proxy.dropped == 1


def test_pieces_of_two_connections_are_no_match(proxy, client):
    proxy.drop_next_reply(b"incr")

    client.send(b"in")
    await_condition(lambda: proxy.bytes_up == 2, TIMEOUT_S)
    with Client(proxy) as other:
        assert other.ask(b"cr\n") == b"re:cr\n"
    assert client.ask(b"cr\n") == b""


def test_a_reply_is_not_lost_before_the_server_gave_it(server, proxy, client):
    proxy.drop_next_reply()
    client.send(b"wait\n")
    await_condition(lambda: proxy.bytes_up == 5, TIMEOUT_S)

    assert proxy.dropped == 0
    server.gate.set()
    assert client.receive(1) == b""
    assert server.got == [b"wait\n"]


def test_a_reply_that_was_to_be_lost_is_counted_however_its_connection_ends(server, proxy, client):
    proxy.drop_next_reply()
    client.send(b"wait\n")
    await_condition(lambda: proxy.bytes_up == 5, TIMEOUT_S)

    proxy.cut()

    assert client.receive(1) == b""
    assert proxy.dropped == 1
    with Client(proxy) as other:  # it was the only one
        other.send(b"a\n")
        assert other.receive(5) == b"re:a\n"
    assert proxy.dropped == 1


def test_a_lost_reply_to_a_pipeline_is_lost_whole(server, proxy, client):
    proxy.drop_next_reply(b"c")
    lines = [b"a\n", b"b\n", b"c\n", b"d\n"]

    client.send(b"".join(lines))

    assert client.receive(1) == b""
    assert server.got == lines


def test_a_lost_request_does_not_reach_the_server(server, proxy, client):
    proxy.drop_next_request()

    assert client.ask(b"a\n") == b""
    assert (proxy.dropped, proxy.bytes_up, server.got) == (1, 0, [])
    with Client(proxy) as new:
        assert new.ask(b"a\n") == b"re:a\n"


def test_a_request_is_lost_where_it_matches(server, proxy, client):
    proxy.drop_next_request(b"incr")

    assert client.ask(b"get\n") == b"re:get\n"
    assert client.ask(b"incr\n") == b""
    assert server.got == [b"get\n"]


def test_faults_strike_in_the_order_in_which_they_were_armed(server, proxy):
    proxy.drop_next_request()
    proxy.drop_next_reply()

    for line in (b"a\n", b"b\n"):
        with Client(proxy) as client:
            assert client.ask(line) == b""
    assert (server.got, proxy.dropped) == ([b"b\n"], 2)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_a_reply_is_cut_after_some_bytes(server, proxy, client, n):
    proxy.cut_reply_after(n)
    client.send(b"a\n")

    assert client.receive(100) == b"re:a\n"[:n]
    assert (proxy.dropped, proxy.bytes_down) == (1, n)
    assert server.got == [b"a\n"]


def test_a_reply_that_is_too_short_to_be_cut_passes(proxy, client):
    proxy.cut_reply_after(6)

    assert client.ask(b"a\n") == b"re:a\n"
    assert client.ask(b"longer\n") == b"re:longer\n"
    assert proxy.dropped == 0


def test_a_reply_cannot_be_cut_after_nothing(proxy):
    with pytest.raises(ValueError, match="drop_next_reply"):
        proxy.cut_reply_after(0)


def test_a_delayed_reply_comes_so_much_later(proxy, client):
    proxy.delay(0.1)
    began = time.monotonic()

    assert client.ask(b"a\n") == b"re:a\n"
    assert time.monotonic() - began >= 0.1
    proxy.delay(0)
    assert client.ask(b"a\n") == b"re:a\n"


def test_delays_of_a_reply_in_parts_do_not_add_up(proxy, client):
    proxy.delay(0.2)
    began = time.monotonic()

    client.send(b"x\n" * 100)
    client.receive(500)

    assert 0.2 <= time.monotonic() - began < 5  # 100 delays are 20 s


def test_throttled_data_come_slowly_and_whole(proxy, client):
    proxy.throttle(100_000)
    line = b"x" * 19_999 + b"\n"
    began = time.monotonic()

    assert client.ask(line) == b"re:" + line
    assert time.monotonic() - began >= 0.15  # 4 slices of 5000 bytes, 3 pauses of 50 ms
    proxy.throttle(None)
    assert client.ask(line) == b"re:" + line


def test_no_speed_is_no_limit(proxy):
    with pytest.raises(ValueError, match="hang"):
        proxy.throttle(0)


def test_while_it_hangs_nothing_passes_and_nothing_ends(server, proxy, client):
    client.ask(b"a\n")
    proxy.hang(True)
    client.send(b"b\n")

    with Client(proxy) as new:
        new.send(b"c\n")
        assert (proxy.bytes_up, proxy.bytes_down, server.got) == (2, 5, [b"a\n"])
        proxy.hang(False)
        assert [client.receive(5), new.receive(5)] == [b"re:b\n", b"re:c\n"]


def test_a_reply_does_not_pass_while_it_hangs(server, proxy, client):
    client.send(b"wait\n")
    await_condition(lambda: proxy.bytes_up == 5, TIMEOUT_S)
    proxy.hang(True)
    server.gate.set()
    await_condition(lambda: server.got == [b"wait\n"], TIMEOUT_S)

    assert proxy.bytes_down == 0
    proxy.hang(False)
    assert client.receive(8) == b"re:wait\n"


def test_closing_ends_connections_and_keeps_the_counts(proxy, client):
    client.ask(b"a\n")

    proxy.close()
    proxy.close()

    assert client.receive(1) == b""
    assert (proxy.requests, proxy.bytes_up, proxy.bytes_down) == (1, 2, 5)
    with pytest.raises(ConnectionError):
        Client(proxy)


@pytest.fixture
def through_proxy(redis_server):
    """A proxy before Redis, a client through it that never tries again, and one past it."""
    with (
        FaultProxy(redis_server.host, redis_server.port) as proxy,
        redis.Redis(host="127.0.0.1", port=proxy.port, retry=None) as client,
        redis.Redis(host=redis_server.host, port=redis_server.port) as direct,
    ):
        direct.flushall()
        client.ping()
        yield proxy, client, direct


def test_redis_has_carried_out_an_increment_whose_reply_is_lost(through_proxy):
    proxy, client, direct = through_proxy
    proxy.drop_next_reply(b"INCR")

    with pytest.raises(redis.ConnectionError):
        client.incr("n")

    assert (direct.get("n"), proxy.dropped) == (b"1", 1)


def test_redis_has_not_carried_out_an_increment_that_is_lost(through_proxy):
    proxy, client, direct = through_proxy
    proxy.drop_next_request(b"INCR")

    with pytest.raises(redis.ConnectionError):
        client.incr("n")

    assert (direct.get("n"), proxy.dropped) == (None, 1)


def test_a_pipeline_of_redis_is_one_round_trip(through_proxy):
    proxy, client, _ = through_proxy
    before = proxy.requests

    with client.pipeline(transaction=True) as pipeline:
        for number in range(100):
            pipeline.set(f"key-{number}", number)
        pipeline.execute()

    assert proxy.requests - before == 1
