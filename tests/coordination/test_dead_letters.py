"""Messages that fail too often: how often, what is kept of them, and how they come back."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from tests.waves.driving import Do, Driven, Fails, ListLog, Record, forget_all, seen, seen_log
from waterspout import faults
from waterspout._letters import DeadLetter, stored_form
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.store import SharedMemory
from waterspout.errors import (
    DamagedStoreError,
    DeadLettersFullError,
    FailedException,
    ForeignStoreError,
    NewerFormatError,
)
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.testing import FeederSpout
from waterspout.topology import Direct, Spout, TopologyBuilder


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def failing(bolt: Any, values: list[Any], **options: Any) -> tuple[Driven, FeederSpout]:
    """A feeder that replays, one bolt, and messages whose ids are their values' positions."""
    feeder = FeederSpout("value", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt).shuffle_grouping("source")
    for n, value in enumerate(values):
        feeder.feed([value], msg_id=f"m{n}")
    return Driven(builder.create_topology("t"), **options), feeder


def replayed(driven: Driven) -> None:
    """Ask for all letters again, and run."""
    driven.letters.want()
    driven.clock.pass_by(1)
    driven.step()
    driven.until_idle()


@pytest.mark.parametrize("max_replays", [0, 1, 3])
def test_a_message_is_emitted_once_and_then_max_replays_times(max_replays):
    driven, feeder = failing(Fails("out", {"bad": 99}), ["a", "bad", "b"], max_replays=max_replays)
    driven.until_idle()

    assert seen("out, tried").count("bad") == max_replays + 1
    assert sorted(seen("out")) == ["a", "b"]
    assert feeder.tracker.acks == {"m0": 1, "m1": 1, "m2": 1}
    assert feeder.tracker.fails == ({"m1": max_replays} if max_replays else {})
    assert driven.counts.dead_letters == 1


def test_a_message_that_succeeds_at_its_last_replay_is_no_letter():
    driven, feeder = failing(Fails("out", {"late": 3}), ["late"], max_replays=3)
    driven.until_idle()

    assert driven.letters.all() == []
    assert feeder.tracker.acks == {"m0": 1}


def test_a_letter_says_what_where_why_and_when():
    before = time.time()
    driven, _ = failing(Fails("out", {"bad": 99}), ["bad"], max_replays=2)
    driven.until_idle()

    (letter,) = driven.letters.all()
    assert letter.id == "1"
    assert (letter.spout, letter.stream) == ("source", "default")
    assert (letter.values, letter.shown) == (("bad",), "['bad']")
    assert letter.message_id == "'m0'"
    assert (letter.failed_in, letter.error) == ("bolt", "ValueError: not bad yet")
    assert letter.failures == 3
    assert before <= letter.first_failed <= letter.last_failed <= time.time()
    assert (letter.asked, letter.can_be_replayed) == (None, True)
    assert len(driven.letters) == 1


def refuse(bolt, tuple):
    bolt.collector.fail(tuple)


def raise_failed(bolt, tuple):
    raise FailedException("please again")


def forget(bolt, tuple):
    """Never ack."""


@pytest.mark.parametrize(
    ("deed", "component", "error"),
    [
        (refuse, "bolt", "failed by the bolt"),
        (raise_failed, "bolt", "FailedException: please again"),
        (forget, "", "timed out"),
    ],
    ids=["fail", "exception", "timeout"],
)
def test_a_letter_knows_how_its_message_failed(deed, component, error):
    driven, feeder = failing(Do(deed), ["x"], max_replays=1, message_timeout_secs=5)
    driven.until_idle(tick=1)

    (letter,) = driven.letters.all()
    assert (letter.failed_in, letter.error, letter.failures) == (component, error, 2)
    assert feeder.tracker.acks == {"m0": 1}


def test_an_exception_that_asks_for_a_replay_is_no_error_of_the_bolt():
    driven, _ = failing(Do(raise_failed), ["x"])
    driven.until_idle()

    assert driven.heard.errors == []


