"""The RabbitMQ that tests start: it serves, survives a kill, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from tests.services import fixtures
from tests.services.rabbitmq import RabbitMQServer
from tests.services.servers import MissingServer, await_condition, is_free


def processes_of(folder):
    """Return the pids of a server's processes, its epmd among them: it is their home."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if environment.get("HOME") == str(folder):
            found.append(process.pid)
    return found


@pytest.fixture
def own_server():
    with fixtures.provided("rabbitmq", RabbitMQServer) as server:
        yield server


@pytest.mark.services
@pytest.mark.soak
def test_it_keeps_what_it_confirmed_over_a_kill_and_leaves_nothing_running(own_server):
    queue = own_server.fresh_queue()
    own_server.publish(queue, [b"a", b"b"])
    port, folder = own_server.port, own_server.folder

    own_server.kill()

    assert processes_of(own_server.folder) == []
    own_server.restart()
    assert len(processes_of(own_server.folder)) >= 2, "it and its epmd"
    assert own_server.port == port
    assert own_server.bodies(queue) == [b"a", b"b"]

    own_server.close()

    await_condition(lambda: not processes_of(own_server.folder), 10)
    ports = (port, own_server.epmd_port, own_server.distribution_port)
    assert [is_free(one) for one in ports] == [True] * 3
    assert not folder.exists()


@pytest.mark.soak
def test_it_dies_with_whoever_started_it_and_so_does_its_epmd(rabbitmq, tmp_path):
    program = f"""if True:
        import sys, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        from tests.services.rabbitmq import RabbitMQServer
        server = RabbitMQServer().start()
        print(server.folder, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        folder = owner.stdout.readline().strip()
        assert len(processes_of(folder)) >= 2
        owner.kill()

    await_condition(lambda: not processes_of(folder), 10, lambda: str(processes_of(folder)))


@pytest.mark.soak
def test_it_ends_in_peace_with_its_epmd(rabbitmq):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"peace"])

    rabbitmq.stop()

    await_condition(lambda: not processes_of(rabbitmq.folder), 10)
    rabbitmq.start()
    assert rabbitmq.bodies(queue) == [b"peace"]


def test_it_listens_on_the_loopback_only(rabbitmq):
    listening = {
        connection.laddr.ip
        for pid in processes_of(rabbitmq.folder)
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }

    assert listening <= {"127.0.0.1", "::1"}


def test_where_it_is_missing_its_package_is_named(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)

    with pytest.raises(MissingServer, match=r"NO RABBITMQ.*apt-get install rabbitmq-server"):
        RabbitMQServer()


def test_who_uses_it_is_marked(request, rabbitmq):
    assert request.node.get_closest_marker("services")
