"""Functions called over HTTP: by the clients, by curl, by those who leave, and by too many."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import httpx
import pytest

from tests.coordination.commanded import embedded, running, until, words
from tests.drpc.test_service import WAIT_S, Shout
from waterspout import Config
from waterspout.drpc import AsyncDRPCClient, DRPCClient, DRPCExecutionException
from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind
from waterspout.serving import bound


class Odd:
    """Does what its argument says."""

    name = "odd"

    def answer(self, requests):
        return [self._one(request) for request in requests]

    def _one(self, request):
        match request.args:
            case "fail":
                error = DrpcError(DrpcErrorKind.FAILED, "ValueError: no", "each(shout)")
            case "away":
                error = DrpcError(DrpcErrorKind.UNAVAILABLE, "postgres cannot be reached")
            case "huge":
                return DrpcAnswer(request.id, tuples=[["x" * (17 << 20)]])
            case "endless":
                return DrpcAnswer(request.id, tuples=[[10**5000]])
            case _:
                return DrpcAnswer(request.id, tuples=[["a", 1, None]], txid=7)
        return DrpcAnswer(request.id, error=error)


@contextmanager
def serving(place, *functions, **options) -> Iterator[tuple[object, str]]:
    """A word count without Spark, with these functions, and the address of its server."""
    place.mkdir(exist_ok=True)
    conf = Config(idle_poll_millis=1, home=str(place / "home"), serve="127.0.0.1:0", **options)
    topology, server = words(place, files=1), bound(conf)
    with running(topology, embedded(place), conf) as (run, _):
        run._functions = {function.name: function for function in functions}
        server.start(run, topology)
        yield run, server.url


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    shout = Shout()
    with serving(tmp_path_factory.mktemp("drpc"), shout, Odd()) as (_, url):
        yield shout, url


@pytest.fixture
def url(served):
    return served[1]


def test_a_client_gets_the_tuples_of_its_answer(url):
    with DRPCClient(url) as client:
        found = client.execute("odd", "cat")

        assert found == [["a", 1, None]]
        assert found.txid == 7
        assert client.execute("shout", "grün / 50 %?") == [["GRÜN / 50 %?"]]


def test_an_async_client_gets_many_answers_at_once(url):
    async def ask():
        async with AsyncDRPCClient(url) as client:
            calls = [client.execute("shout", f"w{number}") for number in range(30)]
            return await asyncio.gather(*calls)

    assert asyncio.run(ask()) == [[[f"W{number}"]] for number in range(30)]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/drpc/shout", "foo.com/blog/1"),
        ("POST", "/drpc/shout?timeout=20", "foo.com/blog/1"),
        ("GET", "/drpc/shout?args=foo.com/blog/1", None),
        ("GET", "/drpc/shout/foo.com/blog/1", None),
        ("GET", "/drpc/shout/foo.com%2Fblog%2F1", None),
    ],
)
def test_a_function_is_called_as_storms_server_takes_it(url, method, path, body):
    answer = httpx.request(method, url + path, content=body, trust_env=False)

    found = answer.json()
    assert (answer.status_code, found.keys()) == (200, {"id", "result", "txid"})
    assert (found["result"], found["txid"]) == ([["FOO.COM/BLOG/1"]], None)


def test_the_functions_are_listed(url):
    found = httpx.get(f"{url}/drpc", trust_env=False).json()
    with DRPCClient(url) as client:
        assert client.functions() == ["odd", "shout"]

    assert [function["name"] for function in found["functions"]] == ["odd", "shout"]
    assert found["functions"][0].keys() == {
        *("name", "waiting", "working", "answered", "failed", "refused", "abandoned")
    }


@pytest.mark.parametrize(
    ("args", "status", "kind", "operation", "message"),
    [
        ("fail", 422, "FAILED_REQUEST", "each(shout)", "ValueError: no"),
        ("away", 503, "INTERNAL_ERROR", None, "postgres cannot be reached"),
        (
            "huge",
            422,
            "FAILED_REQUEST",
            None,
            "the result has more than 16,777,216 bytes, which is as much as is sent",
        ),
    ],
)
def test_an_error_has_storms_kind_and_the_operation(url, args, status, kind, operation, message):
    with DRPCClient(url) as client, pytest.raises(DRPCExecutionException) as told:
        client.execute("odd", args)

    said = told.value
    assert (said.status, said.kind, said.operation) == (status, kind, operation)
    assert said.message == message


def test_what_json_has_no_word_for_is_the_error_of_its_call(url):
    with DRPCClient(url) as client, pytest.raises(DRPCExecutionException) as told:
        client.execute("odd", "endless")

    assert told.value.kind == "FAILED_REQUEST"
    assert told.value.message.startswith("the result cannot be written as JSON: ")


def test_a_function_that_nobody_has_is_told_with_those_there_are(url):
    with DRPCClient(url) as client, pytest.raises(DRPCExecutionException) as told:
        client.execute("shuot", "cat")

    assert (told.value.status, str(told.value)) == (
        404,
        "FAILED_REQUEST: there is no function 'shuot'; this topology has: odd, shout",
    )


@pytest.mark.parametrize(
    ("query", "content", "status"),
    [
        ("", b"\xff", 400),
        ("?timeout=0", b"", 422),
        ("?timeout=nan", b"", 422),
        ("?min_txid=-1", b"", 422),
        ("?min_txid=x", b"", 422),
    ],
)
def test_what_is_no_call_is_refused(url, query, content, status):
    answer = httpx.post(f"{url}/drpc/shout{query}", content=content, trust_env=False)

    assert answer.status_code == status
    assert answer.json().keys() == {"error"}


def test_a_caller_who_is_late_is_told_so(served):
    shout, url = served
    shout.gate.clear()

    with DRPCClient(url) as client, pytest.raises(DRPCExecutionException) as told:
        client.execute("shout", "cat", timeout=0.05)

    shout.gate.set()
    assert (told.value.status, told.value.kind) == (504, "SERVER_TIMEOUT")


def test_read_your_writes_waits_for_the_batch(tmp_path):
    with serving(tmp_path, Shout()) as (run, url), DRPCClient(url) as client:
        run.process_all_available(timeout=WAIT_S)

        assert client.execute("shout", "cat", min_txid=1) == [["CAT"]]
        with pytest.raises(DRPCExecutionException) as told:
            client.execute("shout", "cat", min_txid=2, timeout=0.05)

    assert str(told.value) == "SERVER_TIMEOUT: batch 2 was not committed in time for 'shout'"


def test_a_caller_who_leaves_frees_its_place(tmp_path):
    shout = Shout()
    with serving(tmp_path, shout, drpc_queue_size=1) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        shout.gate.clear()
        request = f"POST /drpc/shout HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 1\r\n\r\n"
        leaving = [socket.create_connection((host, int(port))) for _ in range(2)]
        leaving[0].sendall(request.encode() + b"a")
        assert shout.entered.acquire(timeout=WAIT_S)
        leaving[1].sendall(request.encode() + b"b")
        until(lambda: stats(url)["waiting"] == 1)

        for connection in leaving:
            connection.close()

        until(lambda: stats(url)["abandoned"] == 2)
        assert stats(url)["waiting"] == 0
        shout.gate.set()
        with DRPCClient(url) as client:
            assert client.execute("shout", "c") == [["C"]]
        assert shout.batches == [["a"], ["c"]]


def stats(url: str) -> dict[str, int]:
    (found,) = httpx.get(f"{url}/drpc", trust_env=False).json()["functions"]
    return found


def test_one_too_many_is_refused_with_retry_after_and_tried_again(tmp_path):
    shout = Shout()
    with serving(tmp_path, shout, drpc_queue_size=1) as (_, url), DRPCClient(url) as client:
        shout.gate.clear()
        told: list[object] = []
        asking = [
            threading.Thread(target=lambda: told.append(client.execute("shout", "a")))
            for _ in range(2)
        ]
        asking[0].start()
        assert shout.entered.acquire(timeout=WAIT_S)
        asking[1].start()
        until(lambda: stats(url)["waiting"] == 1)

        answer = httpx.post(f"{url}/drpc/shout", content="c", trust_env=False)

        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["kind"] == "INTERNAL_ERROR"
        patient = threading.Thread(target=lambda: told.append(client.execute("shout", "c")))
        patient.start()
        until(lambda: stats(url)["refused"] == 2)
        shout.gate.set()
        for thread in (*asking, patient):
            thread.join(WAIT_S)
        assert sorted(map(str, told)) == ["[['A']]", "[['A']]", "[['C']]"]


def test_a_run_that_ends_tells_those_who_wait(tmp_path):
    shout = Shout()
    told: list[DRPCExecutionException] = []
    with serving(tmp_path, shout) as (run, url), DRPCClient(url) as client:
        shout.gate.clear()

        def ask() -> None:
            try:
                client.execute("shout", "a")
            except DRPCExecutionException as error:
                told.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert shout.entered.acquire(timeout=WAIT_S)

        run.stop()

        thread.join(WAIT_S)
        shout.gate.set()
    assert [(error.kind, error.status) for error in told] == [("SERVER_SHUTDOWN", 503)]


class Talker:
    """A server of raw answers; `heard` are the requests that it got."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.heard: list[bytes] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Talker:
        return self

    def __exit__(self, *error: object) -> None:
        self._answers.clear()
        socket.create_connection(self._listening.getsockname()).close()  # it may wait for one
        self._thread.join(WAIT_S)
        self._listening.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def _serve(self) -> None:
        while self._answers:
            connection, _ = self._listening.accept()
            self.connections += bool(self._answers)
            with connection, connection.makefile("rb") as lines:
                while self._answers and (request := _whole(lines)):
                    self.heard.append(request)
                    answer = self._answers.pop(0)
                    if not answer:
                        break
                    connection.sendall(answer)