def test_letters_are_numbered_in_the_order_in_which_they_came():
    driven, feeder = failing(Do(refuse), [], max_replays=0)
    for n in range(20):
        feeder.feed([n], msg_id=n)
        driven.until_idle()

    assert [letter.values for letter in driven.letters.all()] == [(n,) for n in range(20)]
    assert [letter.id for letter in driven.letters.all()[:3]] == ["1", "2", "3"]


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Shapeless:
    def __repr__(self):
        raise RuntimeError("no shape")


def raise_surrogate(bolt, tuple):
    raise ValueError("bad name \udcff")


def raise_speechless(bolt, tuple):
    raise Speechless


def raise_long(bolt, tuple):
    raise ValueError("x" * 10**6)


@pytest.mark.parametrize("deed", [raise_surrogate, raise_speechless, raise_long])
def test_any_error_can_be_kept(deed):
    driven, feeder = failing(Do(deed), ["x"], max_replays=0)
    driven.until_idle()

    (letter,) = driven.letters.all()
    assert letter.error.startswith("Speechless" if deed is raise_speechless else "ValueError")
    assert len(letter.error) < 5000
    assert feeder.tracker.acks == {"m0": 1}
    assert driven.loop.error is None


@pytest.mark.parametrize(
    "value", [Shapeless(), 10**5000, object(), {1, object()}], ids=["shape", "int", "object", "set"]
)
def test_values_that_cannot_be_encoded_are_shown_but_not_replayed(value):
    driven, feeder = failing(Do(refuse), [value], max_replays=0)
    driven.until_idle()

    (letter,) = driven.letters.all()
    assert not letter.can_be_replayed
    assert letter.values is None
    assert letter.shown
    assert driven.letters.want() == 0
    assert driven.letters.want(["1"]) == 0
    assert feeder.tracker.acks == {"m0": 1}


@pytest.mark.parametrize(
    "value",
    ["größe \U0001f32a", "\ud800", b"raw\0", None, [1, [2, {"a": Decimal("1.50")}]], 2**80, (1, 2)],
    ids=range(7),
)
def test_values_come_back_as_they_were(value):
    driven, _ = failing(Do(refuse_once), [value], max_replays=0)
    driven.until_idle()
    (letter,) = driven.letters.all()
    assert letter.values == (value,)

    replayed(driven)

    assert seen("accepted") == [value]
    assert type(seen("accepted")[0]) is type(value)
    assert driven.letters.all() == []


def refuse_once(bolt, tuple):
    if seen("refused"):
        seen("accepted").append(tuple["value"])
        bolt.collector.ack(tuple)
    else:
        seen("refused").append(True)
        bolt.collector.fail(tuple)


@pytest.mark.parametrize(("point", "stored"), [("letters.before", 0), ("letters.after", 1)])
def test_a_letter_is_stored_before_its_message_is_acked(point, stored, tmp_path):
    letters = DeadLetters(tmp_path)
    driven, feeder = failing(Do(refuse), ["x"], max_replays=0, letters=letters)
    faults.install(FaultPlan([Fault(point, "raise")]))

    error = driven.until_error()
    driven.loop.close()

    assert isinstance(error, InjectedError)
    assert feeder.tracker.acks == {}
    assert len(DeadLetters(tmp_path)) == stored


def test_letters_that_are_full_stop_the_run_and_nothing_is_acked(tmp_path):
    letters = DeadLetters(tmp_path, limit=2)
    driven, feeder = failing(Do(refuse), ["a", "b", "c"], max_replays=0, letters=letters)

    error = driven.until_error()

    assert isinstance(error, DeadLettersFullError)
    assert "there are 0 dead letters, and 2 are kept at most" in str(error)
    assert feeder.tracker.acks == {}
    assert len(letters) == 0


def test_letters_up_to_the_limit_are_kept(tmp_path):
    letters = DeadLetters(tmp_path, limit=2)
    driven, feeder = failing(Do(refuse), ["a", "b"], max_replays=0, letters=letters)
    driven.until_idle()
    feeder.feed(["c"], msg_id="m2")

    assert isinstance(driven.until_error(), DeadLettersFullError)
    assert feeder.tracker.acks == {"m0": 1, "m1": 1}
    assert sorted(letter.values for letter in letters.all()) == [("a",), ("b",)]


