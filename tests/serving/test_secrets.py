"""Canaries: what opens a door is in no answer, whoever asks, and in nothing that is logged."""

from __future__ import annotations

import logging

from tests.serving.served import bearer, serving
from waterspout.serving._served import Served
from waterspout.state.postgres import PostgresState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

TOKEN = "canary-token-5f2b"
AUTH = "canary-zookeeper-77aa"
DSN = "canary-dsn-19c4"


def test_no_answer_has_a_secret_of_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WATERSPOUT_ZOOKEEPER_AUTH", f"me:{AUTH}")
    caplog.set_level(logging.DEBUG)
    with serving(tmp_path, token=TOKEN) as (run, client):
        run.process_all_available(timeout=30)
        log = logging.getLogger("waterspout.canary")
        log.warning("token %s, auth %s, postgresql://me:%s@db/x", TOKEN, AUTH, DSN)
        paths = client.get("/openapi.json").json()["paths"]
        asked = [path.replace("{name}", "state1") for path, how in paths.items() if "get" in how]
        texts = []
        for path in [*asked, "/docs", "/openapi.json", f"/{TOKEN}", f"/api/v1/states/{AUTH}/value"]:
            for headers in ({}, bearer(TOKEN)):
                answer = client.get(path, params={"key": '["to"]'}, headers=headers)
                texts.append(f"{path} {answer.headers} {answer.text}")
        for path, how in paths.items():
            if "post" in how:
                answer = client.post(path, json={"x": TOKEN}, headers=bearer("wrong"))
                texts.append(f"{path} {answer.headers} {answer.text}")
        assert "/api/v1/log" in asked

    leaked = [
        text
        for text in texts
        for word in (TOKEN, AUTH, DSN)
        if word in text and word not in text.partition(" ")[0]
    ]

    assert leaked == []


def test_a_password_of_a_state_is_hidden_in_any_text():
    topology = TridentTopology("words")
    spout = FixedBatchSpout("word string", 1, [["a"]])
    state = PostgresState.opaque(f"postgresql://me:{DSN}@db/x", table="t")
    topology.new_stream("in", spout).group_by("word").persistent_aggregate(state, Count(), "n")
    served = Served.__new__(Served)
    from waterspout import Config

    object.__setattr__(served, "topology", topology)
    object.__setattr__(served, "config", Config())
    object.__setattr__(served, "token", TOKEN)

    assert served.hide(f"the server said {DSN} and {TOKEN}") == "the server said *** and ***"
