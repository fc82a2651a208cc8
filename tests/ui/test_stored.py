"""`StoredSource`: a topology that ran, was killed, or runs unserved, as a page sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cli.test_dead_letters import LETTER as MESSAGE
from tests.coordination.commanded import NAME, embedded, running, until, words
from tests.coordination.drivers import TOPOLOGY, Driver, ledger_at
from waterspout import Config
from waterspout.coordination.commands.outside import looked_at
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.zookeeper import ZooKeeperStore
from waterspout.ui._sources import NotAnswered
from waterspout.ui._stored import StoredSource

TOKEN = "open sesame"


def source(conf: Config, name: str = NAME, token: str | None = TOKEN) -> StoredSource:
    async def look():
        return next((sight for sight in looked_at(conf) if sight.name == name), None)

    return StoredSource(name, conf, "the home", look, token=token)


def get(of: StoredSource, path: str, **query: Any) -> Any:
    return asyncio.run(of.get(path, **query))


def post(of: StoredSource, path: str, body: Any = None, token: str | None = TOKEN) -> Any:
    return asyncio.run(of.post(path, body, token=token))


@pytest.fixture(params=["home", pytest.param("zookeeper", marks=pytest.mark.services)])
def place(request, tmp_path):
    """How a store is opened, and the options by which it is found, in a home or in ZooKeeper."""
    if request.param == "home":
        return lambda: embedded(tmp_path), Config(home=str(tmp_path / "home"))
    server = request.getfixturevalue("zookeeper_server")
    root = server.fresh_root()
    options = {"zookeeper_servers": [server.address], "zookeeper_root": root}
    return (
        lambda: ZooKeeperStore([server.address], NAME, root=root, folder=tmp_path / "f"),
        Config(home=str(tmp_path / "home"), **options),
    )


def test_a_topology_that_ran_is_told_from_what_it_has_stored(place, tmp_path):
    store, conf = place
    with running(words(tmp_path), store()) as (run, _):
        run.process_all_available(timeout=30)

    of = source(conf)

    told = get(of, "topology")
    assert (told["kind"], told["status"]) == ("trident", "stopped")
    assert [(s["name"], s["kind"], s["store"]) for s in told["states"]] == [
        ("state1", "opaque", "sqlite#counts")
    ]
    found = get(of, "batches", limit=10)
    assert found["states"] == ["state1"]
    committed = [(a["txid"], a["attempt"], a["outcome"]) for a in found["attempts"]][-2:]
    assert committed == [(2, 0, "committed"), (3, 0, "committed")]
    files = found["attempts"][-1]["from"]["in"]["files"]
    assert [name.rpartition("/")[2] for name, *_ in files] == ["2.txt"]
    assert get(of, "snapshot")["totals"]["committed"] == 3
    assert get(of, "pressure")["now"]["lag"]["in"]["files"] == 0
    assert [progress["txid"] for progress in get(of, "progress")] == [3]
    assert get(of, "resumes")["txid"] == 4
    assert (get(of, "errors"), get(of, "dead-letters")["total"]) == ([], 0)


def test_a_driver_that_was_killed_leaves_what_the_next_run_goes_on_with(tmp_path):
    with Driver(tmp_path) as driver:
        assert driver.ask("acquire")["value"] == 1
        assert "error" not in driver.ask("save 3")
        driver.kill()

    of = source(Config(home=str(tmp_path)), TOPOLOGY)

    assert get(of, "topology")["status"] == "dead"
    assert get(of, "resumes")["txid"] == 4
    attempts = get(of, "batches")["attempts"]
    assert (attempts[-1]["txid"], attempts[-1]["outcome"]) == (3, "committed")
    assert attempts[-1]["from"] == dict(ledger_at(3).committed_metadata or {})
    with pytest.raises(NotAnswered, match=r"does not run: its driver .* is dead") as refused:
        post(of, "kill")
    assert refused.value.why == "refused"


def test_a_run_that_is_not_served_obeys_the_page(place, tmp_path):
    store, conf = place
    of = source(conf)
    with running(words(tmp_path), store()) as (run, _):
        run.process_all_available(timeout=30)

        assert post(of, "deactivate")["text"].startswith("it is inactive;")
        assert run.status == "inactive"
        done = post(of, "rebalance", {"pending": 2, "wait_s": 5})
        assert done["text"] == "rebalanced after batch 3: max_spout_pending=2"
        with pytest.raises(NotAnswered, match="max_spout_pending is 0; expected a number >= 1"):
            post(of, "rebalance", {"pending": 0})
        assert post(of, "kill", {"wait_s": 5})["outcome"] == "done"
        run.await_termination(timeout=30)
    until(lambda: get(of, "topology")["status"] == "stopped")
    with pytest.raises(NotAnswered, match="it does not run"):
        post(of, "activate")


@pytest.mark.parametrize(
    ("kept", "given", "why"),
    [
        (None, TOKEN, "this page only shows: it was started without a token"),
        (TOKEN, None, "give the token that the page was started with"),
        (TOKEN, "open", "give the token that the page was started with"),
        (TOKEN, "", "give the token that the page was started with"),
    ],
)
def test_nothing_is_changed_without_the_token(tmp_path, kept, given, why):
    letters = DeadLetters(tmp_path / NAME)
    letters.add([MESSAGE])
    of = source(Config(home=str(tmp_path)), token=kept)

    for path, body in (("kill", {}), ("dead-letters/replay", {"ids": ["1"]})):
        with pytest.raises(NotAnswered, match=why) as refused:
            post(of, path, body, token=given)
        assert refused.value.why == "refused"

    assert letters.wanted() == []
    letters.close()


def test_a_dead_letter_is_looked_at_and_asked_for_while_nobody_runs_it(tmp_path):
    conf = Config(home=str(tmp_path / "home"))
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=30)
    letters = DeadLetters(tmp_path / "home" / "core")
    letters.add([MESSAGE, MESSAGE])
    sight = looked_at(conf)[0]

    async def look():
        return type(sight)("core")

    of = StoredSource("core", conf, "the home", look, token=TOKEN)

    found = get(of, "dead-letters", component="split", limit=1)
    assert (found["total"], found["matching"], found["letters"][0]["id"]) == (2, 2, "2")
    done = post(of, "dead-letters/replay", {"ids": ["2"]})
    assert (done["done"], done["problem"]) == (1, "")
    assert done["text"].endswith("no driver runs now: the next run will do it")
    assert [letter.id for letter in letters.wanted()] == ["2"]
    with pytest.raises(NotAnswered, match="has no dead letter 9"):
        post(of, "dead-letters/replay", {"ids": ["9"]})
    letters.close()


def test_what_is_not_stored_is_said_to_be_so_and_who_tells_it(tmp_path):
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=30)
    of = source(Config(home=str(tmp_path / "home")))

    for path, why in {
        "stats": "only a run that is served tells that; start it with --serve",
        "config": "only a run that is served",
        "/drpc": "only a run that is served",
        "states/state1/value": "from a terminal: waterspout state get FILE KEY",
        "states/state1/explain": "from a terminal: waterspout state explain FILE KEY",
    }.items():
        with pytest.raises(NotAnswered, match=why) as absent:
            get(of, path)
        assert absent.value.why == "absent"
    with pytest.raises(NotAnswered, match="from a terminal: waterspout state rollback FILE"):
        post(of, "rollback")
    with pytest.raises(NotAnswered, match="there is no topology 'other' in the home"):
        get(source(Config(home=str(tmp_path / "home")), "other"), "topology")