def test_a_letter_that_goes_back_to_its_place_needs_no_room(tmp_path):
    letters = DeadLetters(tmp_path, limit=1)
    driven, _ = failing(Do(refuse), ["a"], max_replays=0, letters=letters)
    driven.until_idle()

    replayed(driven)

    assert [letter.failures for letter in letters.all()] == [2]


def test_a_letter_that_is_replayed_with_success_is_gone():
    driven, feeder = failing(Fails("out", {"bad": 4}), ["bad"], max_replays=3)
    driven.until_idle()

    replayed(driven)

    assert seen("out") == ["bad"]
    assert driven.letters.all() == []
    # The message itself was acked when its letter was stored, and is not told again.
    assert feeder.tracker.acks == {"m0": 1}


@pytest.mark.parametrize(
    "value", ["bad", ["a", "list"], {"a": "dict"}], ids=["str", "list", "dict"]
)
def test_a_letter_that_fails_again_goes_back_with_all_its_failures(value):
    driven, feeder = failing(Do(refuse), [value], max_replays=1)
    driven.until_idle()
    (first,) = driven.letters.all()
    assert first.failures == 2

    replayed(driven)
    replayed(driven)

    (letter,) = driven.letters.all()
    assert (letter.id, letter.failures, letter.asked) == (first.id, 6, None)
    assert (letter.message_id, letter.first_failed) == (first.message_id, first.first_failed)
    assert letter.last_failed >= first.last_failed
    assert letter.values == (value,)
    assert feeder.tracker.acks == {"m0": 1}
    assert driven.counts.dead_letters == 1


def test_only_the_letters_that_are_wanted_are_replayed():
    driven, _ = failing(Do(refuse_all_of_first_round), ["a", "b", "c"], max_replays=0)
    driven.until_idle()
    seen("round").append(2)

    wanted = driven.letters.all()[1].values[0]

    assert driven.letters.want(["2", "77"]) == 1
    driven.clock.pass_by(1)
    driven.step()
    driven.until_idle()

    assert seen("accepted") == [wanted]
    assert [letter.id for letter in driven.letters.all()] == ["1", "3"]


def refuse_all_of_first_round(bolt, tuple):
    if seen("round"):
        seen("accepted").append(tuple["value"])
        bolt.collector.ack(tuple)
    else:
        bolt.collector.fail(tuple)


def test_a_letter_is_replayed_once_for_one_request():
    driven, _ = failing(Do(refuse_then_hold), ["a"], max_replays=0)
    driven.until_idle()
    driven.letters.want()
    for _ in range(20):
        driven.clock.pass_by(1)
        driven.step()

    assert seen("held") == ["a"]


def refuse_then_hold(bolt, tuple):
    if seen("refused"):
        seen("held").append(tuple["value"])
    else:
        seen("refused").append(True)
        bolt.collector.fail(tuple)


def test_a_letter_of_a_direct_stream_ends_no_run():
    builder = TopologyBuilder()
    builder.set_spout("source", Pointing())
    builder.set_bolt("bolt", Do(refuse_once_any), 2).direct_grouping("source", "to")
    driven = Driven(builder.create_topology("t"), max_replays=0)
    driven.until_idle()
    assert len(driven.letters) == 1

    replayed(driven)

    assert driven.loop.error is None
    # Either it was sent to its task again, or it stays and is known not to be replayable.
    (letter,) = driven.letters.all() or [None]
    assert (letter is None) == (seen("accepted") == [(3, 7)])
    assert letter is None or not letter.is_asked_for


class Pointing(Spout):
    streams: ClassVar = {"to": Direct("value")}

    def open(self, conf, context, collector):
        collector.emit_direct(3, [7], msg_id="m", stream="to")

    def next_tuple(self):
        """All was said."""


def refuse_once_any(bolt, tuple):
    if seen("refused"):
        seen("accepted").append((bolt.task, tuple["value"]))
        bolt.collector.ack(tuple)
    else:
        seen("refused").append(True)
        bolt.collector.fail(tuple)


class Stumbling(FeederSpout):
    """Raises in `next_tuple` when it is told to."""

    def next_tuple(self):
        if seen("stumble"):
            seen("stumble").clear()
            raise ConnectionError("lost")
        super().next_tuple()


