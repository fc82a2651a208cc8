"""The JSON API of a run: what it answers is what the run and its stores say."""

from __future__ import annotations

import json
import logging

import pytest

from tests.coordination.commanded import until
from tests.serving.served import bearer, serving
from waterspout import Config


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    with serving(place) as (run, client):
        run.process_all_available(timeout=30)
        yield run, client, place


def get(served, path, **query):
    answer = served[1].get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_progress_is_that_of_the_run_and_as_much_as_was_asked_for(served):
    assert [made["txid"] for made in get(served, "progress")] == [1, 2, 3]
    assert [made["txid"] for made in get(served, "progress", limit=2)] == [2, 3]


def test_statistics_are_those_of_the_window_with_the_totals(served):
    told = get(served, "stats", window="600")

    assert told["window"] == 600
    assert {"spouts", "bolts", "states", "edges", "totals"} <= told.keys()
    assert told["totals"]["batches"] == 3


def test_batches_and_pressure_are_told_from_the_first_batch_on(served):
    attempts = get(served, "batches")["attempts"]

    assert [(a["txid"], a["attempt"], a["outcome"]) for a in attempts] == [
        (n, 0, "committed") for n in (1, 2, 3)
    ]
    assert sum(point["count"] for point in get(served, "pressure")["points"]) == 3


def test_a_value_is_looked_up_by_its_key(served):
    (state,) = get(served, "topology")["states"]
    path = f"states/{state['name']}/value"

    assert get(served, path, key='["to"]') == {
        "topology": "words",
        "state": state["name"],
        "key": ["to"],
        "found": True,
        "value": 2,
    }
    missing = get(served, path, key='["never"]')
    assert (missing["found"], missing["value"]) == (False, None)


def test_a_value_is_explained_by_the_batch_that_wrote_it(served):
    (state,) = get(served, "topology")["states"]

    told = get(served, f"states/{state['name']}/explain", key='["to"]')

    assert (told["value"], told["written"]["txid"], told["written"]["before"]) == (2, 2, 1)
    assert told["written"]["committed"] is True
    assert "1.txt" in json.dumps(told["written"]["from"])


@pytest.mark.parametrize("key", ["", "[1, 2]", '["\\ud800"]', "[" * 5000, "[" + "9" * 5000 + "]"])
def test_a_key_that_cannot_be_is_refused_or_not_there(served, key):
    (state,) = get(served, "topology")["states"]

    answer = served[1].get(f"/api/v1/states/{state['name']}/value", params={"key": key})

    if answer.status_code == 200:
        assert answer.json()["found"] is False
    else:
        assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "refused")


def test_an_unknown_state_is_not_found_and_those_there_are_named(served):
    answer = served[1].get("/api/v1/states/nothing/value", params={"key": "[1]"})

    assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "unknown_state")
    assert answer.json()["error"]["message"] == "there is no state 'nothing'; it has state1"


def test_dead_letters_are_listed_with_what_they_hold_and_without_secrets(served):
    told = get(served, "dead-letters")

    (letter,) = told["letters"]
    assert (told["total"], letter["failed_in"], letter["texts"]) == (1, "split", {"value": "bad"})
    assert "password=***" in letter["error"]
    assert get(served, "dead-letters", component="other")["matching"] == 0


def test_the_configuration_shows_that_there_is_a_token_and_not_which(served):
    told = get(served, "config")

    assert told["waterspout.serve.token"] == "***"
    assert told["waterspout.on.error"] == "dead_letter"
    assert told.keys() == Config().to_dict().keys()


def test_what_the_library_logs_is_told(served, caplog):
    logging.getLogger("waterspout.test").warning("postgresql://me:hunter2@db is away")

    (line,) = get(served, "log", lines=1)["lines"]
    assert line.endswith("WARNING waterspout.test: postgresql://me:***@db is away")


def test_metrics_are_in_the_format_of_prometheus(served):
    answer = served[1].get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'topology="words"' in answer.text


