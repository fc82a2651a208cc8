"""Commands from another terminal: what a run does with them, and what it never does."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from tests.coordination.commanded import NAME, embedded, running, until, words
from tests.coordination.drivers import FINGERPRINT, TOPOLOGY, Driver
from tests.waves import driving
from waterspout import BasicBolt, Config, TopologyBuilder
from waterspout.cli import main
from waterspout.coordination.commands.channel import FolderChannel
from waterspout.coordination.commands.messages import Change, Reply, Request, Wanted, from_json
from waterspout.coordination.commands.obedience import (
    Alter,
    End,
    KeepWanted,
    Obedience,
    SetActive,
    Standing,
    Tell,
)
from waterspout.coordination.commands.outside import ask, seen, status_of
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.lease import Holder, this_process
from waterspout.coordination.zookeeper import ZooKeeperStore
from waterspout.errors import CommandError, ConfigError, DamagedStoreError, LeaseLostError
from waterspout.events import CommandObeyed, ErrorReported
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.trident import Count, Debug, Split, TridentTopology
from waterspout.trident.plan.rebalancing import rebalanced

BUSY = Standing(False, "batch 41", "batch 42 will be emitted again by the next run")
DRAINED = Standing(True, "batch 42")
KILL = Request("k", "kill", 3, "ann@here", 0.0, wait_s=30.0)
MOVE = Request("m", "rebalance", 3, "ann@here", 0.0, wait_s=5.0, change=Change(pending=4))


def obedience(wanted: Wanted | None = None) -> Obedience:
    return Obedience(3, wanted or Wanted(), wait_s=30.0)


def told(steps) -> list[tuple[str, str]]:
    return [(step.reply.id, step.reply.outcome) for step in steps if isinstance(step, Tell)]


def test_kill_holds_the_spouts_and_ends_when_nothing_is_in_flight():
    obeys = obedience()

    accepted = obeys.hear(KILL, now=100.0, time=0.0)

    assert accepted[0] == SetActive(False)
    assert told(accepted) == [("k", "accepted")]
    assert obeys.turn(110.0, 0.0, BUSY) == []
    ended = obeys.turn(111.0, 0.0, DRAINED)
    assert ended[0] == End("ann@here")
    assert [step.reply.text for step in ended[1:]] == ["killed after batch 42"]


def test_kill_waits_no_longer_than_it_was_told_and_says_what_is_left():
    obeys = obedience()
    obeys.hear(KILL, now=100.0, time=0.0)

    assert obeys.turn(129.9, 0.0, BUSY) == []
    _, tell = obeys.turn(130.0, 0.0, BUSY)

    assert tell.reply.text == (
        "killed after batch 41; batch 42 will be emitted again by the next run"
    )


def test_of_two_kills_the_shorter_wait_counts_and_both_are_answered():
    obeys = obedience()
    obeys.hear(KILL, now=100.0, time=0.0)
    obeys.hear(replace(KILL, id="now", wait_s=0.0), now=101.0, time=0.0)
    obeys.hear(replace(KILL, id="later", wait_s=500.0), now=101.0, time=0.0)

    ended = obeys.turn(101.0, 0.0, BUSY)

    assert told(ended) == [("k", "done"), ("now", "done"), ("later", "done")]


@pytest.mark.parametrize("verb", ["activate", "deactivate", "rebalance"])
def test_nothing_else_is_done_while_a_run_is_being_killed(verb):
    obeys = obedience()
    obeys.hear(KILL, now=0.0, time=0.0)

    steps = obeys.hear(replace(MOVE, id="other", verb=verb), now=1.0, time=0.0)

    assert told(steps) == [("other", "refused")]
    assert len(steps) == 1


@pytest.mark.parametrize("epoch", [2, 4])
@pytest.mark.parametrize("verb", ["kill", "deactivate", "rebalance"])
def test_a_command_for_another_driver_changes_nothing(verb, epoch):
    obeys = obedience()

    steps = obeys.hear(replace(KILL, verb=verb, epoch=epoch), now=0.0, time=0.0)

    assert told(steps) == [("k", "refused")]
    assert len(steps) == 1
    assert not obeys.is_waiting


def test_deactivate_is_kept_before_it_is_answered_and_kill_forgets_it():
    obeys = obedience()

    steps = obeys.hear(replace(KILL, verb="deactivate"), now=0.0, time=7.0)

    kept = Wanted(active=False, by="ann@here", at=7.0)
    assert steps[:2] == [KeepWanted(kept), SetActive(False)]
    assert told(steps) == [("k", "done")]
    obeys.hear(KILL, now=0.0, time=0.0)
    assert obeys.turn(0.0, 0.0, DRAINED)[0] == KeepWanted(Wanted())


def test_a_rebalance_is_made_between_batches_and_goes_on_as_before():
    obeys = obedience()
    assert told(obeys.hear(MOVE, now=0.0, time=0.0)) == [("m", "accepted")]
    assert obeys.turn(1.0, 0.0, BUSY) == []
    assert obeys.turn(2.0, 0.0, DRAINED) == [Alter(MOVE)]

    steps = obeys.altered(None, 9.0, DRAINED)

    assert steps[:2] == [
        KeepWanted(Wanted(change=Change(pending=4), by="ann@here", at=9.0)),
        SetActive(True),
    ]
    assert told(steps) == [("m", "done")]


def test_a_rebalance_that_finds_no_gap_changes_nothing():
    obeys = obedience(Wanted(active=False))
    obeys.hear(MOVE, now=0.0, time=0.0)

    steps = obeys.turn(5.0, 0.0, BUSY)

    assert steps[0] == SetActive(False), "as it was before"
    assert told(steps) == [("m", "refused")]
    assert obeys.wanted == Wanted(active=False)


def test_activate_during_a_rebalance_lets_nothing_out_before_it_is_done():
    obeys = obedience(Wanted(active=False))
    obeys.hear(MOVE, now=0.0, time=0.0)

    steps = obeys.hear(replace(KILL, verb="activate"), now=1.0, time=0.0)

    assert SetActive(True) not in steps
    obeys.turn(2.0, 0.0, DRAINED)
    assert SetActive(True) in obeys.altered(None, 0.0, DRAINED)


def test_a_kill_comes_before_a_rebalance():
    obeys = obedience()
    obeys.hear(MOVE, now=0.0, time=0.0)

    steps = obeys.hear(KILL, now=1.0, time=0.0)

    assert told(steps) == [("m", "refused"), ("k", "accepted")]
    assert isinstance(obeys.turn(2.0, 0.0, DRAINED)[0], End)


def test_what_waits_when_a_run_fails_is_answered_with_the_error():
    obeys = obedience()
    obeys.hear(KILL, now=0.0, time=0.0)

    (tell,) = obeys.ended("OSError: no disk", 0.0, BUSY)

    assert tell.reply.outcome == "refused"
    assert tell.reply.text == "the run ended before, after batch 41: OSError: no disk"


@pytest.mark.parametrize(
    ("state", "told_last", "status"),
    [
        ("held", "running", "running"),
        ("held", None, "starting"),
        ("held", "stopped", "starting"),
        ("free", "stopped", "stopped"),
        ("free", "failed", "failed"),
        ("free", "running", "dead"),
        ("dead", "running", "dead"),
        ("silent", "running", "silent"),
    ],
)
def test_the_status_is_that_of_whoever_has_the_lease(state, told_last, status):
    snapshot = {} if told_last is None else {"status": told_last}

    assert status_of(Holder(1, this_process(), state), snapshot) == status


def test_a_damaged_message_is_told_from_a_good_one():
    for odd in (None, [], {"id": 1}, {**KILL_JSON, "verb": "format"}, {**KILL_JSON, "wait_s": -1}):
        with pytest.raises(DamagedStoreError):
            from_json(Request, odd)
    assert from_json(Request, KILL_JSON) == KILL


KILL_JSON = {
    "id": "k",
    "verb": "kill",
    "epoch": 3,
    "by": "ann@here",
    "at": 0.0,
    "wait_s": 30.0,
    "change": {"pending": None, "workers": None, "parallelism": {}},
}


@pytest.fixture(params=["folder", pytest.param("zookeeper", marks=pytest.mark.services)])
def channels(request, tmp_path):
    """The channel as the driver has it, and as whoever asks."""
    if request.param == "folder":
        yield FolderChannel(tmp_path), FolderChannel(tmp_path)
        return
    server = request.getfixturevalue("zookeeper_server")
    root = server.fresh_root()
    stores = [ZooKeeperStore([server.address], NAME, root=root) for _ in range(2)]
    stores[0].acquire({})
    with stores[1].visiting():
        yield stores[0].channel, stores[1].channel
    for store in stores:
        store.release()


def test_a_request_reaches_one_driver_once_and_its_answer_comes_back(channels):
    driver, asks = channels
    assert driver.requests() == []
    asks.ask(KILL)

    assert driver.requests() == ["k"]
    assert driver.take("k") == KILL
    assert driver.take("k") is None
    assert not asks.withdraw("k"), "too late"
    assert asks.answer_to("k") is None
    driver.answer(Reply("k", "accepted", "soon", 1.0))
    driver.answer(Reply("k", "done", "killed", 2.0, {"last_txid": 4}))
    assert asks.answer_to("k") == Reply("k", "done", "killed", 2.0, {"last_txid": 4})
    assert asks.answer_to("k") is None, "a final answer is read once"


def test_a_request_that_was_withdrawn_is_never_taken(channels):
    driver, asks = channels
    asks.ask(KILL)

    assert asks.withdraw("k")
    assert driver.take("k") is None


def test_the_status_is_the_one_told_last(channels):
    driver, asks = channels
    assert asks.status() is None

    driver.publish({"epoch": 1})
    until(lambda: asks.status() == {"epoch": 1})
    driver.publish({"epoch": 2})

    until(lambda: asks.status() == {"epoch": 2})


def test_answers_that_nobody_has_read_are_forgotten(channels):
    driver, asks = channels
    driver.publish({"epoch": 1})
    asks.ask(KILL)
    driver.answer(Reply("old", "done", "", 0.0))

    driver.forget_answers()

    assert asks.answer_to("old") is None
    assert driver.requests() == ["k"]


def test_a_damaged_request_is_removed_and_not_obeyed(tmp_path):
    channel = FolderChannel(tmp_path)
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "bad.request").write_bytes(b'{"verb": "kill"')

    assert channel.take("bad") is None
    assert channel.requests() == []


def counted(place) -> dict[str, int]:
    with closing(sqlite3.connect(place / "counts.db")) as db:
        return dict(db.execute("SELECT word, count FROM counts").fetchall())


def test_kill_waits_for_the_commit_and_says_after_which_batch(tmp_path):
    with running(words(tmp_path), embedded(tmp_path), held=True) as (run, loop):
        until(lambda: run.snapshot().in_flight)
        heard = []
        run.subscribe(heard.append)
        asked = threading.Thread(target=lambda: answers.append(given(tmp_path, "kill")))
        answers: list[Reply] = []
        asked.start()
        until(lambda: any(isinstance(e, CommandObeyed) for e in heard))
        assert run.status == "inactive", "and not stopped: batch 1 is in flight"
        loop.held.clear()
        asked.join(20)

        assert [(a.text, a.facts) for a in answers] == [
            ("killed after batch 1", {"last_txid": 1, "emitted_again": []})
        ]
        run.await_termination(timeout=20)
        assert run.status == "stopped"
    assert counted(tmp_path) == {"to": 1, "be": 1}


def test_kill_without_a_wait_leaves_the_batch_to_the_next_run(tmp_path):
    topology = words(tmp_path)
    with running(topology, embedded(tmp_path), held=True) as (run, _):
        until(lambda: run.snapshot().in_flight)

        answer = given(tmp_path, "kill", wait_s=0.0)

        assert answer.text == (
            "killed after no batch; batch 1 will be emitted again by the next run"
        )
        assert answer.facts["emitted_again"] == [1]
    with running(topology, embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=20)
    assert counted(tmp_path) == {"to": 3, "be": 3}


def test_a_kill_for_an_earlier_driver_does_not_kill_this_one(tmp_path):
    topology, store = words(tmp_path), embedded(tmp_path)
    with running(topology, store) as (run, _):
        run.process_all_available(timeout=20)
        first = embedded(tmp_path).holder().epoch
    FolderChannel(store.folder).ask(replace(KILL, epoch=first))

    with running(topology, embedded(tmp_path)) as (run, _):
        channel = FolderChannel(store.folder)
        until(lambda: not channel.requests())
        reply = until(lambda: channel.answer_to("k"))
        assert reply.outcome == "refused"
        run.process_all_available(timeout=20)
        assert run.status == "idle"


def test_deactivated_is_so_after_a_restart_and_after_a_takeover_until_activated(tmp_path):
    topology = words(tmp_path)
    with running(topology, embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=20)
        given(tmp_path, "deactivate")
        assert run.status == "inactive"
    (tmp_path / "data" / "more.txt").write_text("to be\n")

    with running(topology, embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=20)
        assert (run.status, counted(tmp_path)["to"]) == ("inactive", 3)
        given(tmp_path, "activate")
        run.process_all_available(timeout=20)
        assert (run.status, counted(tmp_path)["to"]) == ("idle", 4)


def test_what_is_wanted_is_written_under_the_lease(tmp_path):
    first = embedded(tmp_path, lease_s=0.1, clock=lambda: 0.0)
    first.acquire({})
    second = embedded(tmp_path, lease_s=0.1, clock=lambda: 1.0)
    second.acquire({})

    with pytest.raises(LeaseLostError):
        first.want(Wanted(active=False))

    assert second.wanted() == Wanted()
    second.release()


def test_a_rebalance_lets_more_batches_into_flight_and_later_runs_keep_it(tmp_path):
    topology = words(tmp_path, files=0)
    (tmp_path / "data").mkdir(exist_ok=True)
    with running(topology, embedded(tmp_path)) as (run, loop):
        answer = given(tmp_path, "rebalance", change=Change(pending=3))
        assert answer.text == "rebalanced after no batch: max_spout_pending=3"
        loop.held.set()
        words(tmp_path, files=4)
        until(lambda: len(run.snapshot().in_flight) == 3)
        loop.held.clear()
        run.process_all_available(timeout=20)
    with running(topology, embedded(tmp_path)) as (run, loop):
        assert loop.coordinator.max_batches == 3
    assert counted(tmp_path)["to"] == 4


@pytest.mark.parametrize(
    ("change", "why"),
    [(Change(workers=2), "only max_spout_pending"), (Change(parallelism={"a": 1}), "only max_")],
)
def test_a_rebalance_that_cannot_be_is_refused_with_the_reason(tmp_path, change, why):
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        with pytest.raises(CommandError, match=why):
            given(tmp_path, "rebalance", change=change)
        run.process_all_available(timeout=20)
        assert run.status == "idle"


def test_a_command_to_a_dead_driver_says_that_it_is_dead(tmp_path):
    with Driver(tmp_path / "home") as driver:
        driver.ask("acquire")
        driver.kill()
    store = EmbeddedStore(tmp_path / "home", TOPOLOGY)

    with pytest.raises(CommandError, match=r"does not run: its driver .* is dead"):
        ask(TOPOLOGY, store, "kill")
    assert FolderChannel(store.folder).requests() == []


def test_a_driver_that_does_not_answer_is_not_waited_for_and_the_command_is_taken_back(tmp_path):
    with Driver(tmp_path / "home") as driver:  # it holds the lease, and takes no commands
        driver.ask("acquire")
        store = EmbeddedStore(tmp_path / "home", TOPOLOGY)

        with pytest.raises(CommandError, match=r"not answered for 0\.2 s; the command was taken"):
            ask(TOPOLOGY, store, "kill", timeout_s=0.2)

        assert FolderChannel(store.folder).requests() == []


def test_a_driver_that_dies_under_a_command_is_told_as_dead(tmp_path):
    with Driver(tmp_path / "home") as driver:
        driver.ask("acquire")
        store = EmbeddedStore(tmp_path / "home", TOPOLOGY)

        def die_when_asked(seconds):
            if FolderChannel(store.folder).requests():
                driver.kill()

        with pytest.raises(CommandError, match="died before it had answered"):
            ask(TOPOLOGY, store, "kill", pause=die_when_asked)


def test_a_driver_that_was_taken_over_under_a_command_is_told(tmp_path):
    with Driver(tmp_path / "home") as driver:
        driver.ask("acquire")
        store, next_one = (EmbeddedStore(tmp_path / "home", TOPOLOGY) for _ in range(2))

        def take_over(seconds):
            driver.kill()
            next_one.acquire(FINGERPRINT)

        with pytest.raises(CommandError, match="another driver has taken over meanwhile"):
            ask(TOPOLOGY, store, "kill", pause=take_over)
        next_one.release()


def test_a_driver_that_is_stopped_is_told_as_silent(tmp_path):
    with Driver(tmp_path / "home", lease_s=0.1) as driver:
        driver.ask("acquire")
        driver.pause()
        store = EmbeddedStore(tmp_path / "home", TOPOLOGY)
        until(lambda: store.holder().state == "silent")

        with pytest.raises(CommandError, match="has not renewed its lease"):
            ask(TOPOLOGY, store, "kill")
        os.kill(driver.pid, signal.SIGCONT)


def test_what_is_told_of_a_run_holds_no_secrets_and_no_tracebacks(tmp_path):
    topology = words(tmp_path)
    with running(topology, embedded(tmp_path)) as (run, loop):
        run.process_all_available(timeout=20)
        secret = "no answer from postgresql://me:hunter2@db/app"
        loop.events.publish(ErrorReported(NAME, "in", 1, secret, "line 3: hunter2"))
        published = until(
            lambda: (
                "no answer" in json.dumps(seen(NAME, embedded(tmp_path)).snapshot)
                and json.dumps(seen(NAME, embedded(tmp_path)).snapshot)
            )
        )
    assert "hunter2" not in published
    assert "postgresql://me:***@db/app" in published


def given(place, verb, **options) -> Reply:
    """Give a command as another terminal does, with a store of its own."""
    return ask(NAME, embedded(place), verb, timeout_s=20.0, **options)


def test_the_default_wait_is_the_message_timeout(tmp_path):
    conf = Config(idle_poll_millis=1, message_timeout_secs=7)
    with running(words(tmp_path), embedded(tmp_path), conf, held=True) as (run, loop):
        until(lambda: run.snapshot().in_flight)
        said: list[str] = []

        def note(text):
            said.append(text)
            loop.held.clear()

        given(tmp_path, "kill", told=note)

    assert said == ["the spouts are asked no more; it ends within 7 s"]


class Counting(BasicBolt):
    """Counts by word in memory: of all its tasks together, each word must be counted once."""

    output_fields = ()

    def prepare(self, conf, context):
        self.counts = {}

    def execute(self, given, collector):
        word = given["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        driving.seen("counts").append((word, self.counts[word]))


def test_bolts_keep_what_they_hold_when_a_run_is_rebalanced():
    driving.forget_all()
    spout, builder = FeederSpout("word", replay=True), TopologyBuilder()
    builder.set_spout("in", spout)
    builder.set_bolt("count", Counting(), 4).fields_grouping("in", "word")
    driven = driving.Driven(
        builder.create_topology("t"), wave_collapse_tuples=driving.SPREAD, keep_alive=False
    )
    for change in (Change(workers=3), Change(parallelism={"count": 1}), Change(pending=1)):
        for n in range(20):
            spout.feed([f"w{n}"], msg_id=(str(change), n))
        driven.until_idle()
        assert driven.loop.standing().is_drained
        driven.loop.check_change(change)
        driven.loop.change(change)
    for n in range(20):
        spout.feed([f"w{n}"], msg_id=n)
    driven.until_idle()

    assert (driven.loop.workers, driven.loop.widths) == (3, {"count": 1})
    assert sorted(driving.seen("counts")) == sorted(
        (f"w{n}", times) for n in range(20) for times in (1, 2, 3, 4)
    )
    assert driven.heard.waves[-1].tuples == 1, "one message at a time"


def test_what_is_pending_in_a_core_topology_is_not_drained():
    spout, builder = FeederSpout("word", replay=True), TopologyBuilder()
    builder.set_spout("in", spout)
    builder.set_bolt("never", driving.Do(lambda *_: None, ())).shuffle_grouping("in")
    driven = driving.Driven(builder.create_topology("t"))
    spout.feed(["a"], msg_id=1)
    driven.until(lambda: driven.loop.waves == 1)
    driven.step(3)

    standing = driven.loop.standing()

    assert (standing.is_drained, standing.done) == (False, "wave 1")
    assert standing.left == "1 message was not acked: it is up to their spouts to emit them again"


def test_named_operations_of_trident_are_rebalanced_and_no_others():
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("s string", 1, [("a",)])).shuffle()
    split = stream.each("s", Split(), "word").name("split").parallelism_hint(4)
    split.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    counted = split.shuffle().partition_aggregate("word", Count(), "n").name("each")
    counted.each("n", Debug()).name("after")
    plan = topology.plan()
    (node,) = (node for node in plan.nodes if node.name == "split")
    assert plan.width_of(node) == 4

    assert rebalanced(plan, {"split": 2}).width_of(node) == 2

    state = next(iter(plan.states))
    for name, why in {
        "each": "whose results depend on their number",
        "after": "same partitions as each",
        "no": "no operation 'no' in t; it has after, ",
        "shuffle": "several operations 'shuffle'; give one a name",
        state: "is a state: its number of partitions is part of what is stored",
    }.items():
        with pytest.raises(ConfigError, match=why):
            rebalanced(plan, {name: 2})


def test_runs_in_zookeeper_are_commanded_from_anywhere(tmp_path, zookeeper_server, capsys):
    root = zookeeper_server.fresh_root()
    options = [
        *("-c", f"transactional.zookeeper.servers=[{zookeeper_server.address}]"),
        *("-c", f"transactional.zookeeper.root={root}", "--json"),
    ]
    topology = words(tmp_path)

    def store():
        return ZooKeeperStore([zookeeper_server.address], NAME, root=root, folder=tmp_path / "f")

    def command(*arguments):
        capsys.readouterr()
        code = main([*arguments, *options])
        return code, json.loads(capsys.readouterr().out or "null")

    assert command("list") == (0, {"topologies": []})
    with running(topology, store()) as (run, _):
        run.process_all_available(timeout=20)
        assert command("deactivate", NAME)[0] == 0
        assert run.status == "inactive"
        until(lambda: command("list")[1]["topologies"][0]["status"] == "inactive")
        # A driver that lost its session cannot say any more what is wanted.
        late = store()
        with pytest.raises(LeaseLostError):
            late.want(Wanted())
    assert command("show", NAME)[1]["status"] == "stopped"
    with running(topology, store()) as (run, _):
        assert run.status == "inactive", "as it was left"
        assert command("activate", NAME)[0] == 0
        code, killed = command("kill", NAME)
        assert (code, killed["text"]) == (0, "killed after batch 3")
        run.await_termination(timeout=20)
    code, refused = command("kill", NAME)
    assert (code, refused["text"]) == (1, "it does not run")
    assert command("show", NAME)[1]["wanted"]["active"], "kill forgets"
    assert counted(tmp_path) == {"to": 3, "be": 3}