def _whole(lines: IO[bytes]) -> bytes:
    """Read one request, whose body is `cat`; b"" at the end."""
    head = b""
    while (line := lines.readline()) not in (b"", b"\r\n"):
        head += line
    return head and head + lines.read(len("cat"))


def raw(status: str, body: object, *headers: str) -> bytes:
    content = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


RESULT = raw("200 OK", {"id": "1", "result": [[1]], "txid": None})


def test_connections_are_kept():
    with (
        Talker(RESULT, RESULT, RESULT) as server,
        DRPCClient(server.url, token="secret") as client,
    ):
        for _ in range(3):
            assert client.execute("f", "cat") == [[1]]

    assert server.connections == 1
    assert b"authorization: bearer secret" in server.heard[0].lower()
    assert "secret" not in repr(client)


def test_a_call_that_was_sent_is_not_made_again():
    with (
        Talker(b"", RESULT) as server,
        DRPCClient(server.url) as client,
        pytest.raises(DRPCExecutionException) as told,
    ):
        client.execute("f", "cat")

    assert len(server.heard) == 1
    assert told.value.kind == "INTERNAL_ERROR"
    assert "the function may have run, so the call is not made again by itself" in str(told.value)


def test_a_refusal_without_retry_after_is_final():
    body = {"error": {"kind": "INTERNAL_ERROR", "message": "away", "operation": None}}
    with (
        Talker(raw("503 Service Unavailable", body), RESULT) as server,
        DRPCClient(server.url) as client,
        pytest.raises(DRPCExecutionException),
    ):
        client.execute("f", "cat")

    assert len(server.heard) == 1


def test_nobody_there_is_tried_again_and_then_told():
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/drpc/"
    listening.close()

    with DRPCClient(url, retries=1) as client, pytest.raises(DRPCExecutionException) as told:
        client.execute("f", "cat")

    assert told.value.kind == "INTERNAL_ERROR"
    assert str(told.value).startswith(f"INTERNAL_ERROR: {url.removesuffix('/drpc/')} cannot be")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": 1}', b'{"result": []}'])
def test_an_answer_of_somebody_else_is_told_as_such(body):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        Talker(head + body) as server,
        DRPCClient(server.url) as client,
        pytest.raises(DRPCExecutionException) as told,
    ):
        client.execute("f", "cat")

    assert "is it the server of a topology?" in str(told.value)


def test_a_wrong_address_or_argument_is_refused_at_once():
    with pytest.raises(ValueError, match="http://host:port"):
        DRPCClient("localhost:8080")
    with DRPCClient("http://localhost:1") as client, pytest.raises(TypeError, match="args is text"):
        client.execute("f", b"cat")  # type: ignore[arg-type]
