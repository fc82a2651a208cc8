"""Who is let in, by the head of a request alone."""

from __future__ import annotations

import pytest

from waterspout.serving._door import Door

LOOPBACK = Door.of("127.0.0.1", (), "secret", beyond=False)
OPEN = Door.of("0.0.0.0", ("streams.example.org",), "secret", beyond=True)
OURS = ("host", "127.0.0.1:8080")
BEARER = ("authorization", "Bearer secret")


def kind(door, *headers, method="GET", path="/api/v1/snapshot"):
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    refusal = door.refusal(method, path, encoded)
    return None if refusal is None else (refusal.status, refusal.kind)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:8080", "127.1.2.3"]
)
def test_loopback_is_called_by_its_own_names(host):
    assert kind(LOOPBACK, ("host", host)) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example.com", "evil.example.com:8080", "127.0.0.1.evil.com", "10.0.0.7", "localhost."],
)
def test_a_name_that_was_pointed_at_us_is_refused(host):
    assert kind(LOOPBACK, ("host", host)) == (403, "foreign_host")


@pytest.mark.parametrize("host", ["", "a b", "h:99999999", "[::1", "a/b", "h:8:0", "me@h"])
def test_a_host_that_is_none_is_refused(host):
    assert kind(LOOPBACK, ("host", host)) == (400, "bad_host")


def test_one_host_and_no_more():
    assert kind(LOOPBACK) == (400, "bad_host")
    assert kind(LOOPBACK, OURS, OURS) == (400, "bad_host")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.com",
        "null",
        "http://127.0.0.1:8081",
        "http://localhost:8080",
        "file://",
    ],
)
def test_a_page_of_another_server_may_not_call(origin):
    assert kind(LOOPBACK, OURS, ("origin", origin)) == (403, "foreign_origin")
    posted = kind(LOOPBACK, OURS, BEARER, ("origin", origin), method="POST")
    assert posted == (403, "foreign_origin")


def test_our_own_page_may_call_and_a_program_says_no_origin():
    assert kind(LOOPBACK, OURS, ("origin", "http://127.0.0.1:8080")) is None
    assert kind(LOOPBACK, OURS, ("sec-fetch-site", "same-origin")) is None
    assert kind(LOOPBACK, OURS) is None


def test_a_picture_of_another_page_may_not_call_but_its_link_may_lead_here():
    cross = ("sec-fetch-site", "cross-site")

    assert kind(LOOPBACK, OURS, cross, ("sec-fetch-mode", "no-cors")) == (403, "foreign_origin")
    assert kind(LOOPBACK, OURS, cross, ("sec-fetch-mode", "navigate")) is None
    refused = kind(LOOPBACK, OURS, BEARER, cross, ("sec-fetch-mode", "navigate"), method="POST")
    assert refused == (403, "foreign_origin")


def test_beyond_loopback_every_question_needs_the_token():
    host = ("host", "10.0.0.7:8080")

    assert kind(OPEN, host) == (401, "unauthorized")
    assert kind(OPEN, host, path="/metrics") == (401, "unauthorized")
    assert kind(OPEN, host, method="POST", path="/drpc/words") == (401, "unauthorized")
    assert kind(OPEN, host, BEARER) is None
    assert kind(OPEN, host, path="/health") is None
    assert kind(OPEN, ("host", "streams.example.org"), BEARER) is None
    assert kind(OPEN, ("host", "other.example.org"), BEARER) == (403, "foreign_host")


@pytest.mark.parametrize(
    "given", ["Bearer secre", "Bearer secret2", "bearer", "secret", "Basic secret", "Bearer \xe9"]
)
def test_what_is_not_the_token_is_refused(given):
    command = {"method": "POST", "path": "/api/v1/kill"}

    assert kind(LOOPBACK, OURS, ("authorization", given), **command) == (401, "unauthorized")
    assert kind(LOOPBACK, OURS, BEARER, BEARER, **command) == (401, "unauthorized")
    assert kind(LOOPBACK, OURS, BEARER, **command) is None


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("waterspout.serving._door.hmac.compare_digest", compare)

    assert kind(OPEN, OURS, ("authorization", "Bearer x")) == (401, "unauthorized")
    assert compared == [(b"x", b"secret")]


def test_the_token_is_not_shown():
    assert "secret" not in repr(LOOPBACK)