def test_a_spout_that_crashes_while_its_letter_is_replayed_forgets_it_not():
    feeder = Stumbling("value", replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Do(follow_mode)).shuffle_grouping("source")
    driven = Driven(builder.create_topology("t"), max_replays=0)
    feeder.feed(["x"], msg_id="m")
    driven.until_idle()

    seen("mode").append("hold")
    driven.letters.want()
    driven.clock.pass_by(1)
    driven.step(3)
    seen("stumble").append(True)
    driven.until(lambda: not seen("stumble"))
    driven.until_idle(steps=1000, tick=0.2)
    seen("mode").append("ack")
    replayed(driven)

    assert driven.letters.all() == []
    assert seen("accepted") == ["x"]


def follow_mode(bolt, tuple):
    mode = seen("mode")[-1] if seen("mode") else "fail"
    if mode == "fail":
        bolt.collector.fail(tuple)
    elif mode == "ack":
        seen("accepted").append(tuple["value"])
        bolt.collector.ack(tuple)


def test_letters_of_a_spout_that_is_no_more_wait():
    letters = DeadLetters(None)
    letters.add([letter(1, spout="gone")])
    driven, _ = failing(Record("out"), [], letters=letters)

    replayed(driven)

    assert [each.spout for each in driven.letters.all()] == ["gone"]


def test_without_ackers_nothing_is_replayed():
    letters = DeadLetters(None)
    letters.add([letter(1)])
    driven, _ = failing(Record("out"), [], letters=letters, ackers=0)

    replayed(driven)

    assert len(driven.letters) == 1
    assert seen("out") == []


def letter(value: Any = 1, spout: str = "source") -> DeadLetter:
    content, looks = stored_form([value])
    return DeadLetter(
        spout=spout,
        stream="default",
        content=content,
        looks=looks,
        message_id="'m'",
        failed_in="bolt",
        error="E: x",
        failures=2,
        first_failed=10.0,
        last_failed=20.0,
    )


def test_nothing_is_made_before_the_first_letter(tmp_path):
    letters = DeadLetters(tmp_path / "topology")

    assert (letters.all(), letters.wanted(), len(letters)) == ([], [], 0)
    assert (letters.want(), letters.remove(["1"])) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_letters_outlive_the_process(tmp_path):
    first = DeadLetters(tmp_path)
    first.add([letter("a"), letter("b")])
    first.close()

    second = DeadLetters(tmp_path)
    assert [each.values for each in second.all()] == [("a",), ("b",)]
    assert second.want(["2"]) == 1
    assert [each.values for each in second.wanted()] == [("b",)]
    assert second.remove(["1", "2"]) == 2
    assert second.all() == []


def test_somebody_else_may_ask_for_a_replay_while_the_topology_runs(tmp_path):
    driven, _ = failing(Do(refuse_once), ["a"], max_replays=0, letters=DeadLetters(tmp_path))
    driven.until_idle()

    DeadLetters(tmp_path).want()
    driven.clock.pass_by(1)
    driven.step()
    driven.until_idle()

    assert seen("accepted") == ["a"]
    assert len(DeadLetters(tmp_path)) == 0


def test_numbers_are_not_used_again(tmp_path):
    letters = DeadLetters(tmp_path)
    letters.add([letter("a")])
    letters.remove(["1"])
    letters.add([letter("b")])

    assert [each.id for each in letters.all()] == ["2"]


def test_all_letters_of_a_wave_are_stored_or_none(tmp_path):
    letters = DeadLetters(tmp_path, limit=3)
    letters.add([letter("a"), letter("b")])

    with pytest.raises(DeadLettersFullError, match="there are 2 dead letters, and 3 are kept"):
        letters.add([letter("c"), letter("d")])
    assert [each.values for each in letters.all()] == [("a",), ("b",)]


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    import sqlite3

    foreign = sqlite3.connect(tmp_path / "dead-letters.db")
    foreign.execute("CREATE TABLE t (a)")
    foreign.close()

    with pytest.raises(ForeignStoreError, match="does not hold dead letters of waterspout"):
        DeadLetters(tmp_path).all()


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    import sqlite3

    letters = DeadLetters(tmp_path)
    letters.add([letter()])
    letters.close()
    newer = sqlite3.connect(tmp_path / "dead-letters.db")
    newer.execute("PRAGMA user_version=99")
    newer.close()

    with pytest.raises(NewerFormatError, match="format 99"):
        DeadLetters(tmp_path).all()


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "dead-letters.db").write_bytes(b"this is no database" * 100)

    with pytest.raises(DamagedStoreError, match=r"dead-letters\.db"):
        DeadLetters(tmp_path).all()


