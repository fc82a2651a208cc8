"""A password that goes through everything is seen nowhere."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.services.fixtures import provided
from tests.services.secured import (
    PASSWORD,
    USER,
    SecuredMemcached,
    SecuredPostgres,
    SecuredRedis,
)

# Half a minute for three servers with certificates and a Spark of its own; what is shown of
# addresses, and what errors chain, is tested each time in tests/test_addresses.py.
pytestmark = [
    *(pytest.mark.spark, pytest.mark.services, pytest.mark.soak),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
COUNTS = {backend: [2, 1] for backend in ("redis", "postgres", "memcached")}


@pytest.fixture(scope="module")
def shown(certificates, tmp_path_factory) -> Path:
    """All that a run with secrets everywhere has left: in a folder, its secrets are not kept."""
    folder = tmp_path_factory.mktemp("canary")
    with (
        provided("redis", lambda: SecuredRedis(certificates)) as redis,
        provided("postgres", lambda: SecuredPostgres(certificates)) as postgres,
        provided("memcached", lambda: SecuredMemcached(certificates)) as memcached,
    ):
        postgres.make_user()
        servers = {"redis": redis, "postgres": postgres, "memcached": memcached}
        given = {name: f"{server.host}:{server.port}" for name, server in servers.items()}
        given |= {"user": USER, "ca": certificates.ca, "literal": PASSWORD}
        (folder / "given.json").write_text(json.dumps(given))
        env = {**os.environ, "CANARY": PASSWORD, "WATERSPOUT_HOME": str(folder / "home")}
        with open(folder / "child.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.canary_child", str(folder)],
                env=env, stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
            )  # fmt: skip
            try:
                process.wait(timeout=280)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    (folder / "given.json").unlink()
    assert process.returncode == 0, (folder / "child.log").read_text()[-3000:]
    return folder


def holds(path: Path, secret: str) -> bool:
    """Tell whether a file holds a secret, as it is or in base 64 at any offset."""
    content = path.read_bytes()
    forms = [secret.encode()]
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + secret.encode()).rstrip(b"=")
        forms.append(coded[4 if shift else 0 : -2])
    return any(form in content for form in forms)


def test_a_password_is_seen_nowhere(shown):
    result = json.loads((shown / "result.json").read_text())
    looked_at = [path for path in shown.rglob("*") if path.is_file()]

    seen = {str(path.relative_to(shown)) for path in looked_at if holds(path, PASSWORD)}

    assert (result["environment"], result["literal"]) == (COUNTS, COUNTS)
    # One that is written into an address travels to the workers, and only there.
    assert seen == {"closures.literal"}
    names = {path.name for path in looked_at}
    assert {"closures.environment", "debug.log", "spark.log", "ui.seen", "around.seen"} <= names


def test_where_it_was_looked_for_there_was_something_to_see(shown):
    """Else the test before this one would show nothing."""
    files = [path for path in (shown / "events").rglob("*") if path.is_file()]
    log = "".join(path.read_text(errors="replace") for path in files)
    ui = (shown / "ui.seen").read_text()
    failed = (shown / "failed.seen").read_text()

    for text in (log, ui, failed):
        assert "table public.t in PostgreSQL at 127.0.0.1:1/x cannot be used" in text
    assert '"Event":"SparkListenerEnvironmentUpdate"' in log
    assert "spark.eventLog.enabled" in ui
    assert "connection failed" in (shown / "around.seen").read_text()
    assert b"CANARY" in (shown / "closures.environment").read_bytes()
    around = (shown / "around.seen").read_text()
    places = ("127.0.0.1:1/x", "redis://127.0.0.1:1/0", "memcached server 127.0.0.1:1")
    places += ("Cassandra at 127.0.0.1:1", "s3://bucket/x", "amqp://127.0.0.1:1/v")
    assert [place for place in (*places, "no ZooKeeper answers") if place not in around] == []


def test_the_warehouse_has_a_name_that_cannot_be_guessed(shown):
    result = json.loads((shown / "result.json").read_text())

    folder = Path(urlsplit(result["warehouse"]).path).parent

    assert folder.name.startswith("waterspout-")
    assert not folder.exists() or stat.S_IMODE(folder.stat().st_mode) == 0o700
