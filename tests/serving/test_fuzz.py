"""Requests that nobody thought of: none is answered with a 500. Some hundreds, in soak 10,000."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.served import TOKEN, serving
from tests.soaking import repeated
from waterspout.serving import _app

ENDS_THE_RUN = ("/api/v1/kill", "/api/v1/rollback")


@pytest.fixture(scope="module")
def asgi(tmp_path_factory):
    """The application of a run that lives, without a socket."""
    made, application = [], _app.application

    def keep(served, door, limits):
        made.append(application(served, door, limits))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_app, "application", keep)
        with serving(tmp_path_factory.mktemp("fuzzed")) as (run, _):
            run.process_all_available(timeout=30)
            yield made[0]
            assert run.exception() is None


@pytest.mark.timeout(900)
@repeated(1, in_soak=200)
def test_no_request_by_the_schema_is_answered_with_a_500(asgi, count):
    schema = schemathesis.openapi.from_asgi("/openapi.json", asgi, headers={"host": "localhost"})
    seen: Counter[int] = Counter()
    headers = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    for operation in schema.get_all_operations():
        endpoint = operation.ok()
        if endpoint.path in ENDS_THE_RUN:
            continue

        @given(case=endpoint.as_strategy())
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            answer = case.call(headers=headers)
            seen[answer.status_code] += 1
            assert answer.status_code != 500, answer.text

        ask()

    assert seen[200] > 0
    assert sum(seen.values()) >= 7 * count  # of a path without parameters there is one request


METHODS = st.sampled_from(
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "X"]
)
PATHS = st.one_of(
    st.sampled_from(
        [
            *("/", "/health", "/docs", "/metrics", "/api/v1/snapshot", "/api/v1/rebalance"),
            *("/api/v1/states/state1/value", "/api/v1/states/state1/explain", "/api/v1/log"),
            *("/api/v1/dead-letters/replay", "/api/v1/deactivate", "/api/v1/dead-letters"),
        ]
    ),
    st.text(max_size=60).map(lambda text: f"/{text}"),
)
QUERIES = st.one_of(
    st.binary(max_size=200),
    st.tuples(
        st.sampled_from([b"key", b"limit", b"window", b"lines", b"component"]),
        st.binary(max_size=60),
    ).map(b"=".join),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"host", b"origin", b"authorization", b"content-type", b"content-length", b"expect"]
        ),
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([b"localhost", b"http://localhost", f"Bearer {TOKEN}".encode()]),
        ),
    ),
    max_size=6,
)


@pytest.mark.timeout(600)
@given(METHODS, PATHS, QUERIES, HEADERS, st.binary(max_size=200))
@settings(max_examples=24 * settings().max_examples, suppress_health_check=list(HealthCheck))
def test_no_bytes_whatever_are_answered_with_a_500(asgi, method, path, query, headers, body):
    sent = []

    coming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    given_headers = headers if headers else [(b"host", b"localhost")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query,
        "headers": given_headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }

    asyncio.run(asgi(scope, receive, send))

    assert sent[0]["type"] == "http.response.start"
    assert sent[0]["status"] != 500