def test_every_path_is_in_the_schema_and_on_the_page_of_it(served):
    paths = served[1].get("/openapi.json").json()["paths"]
    page = served[1].get("/docs").text

    assert "<script" not in page
    assert {"/health", "/metrics", "/api/v1/states/{name}/explain", "/api/v1/kill"} <= paths.keys()
    assert [path for path in paths if path not in page] == []


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("progress", {"limit": "0"}),
        ("progress", {"limit": "many"}),
        ("stats", {"window": "7"}),
        ("log", {"lines": "99999"}),
    ],
)
def test_a_part_that_has_not_its_form_is_refused_with_its_name(served, path, query):
    answer = served[1].get(f"/api/v1/{path}", params=query)

    assert (answer.status_code, answer.json()["error"]["kind"]) == (422, "invalid")
    assert f"query {next(iter(query))}: " in answer.json()["error"]["message"]


COMMANDS = ("activate", "deactivate", "kill", "rebalance", "rollback", "dead-letters/replay")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_the_token_also_on_loopback(served, command):
    for headers in ({}, bearer("wrong"), {"authorization": "Basic x"}):
        answer = served[1].post(f"/api/v1/{command}", json={}, headers=headers)

        assert (answer.status_code, answer.json()["error"]["kind"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_without_a_configured_token_commands_say_what_to_do(tmp_path):
    with serving(tmp_path, token=None) as (_, client):
        answer = client.post("/api/v1/kill", headers=bearer())

        assert answer.status_code == 403
        assert answer.json()["error"]["kind"] == "no_token"
        assert "option serve_token" in answer.json()["error"]["message"]


def test_commands_do_what_those_of_a_terminal_do(tmp_path):
    with serving(tmp_path) as (run, client):
        run.process_all_available(timeout=30)

        def post(command, **body):
            return client.post(f"/api/v1/{command}", json=body, headers=bearer())

        told = post("deactivate").json()
        assert (told["outcome"], told["active"], run.status) == ("done", False, "inactive")
        assert post("activate").json()["active"] is True
        moved = post("rebalance", pending=2)
        assert moved.json()["text"] == "rebalanced after batch 3: max_spout_pending=2"
        refused = post("rebalance", parallelism={"nothing": 3})
        assert (refused.status_code, refused.json()["error"]["kind"]) == (409, "refused")
        assert post("rebalance").status_code == 422
        assert post("rebalance", pending=True).status_code == 422

        killed = post("kill", wait_s=5)

        assert (killed.status_code, killed.json()["text"]) == (200, "killed after batch 3")
        assert run.await_termination(timeout=30)
        assert run.status == "stopped"


def test_a_dead_letter_is_repaired_and_replayed(tmp_path):
    with serving(tmp_path) as (run, client):
        run.process_all_available(timeout=30)
        (letter,) = client.get("/api/v1/dead-letters").json()["letters"]

        told = client.post(
            "/api/v1/dead-letters/replay",
            json={"ids": [letter["id"]], "set": {"value": "good"}},
            headers=bearer(),
        ).json()

        assert (told["done"], told["problem"]) == (1, "")
        until(lambda: not run.dead_letters())
        (state,) = client.get("/api/v1/topology").json()["states"]
        path = f"/api/v1/states/{state['name']}/value"
        assert client.get(path, params={"key": '["good"]'}).json()["value"] == 1


def test_a_rollback_ends_the_run_and_takes_its_last_batch_back(tmp_path):
    with serving(tmp_path) as (run, client):
        run.process_all_available(timeout=30)
        (state,) = client.get("/api/v1/topology").json()["states"]

        told = client.post("/api/v1/rollback", json={}, headers=bearer())

        assert (told.status_code, told.json()["taken_back"]) == (200, 3)
        assert run.await_termination(timeout=30)
    with serving(tmp_path, held=True) as (_, client):
        path = f"/api/v1/states/{state['name']}/value"
        assert client.get(path, params={"key": '["be"]'}).json()["value"] == 1


def test_a_kill_that_takes_long_is_answered_before_it_is_done(tmp_path, monkeypatch):
    from waterspout.serving import _actions

    monkeypatch.setattr(_actions, "_ANSWER_S", 0.05)
    with serving(tmp_path, held=True) as (run, client):
        until(lambda: run.snapshot().in_flight)

        told = client.post("/api/v1/kill", json={"wait_s": 600}, headers=bearer())

        assert (told.status_code, told.json()["outcome"]) == (202, "accepted")
