"""A run on Spark that is served: the server is there with it, and gone with it."""

from __future__ import annotations

import socket

import httpx
import pytest

from waterspout import Config, submit
from waterspout.errors import OutsideError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = pytest.mark.spark

TOKEN = "canary-of-the-token"


def topology() -> TridentTopology:
    found = TridentTopology("served")
    stream = found.new_stream("in", FixedBatchSpout("word string", 2, [["a"], ["b"], ["a"]]))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    return found


def test_a_run_on_spark_is_served_until_it_ends(spark):
    run = submit(topology(), spark, Config(serve="127.0.0.1:0", serve_token=TOKEN))
    try:
        run.process_all_available(timeout=60)
        url = run.server_url
        with httpx.Client(base_url=url, trust_env=False) as client:
            told = client.get("/api/v1/snapshot").json()
            assert told["totals"]["committed"] == 2
            assert client.get("/api/v1/batches").json()["attempts"][0]["txid"] == 1
            (state,) = client.get("/api/v1/topology").json()["states"]
            path = f"/api/v1/states/{state['name']}/value"
            assert client.get(path, params={"key": '["a"]'}).json()["value"] == 2
            # Options travel to tasks: the token is not among them.
            assert TOKEN not in repr(run._config.to_dict())
            killed = client.post("/api/v1/kill", headers={"authorization": f"Bearer {TOKEN}"})
            assert killed.json()["outcome"] == "done"
        assert run.await_termination(timeout=60)
    finally:
        run.stop()

    assert run.server_url is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)


def test_a_port_that_is_taken_starts_no_run(spark):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(OutsideError, match="cannot be listened on"):
            submit(topology(), spark, Config(serve=address))
