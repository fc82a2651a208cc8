"""`waterspout ui` as a process: where it listens, what it serves, when it ends."""

from __future__ import annotations

import json
import queue
import re

import httpx
import pytest

from tests.ui.answers import CORE
from tests.ui.pages import Api, directory, reading
from waterspout import Config
from waterspout.cli.app import main
from waterspout.cli.ui import PageBeside
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
    assert main(["ui", "--host", "0.0.0.0", "--home", str(tmp_path), "--json"]) == 2
    assert "other machines reach" in json.loads(capsys.readouterr().err)["error"]["message"]


def test_a_port_that_is_taken_is_said_to_be_so(tmp_path):
    from waterspout.ui._page_server import PageServer

    with socket_of("127.0.0.1") as taken, pytest.raises(OutsideError, match="Take another port"):
        PageServer(Config(home=str(tmp_path)), "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="no host that can be found"):
        PageServer(Config(home=str(tmp_path)), "no-such-host.invalid", 0)


@pytest.mark.soak
def test_a_run_has_a_page_beside_it_that_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATERSPOUT_HOME", str(tmp_path / "home"))
    told, warned = queue.SimpleQueue(), []

    with PageBeside("http://127.0.0.1:9", None, ["lease_secs=5"], told.put, warned.append):
        url = told.get(timeout=100)
        page = httpx.get(url, timeout=60)
        assert page.status_code == 200
        assert "'nonce-" in page.headers["content-security-policy"]
        assert httpx.get(url, headers={"host": "evil.example"}, timeout=60).status_code == 403

    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert warned == []
    assert list(tmp_path.iterdir()) == []  # a page that only looks leaves nothing behind


@pytest.mark.soak
def test_a_page_that_cannot_be_is_told_and_harms_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told, warned = [], queue.SimpleQueue()

    with PageBeside("http://127.0.0.1:9", None, ["no_such_option=1"], told.append, warned.put):
        assert "no_such_option" in warned.get(timeout=100)

    assert told == []


def socket_of(host):
    import socket

    return socket.create_server((host, 0))
