"""What the server bears: sizes, numbers and slow callers, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from tests.coordination.commanded import until
from tests.serving.served import bearer, serving
from waterspout.serving._limits import Limits

LIMITS = Limits(
    body_bytes=1_000, header_bytes=2_000, in_flight=2, connections=20, read_secs=0.3,
    write_secs=0.3, close_secs=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served"), limits=LIMITS) as (run, client):
        run.process_all_available(timeout=30)
        yield run, client


def connect(client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=10)


def everything(connection: socket.socket) -> bytes:
    """Read until the other side closes, or cuts."""
    found = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


def refused(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["kind"]


@pytest.mark.parametrize("size", [1_001, 5_000, 2_000_000])
def test_a_body_that_is_too_large_is_refused(served, size):
    answer = served[1].post("/api/v1/kill", content=b"x" * size, headers=bearer())

    assert (answer.status_code, answer.json()["error"]["kind"]) == (413, "too_large")


def test_a_body_in_chunks_is_counted_as_well(served):
    chunks = (b"x" * 400 for _ in range(4))

    answer = served[1].post("/api/v1/kill", content=chunks, headers=bearer())

    assert (answer.status_code, answer.json()["error"]["kind"]) == (413, "too_large")


@pytest.mark.parametrize("size", [2_000, 60_000])
def test_a_head_that_is_too_large_is_refused(served, size):
    with connect(served[1]) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * size)

        with suppress(OSError):  # it was answered before
            connection.sendall(b"\r\n\r\n")

        assert refused(everything(connection)) == (431, "head_too_large")


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x00\n\r\n\r\n", b"GET\r\n\r\n", b"\r\n\0\r\n\r\n"]
)
def test_what_is_no_request_is_refused_as_json(served, noise):
    with connect(served[1]) as connection:
        connection.sendall(noise)

        assert refused(everything(connection)) == (400, "bad_request")


def test_a_caller_that_sends_its_head_slowly_is_cut(served):
    with connect(served[1]) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")

        assert everything(connection) == b""


def test_a_caller_that_says_nothing_is_cut(served):
    with connect(served[1]) as connection:
        assert everything(connection) == b""


def test_a_caller_that_sends_its_body_slowly_is_told_so(served):
    head = (
        b"POST /api/v1/kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
        b"Authorization: " + bearer()["authorization"].encode() + b"\r\n\r\n{"
    )
    with connect(served[1]) as connection:
        connection.sendall(head)

        assert refused(everything(connection)) == (408, "too_slow")


def test_a_caller_that_does_not_take_its_answers_is_cut(served):
    """It asks for more than all buffers between us hold, and reads nothing."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(served[1]) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall(request * 100_000)

    assert served[1].get("/health").status_code == 200


def test_more_at_once_than_may_be_are_told_to_come_again(served, monkeypatch):
    run, client = served
    begun, go_on = threading.Semaphore(0), threading.Event()
    explain = run.explain

    def slow():
        begun.release()
        assert go_on.wait(10)
        return explain()

    monkeypatch.setattr(run, "explain", slow)
    statuses: list[int] = []

    def ask():
        statuses.append(client.get("/api/v1/topology").status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=10)

    busy, health = client.get("/api/v1/snapshot"), client.get("/health")
    go_on.set()
    for thread in threads:
        thread.join(10)

    assert (busy.status_code, busy.json()["error"]["kind"]) == (503, "busy")
    assert busy.headers["retry-after"] == "1"
    assert health.status_code == 200  # a load is no ill health
    assert statuses == [200, 200]
    assert client.get("/api/v1/snapshot").status_code == 200


def test_connections_beyond_the_limit_are_closed_at_once(served):
    with ExitStack() as opened:
        held = [opened.enter_context(connect(served[1])) for _ in range(LIMITS.connections + 5)]
        held[-1].settimeout(5)

        assert everything(held[-1]) == b""
    until(lambda: served[1].get("/health").status_code == 200)


def test_every_answer_has_the_headers_that_browsers_need(served):
    client = served[1]
    answers = [
        client.get("/health"),
        client.get("/docs"),
        client.get("/metrics"),
        client.get("/nothing"),
        client.post("/api/v1/kill"),
        client.get("/health", headers={"host": "evil.example.com"}),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 401, 403]
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


def test_a_websocket_is_no_way_in(served):
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}

    answer = served[1].get("/api/v1/snapshot", headers={**upgrade, "sec-websocket-key": "x" * 16})

    assert answer.status_code == 200


def test_the_end_of_a_run_does_not_wait_for_a_caller_that_hangs(tmp_path):
    with serving(tmp_path, limits=LIMITS) as (run, client), connect(client) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")

        run.stop(timeout=10)

        assert run.status == "stopped"
