"""Who gets to the page, and with which headers: the same door for requests and websockets."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from starlette.responses import HTMLResponse, JSONResponse

from waterspout.serving._door import Door
from waterspout.ui._gate import Gate, Nonces, policy

TOKEN = "s3cret-of-the-page"
HERE = "http://127.0.0.1:8080"


async def page(scope, receive, send):
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    elif scope["path"] == "/facts":
        await JSONResponse({"a": "<script>"})(scope, receive, send)
    else:
        await HTMLResponse("<html><script>go()</script></html>")(scope, receive, send)


def asked(door, path="/", method="GET", **how):
    async def ask():
        app = httpx.ASGITransport(Nonces(Gate(page, door)))
        async with httpx.AsyncClient(transport=app, base_url=HERE) as client:
            return await client.request(method, path, **how)

    return asyncio.run(ask())


def socket(door, *headers):
    sent = []

    async def send(message):
        sent.append(message)

    given = [(b"host", b"127.0.0.1:8080"), *headers]
    scope = {"type": "websocket", "path": "/_nicegui_ws/socket.io/", "headers": given}
    asyncio.run(Nonces(Gate(page, door))(scope, None, send))
    return sent[0]["type"]


LOOPBACK = Door()
BEYOND = Door.of("0.0.0.0", ("box",), TOKEN, beyond=True)


def test_on_loopback_the_page_is_there_without_a_token():
    assert asked(LOOPBACK).status_code == 200
    assert socket(LOOPBACK, (b"origin", HERE.encode())) == "websocket.accept"


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}],
)
def test_a_foreign_name_or_page_is_refused(headers):
    assert asked(LOOPBACK, headers=headers).status_code == 403


def test_a_websocket_of_a_foreign_page_is_closed_before_it_is_open():
    assert socket(LOOPBACK, (b"origin", b"http://evil.example")) == "websocket.close"
    assert socket(LOOPBACK, (b"host", b"second")) == "websocket.close"


def test_beyond_loopback_one_is_asked_for_the_token_and_gets_a_cookie_that_is_not_it():
    first = asked(BEYOND)
    assert (first.status_code, first.headers["location"]) == (303, "/login")
    assert "name=token" in asked(BEYOND, "/login").text

    wrong = asked(BEYOND, "/login", "POST", data={"token": "guess"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers

    right = asked(BEYOND, "/login", "POST", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    given = cookie.partition(";")[0]
    assert asked(BEYOND, headers={"cookie": given}).status_code == 200
    assert socket(BEYOND, (b"cookie", given.encode())) == "websocket.accept"
    name = given.partition("=")[0]
    assert asked(BEYOND, headers={"cookie": f"{name}=0"}).status_code == 303


def test_a_browser_may_say_that_the_form_is_ours_and_nobody_else_is_told_where_one_was():
    form = asked(BEYOND, "/login")

    assert form.headers["referrer-policy"] == "same-origin"
    sent = {"origin": HERE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
    answer = asked(BEYOND, "/login", "POST", data={"token": TOKEN}, headers=sent)
    assert answer.status_code == 303
    foreign = {**sent, "origin": "null"}
    assert (
        asked(BEYOND, "/login", "POST", data={"token": TOKEN}, headers=foreign).status_code == 403
    )


def test_without_the_token_neither_sockets_nor_assets_are_to_be_had():
    assert socket(BEYOND) == "websocket.close"
    assert asked(BEYOND, "/_nicegui/3/static/x.js").status_code == 401


def test_scripts_of_a_page_have_the_nonce_of_its_policy_and_it_is_new_each_time():
    first, second = asked(LOOPBACK), asked(LOOPBACK)

    (nonce,) = re.findall(r"'nonce-([\w-]+)'", first.headers["content-security-policy"])
    assert first.text == f'<html><script nonce="{nonce}">go()</script></html>'
    assert int(first.headers["content-length"]) == len(first.text)
    assert nonce not in second.text
    assert first.headers["cache-control"] == "no-store"


def test_what_is_no_page_is_left_as_it_is_and_has_the_headers_too():
    answer = asked(LOOPBACK, "/facts")

    assert answer.json() == {"a": "<script>"}
    assert answer.headers["x-frame-options"] == "DENY"
    assert asked(LOOPBACK, headers={"host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_the_policy_lets_nothing_be_loaded_from_elsewhere():
    parts = dict(part.split(" ", 1) for part in policy("n").split("; "))

    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == "'self' 'nonce-n' 'unsafe-eval'"
    assert parts["frame-ancestors"] == "'none'"
    assert not re.search(r"https?:|\*|ws:", policy("n"))
