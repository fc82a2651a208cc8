"""`waterspout ui` as a process: where it listens, what it serves, when it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import httpx
import pytest

from tests.ui.answers import CORE
from tests.ui.pages import Api, directory, reading
from waterspout import Config
from waterspout.cli.app import main
from waterspout.errors import ConfigError, OutsideError

REFERENCE = re.compile(r"""(?:src|href|action)\s*=\s*["']?([^"'\s>]+)|url\(["']?([^"')]+)""")


def test_the_page_refers_to_no_other_host():
    found = []

    async def act(user):
        for path in ("/", "/t/words", "/t/words/errors", "/t/words/log"):
            text = (await user.http_client.get(path)).text
            found.extend(a or b for a, b in REFERENCE.findall(text.split("parseElements")[0]))
            (imports,) = re.findall(r'<script type="importmap">(.*?)</script>', text, re.S)
            found.extend(json.loads(imports)["imports"].values())

    reading(act, directory(Api(CORE)))

    assert len(found) > 20
    assert [each for each in found if re.match(r"[a-z]+:|//", each)] == []


def test_beyond_loopback_a_token_is_needed(tmp_path, capsys):
    code = main(["ui", "--host", "0.0.0.0", "--port", "0", "--home", str(tmp_path)])

    assert code == 2
    said = capsys.readouterr().err
    assert "the page is to listen on 0.0.0.0:0, which other machines reach" in said
    assert "serve_token" in said


def test_a_port_that_is_taken_is_said_to_be_so(tmp_path):
    from waterspout.ui._page_server import PageServer

    with socket_of("127.0.0.1") as taken, pytest.raises(OutsideError, match="Take another port"):
        PageServer(Config(home=str(tmp_path)), "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="no host that can be found"):
        PageServer(Config(home=str(tmp_path)), "no-such-host.invalid", 0)


def test_the_process_tells_its_address_serves_the_page_and_ends_with_its_parent(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "waterspout.cli", "ui", "--port", "0", "--json", "--until-eof"],
        cwd=tmp_path,
        env={**os.environ, "WATERSPOUT_HOME": str(tmp_path / "home")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        told = json.loads(child.stdout.readline())
        assert told["where"] == str(tmp_path / "home")
        page = httpx.get(told["url"], timeout=30)
        assert page.status_code == 200
        assert "'nonce-" in page.headers["content-security-policy"]
        assert httpx.get(told["url"], headers={"host": "evil.example"}).status_code == 403
        child.stdin.close()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    assert list(tmp_path.iterdir()) == []  # a page that only looks leaves nothing behind


def socket_of(host):
    import socket

    return socket.create_server((host, 0))
