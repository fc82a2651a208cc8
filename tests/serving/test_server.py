"""The server in the driver: it lives as long as its run, and answers what it was asked."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from tests.coordination.commanded import until
from tests.serving.served import serving
from waterspout import Config
from waterspout.cli import main
from waterspout.coordination.commands.outside import open_topology, seen
from waterspout.errors import ConfigError, MissingDependencyError, OutsideError
from waterspout.serving import bound


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as (run, client):
        run.process_all_available(timeout=30)
        yield run, client


def test_health_says_how_the_run_stands(served):
    _, client = served

    answer = client.get("/health")

    assert (answer.status_code, answer.json()) == (200, {"status": "idle", "topology": "words"})


def test_the_snapshot_is_that_of_the_run(served):
    run, client = served

    told = client.get("/api/v1/snapshot").json()

    assert told["totals"] == dict(run.snapshot().totals)
    assert told["totals"]["committed"] == 3
    assert told["last_progress"]["txid"] == 3


def test_a_topology_is_described_with_its_graph_and_what_its_states_promise(served):
    _, client = served

    told = client.get("/api/v1/topology").json()

    assert (told["name"], told["kind"], told["status"]) == ("words", "trident", "idle")
    kinds = [node["kind"] for node in told["graph"]["nodes"]]
    assert kinds[0] == "spout"
    assert kinds[-1] == "state"
    ids = {node["id"] for node in told["graph"]["nodes"]}
    assert {e[end] for e in told["graph"]["edges"] for end in ("source", "target")} <= ids
    (state,) = told["states"]
    assert (state["kind"], state["guarantee"]) == ("opaque", "exactly-once")
    assert state["store"].endswith("counts.db#counts")


def test_an_unknown_path_is_refused_as_json(served):
    _, client = served

    answer = client.get("/api/v1/nothing")

    assert answer.status_code == 404
    assert answer.json() == {"error": {"kind": "not_found", "message": "Not Found"}}


def test_the_server_ends_with_its_run_and_gives_its_port_up(tmp_path):
    before = {*threading.enumerate()}
    with serving(tmp_path) as (run, client):
        port = client.base_url.port
        assert run.server_url == f"http://127.0.0.1:{port}"

        run.stop()

        assert run.server_url is None
        with socket.create_server(("127.0.0.1", port)):
            pass
        left = [t.name for t in {*threading.enumerate()} - before]
        assert not [name for name in left if name.startswith("waterspout-server")]


def test_other_terminals_are_told_where_a_run_is_served(tmp_path):
    with serving(tmp_path) as (run, _):
        url = run.server_url
        with open_topology("words", Config(home=str(tmp_path / "home"))) as store:
            until(lambda: seen("words", store).published.get("server_url") == url)

            run.stop()

            assert seen("words", store).published["server_url"] is None


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingDependencyError, match=rf"{package} .* 'waterspout\[serve\]'"):
        bound(Config(serve="127.0.0.1:0"))


def test_a_port_that_is_taken_is_an_error_before_anything_runs():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(
            OutsideError, match=rf"127.0.0.1:{port}.* cannot be listened on: .*in use"
        ):
            bound(Config(serve=f"127.0.0.1:{port}"))


def test_the_command_line_serves_where_it_is_told_or_says_why_not(tmp_path, capsys):
    file = tmp_path / "topology.py"
    file.write_text(
        "from waterspout.testing import FixedBatchSpout\n"
        "from waterspout.trident import TridentTopology, Debug\n"
        "topology = TridentTopology('words')\n"
        "topology.new_stream('in', FixedBatchSpout('w string', 1, [['a']])).peek(print)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        code = main(["run", str(file), "--serve", "-c", f"serve={address}"])

    assert code != 0
    assert f"'serve' is '{address}': that address cannot be listened on" in capsys.readouterr().err


def test_address_and_token_come_from_a_file_and_the_token_from_the_environment(
    tmp_path, monkeypatch
):
    file = tmp_path / "options.yaml"
    file.write_text("serve: 0.0.0.0:0\nserve_token: ${CANARY_TOKEN}\n")
    conf = Config.from_yaml(file)
    with pytest.raises(ConfigError, match="CANARY_TOKEN, which is not set"):
        bound(conf)
    monkeypatch.setenv("CANARY_TOKEN", "from-the-environment")

    server = bound(conf)

    assert server.url.startswith("http://127.0.0.1:")
    server.close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_are_served_with_a_token_only(address):
    with pytest.raises(ConfigError, match="other machines reach: give 'serve_token' as well"):
        bound(Config(serve=address))