def test_a_long_content_is_shown_shortened():
    letters = DeadLetters(None)
    letters.add([letter("x" * 100_000)])

    (kept,) = letters.all()
    assert len(kept.shown) <= 10_003
    assert kept.values == ("x" * 100_000,)


def test_letters_of_the_version_before_are_read(tmp_path):
    """The file as it was when messages and rows had letters of different kinds."""
    import sqlite3

    columns = "component, stream, content, shown, message_id, failed_in, error, failures, "
    columns += "first_failed, last_failed, target, wanted"
    old = DeadLetters(tmp_path)
    old.add([])
    old.close()
    with sqlite3.connect(tmp_path / "dead-letters.db") as db:
        values = "'s', 'to', ?, ?, '7', 'b', 'E: x', 4, 1, 2, ?, ?"
        insert = f"INSERT INTO letters ({columns}) VALUES ({values})"
        db.execute(insert, ('["a"]', "['a']", 3, 1))
        db.execute(insert, (None, "[<odd>]", None, 0))

    wanted, odd = DeadLetters(tmp_path).all()

    assert (wanted.id, wanted.spout, wanted.task, wanted.values) == ("1", "s", 3, ("a",))
    assert (wanted.failures, wanted.first_failed, wanted.is_asked_for) == (4, 1.0, True)
    assert (odd.values, odd.shown, odd.task, odd.asked) == (None, "[<odd>]", None, None)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_failures_are_counted_on_when_the_driver_is_started_anew(tries):
    shared = SharedMemory()
    bolt = Fails("out", {"bad": 99})
    first, _ = failing(bolt, ["good", "bad"], shared=shared)
    first.until(lambda: seen("out, tried").count("bad") == tries)  # and ends there, as if killed
    second, feeder = failing(bolt, ["good", "bad"], shared=shared)
    second.until_idle()

    assert seen("out, tried").count("bad") == 4
    assert feeder.tracker.fails == ({"m1": 3 - tries} if tries < 3 else {})
    (letter,) = second.letters.all()
    assert (letter.values, letter.failures) == (("bad",), 4)


def test_failures_of_a_log_are_counted_on_when_the_driver_is_started_anew():
    shared = SharedMemory()
    seen_log("log")[0] = ["good", "bad"]
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    builder.set_bolt("bolt", Fails("out", {"bad": 99})).shuffle_grouping("log")
    for tries in (2, 4):
        driven = Driven(builder.create_topology("t"), shared=shared)
        driven.until(lambda tries=tries: seen("out, tried").count("bad") == tries)
    driven.until_idle()

    assert seen("out, tried").count("bad") == 4
    assert [letter.failures for letter in driven.letters.all()] == [4]


def test_a_failure_is_stored_before_its_message_is_sent_again():
    driven, _ = failing(Fails("out", {"bad": 99}), ["bad"])
    faults.install(FaultPlan([Fault("positions.before", "raise", nth=2)]))

    with pytest.raises(InjectedError):
        driven.until_idle()

    # The first one was stored; the second was about to be.
    assert seen("out, tried") == ["bad", "bad"]
    assert [n for n, _ in driven.store.load().failing["source"].values()] == [1]


def test_another_message_under_the_same_id_has_not_failed_before():
    shared = SharedMemory()
    for value in ("one", "other"):
        driven, _ = failing(Fails("out", {value: 2}), [value], shared=shared, max_replays=2)
        driven.until(lambda value=value: seen("out, tried").count(value) == 2)
    driven.until_idle()

    assert (seen("out"), driven.letters.all()) == (["other"], [])
    # What is done is not kept: only the one that has not come again.
    driven.loop.close()
    assert [n for n, _ in driven.store.load().failing["source"].values()] == [2]
