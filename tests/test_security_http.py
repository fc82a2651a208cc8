"""Every path that is served is behind the same door, whoever has mounted it. Over real sockets."""

from __future__ import annotations

import pytest

from tests.serving.served import TOKEN, bearer, serving

ANYBODY = {"/health"}
UNLISTED = [("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/no/such/path"), ("PUT", "/")]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as (run, client):
        run.process_all_available(timeout=30)
        paths = client.get("/openapi.json").json()["paths"]
        listed = [(method.upper(), path) for path, told in paths.items() for method in told]
        assert len(listed) > 15
        yield client, [*listed, *UNLISTED]
        assert run.exception() is None


def statuses(client, requests, **headers) -> dict[tuple[str, str], tuple[int, str]]:
    """Ask for every path; return the status and the kind of the error."""
    found = {}
    for method, path in requests:
        answer = client.request(method, path, headers=headers)
        told = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        error = told.get("error", {}) if isinstance(told, dict) else {}
        found[method, path] = answer.status_code, error.get("kind", "")
    return found


@pytest.mark.parametrize("host", ["evil.example.com", "10.1.2.3:80", "localhost.evil.com"])
def test_a_foreign_name_reaches_nothing_not_even_with_the_token(served, host):
    client, requests = served

    found = statuses(client, requests, host=host, **bearer())

    assert set(found.values()) == {(403, "foreign_host")}


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://localhost:1"])
def test_a_foreign_page_reaches_nothing_not_even_with_the_token(served, origin):
    client, requests = served

    found = statuses(client, requests, origin=origin, **bearer())

    assert set(found.values()) == {(403, "foreign_origin")}


def test_whatever_changes_something_needs_the_token(served):
    client, requests = served
    commands = [r for r in requests if r[0] != "GET" and r[1].startswith("/api/")]
    assert {path for _, path in commands} >= {
        f"/api/v1/{name}" for name in ("activate", "deactivate", "kill", "rebalance", "rollback")
    }

    for headers in ({}, bearer(TOKEN[:-1]), bearer(f"{TOKEN}x")):
        found = statuses(client, commands, **headers)
        assert set(found.values()) == {(401, "unauthorized")}


def test_no_question_is_a_failure_and_no_page_of_another_server_may_read_an_answer(served):
    client, requests = served

    for method, path in requests:
        if method == "GET":
            answer = client.get(path)
            assert answer.status_code < 500, path
            assert not [name for name in answer.headers if name.startswith("access-control")]
