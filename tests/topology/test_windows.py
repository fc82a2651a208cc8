"""Windowed bolts in a topology: exact windows, an ack for each message, failures, late tuples."""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout import Config, FailedException
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.events import ErrorReported, WaveFinished
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.errors import BoltCrash
from waterspout.testing._feeder import FeederSpout
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import BasicBolt, Direct, Seconds, TopologyBuilder, Tuples, WindowedBolt

START = 1_000_000.0  # a multiple of every slide below


class World:
    """What bolts see and leave; they are pickled, so it is not theirs."""

    now = START
    windows: list = []  # noqa: RUF012
    emitted: list = []  # noqa: RUF012
    failing: set = set()  # noqa: RUF012


def world_time():
    return World.now


@pytest.fixture(autouse=True)
def _new_world():
    World.now, World.windows, World.emitted, World.failing = START, [], [], set()


class Collect(WindowedBolt):
    streams = {"default": ("ns",), "late": ("n", "ts")}  # noqa: RUF012
    clock = staticmethod(world_time)

    def execute(self, window):
        ns = [t["n"] for t in window.get()]
        World.windows.append(ns)
        self.collector.emit([ns])
        if World.failing & set(ns):
            raise ValueError(f"cannot do {ns}")


class Remember(BasicBolt):
    def execute(self, given, collector):
        World.emitted.append(given[0])
        if isinstance(given[0], list) and World.failing & {-n for n in given[0]}:
            raise FailedException("not that one")


class Driven:
    """A topology of feeders, a windowed bolt and a sink, driven by hand."""

    def __init__(self, bolt, engine, *, spouts=1, tasks=1, **options):
        keep_alive, collapse = engine
        self.feeders = [FeederSpout(("n", "ts"), replay=True) for _ in range(spouts)]
        self.errors, self.progress = [], []
        builder = TopologyBuilder()
        windows = builder.set_bolt("windows", bolt, tasks)
        for number, feeder in enumerate(self.feeders):
            builder.set_spout(f"s{number}", feeder)
            windows.fields_grouping(f"s{number}", "n")
        builder.set_bolt("sink", Remember()).global_grouping("windows")
        builder.set_bolt("late", Remember()).global_grouping("windows", stream="late")
        self.letters = DeadLetters(None)
        setup = WaveSetup(
            builder.create_topology("windows"),
            InProcessWaves(2, keep_alive=keep_alive),
            MemoryCoordinationStore("windows"),
            self.letters,
            Config(wave_collapse_tuples=collapse, **options),
        )
        self.loop = WaveLoop(setup, world_time, self._hear)
        self.loop.start()

    def _hear(self, event):
        match event:
            case WaveFinished(progress=progress):
                self.progress.append(progress)
            case ErrorReported(component=component, error=error, count=count):
                self.errors.append((component, error, count))

    def feed(self, *messages, spout=0):
        """Feed numbers, or (number, timestamp); a number is its message's id. Run the waves."""
        for message in messages:
            n, ts = message if isinstance(message, tuple) else (message, None)
            self.feeders[spout].feed([n, ts], msg_id=n)
        return self.run()

    def wait(self, seconds):
        """Let time pass, and with it the ticks that are due."""
        World.now += seconds
        return self.run()

    def run(self):
        for _ in range(8):
            self.loop.step()
        return self

    @property
    def acked(self):
        return self.feeders[0].tracker.acks

    @property
    def failed(self):
        return self.feeders[0].tracker.fails


@pytest.fixture(
    params=[(True, 2000), (False, 2000), (True, 0), (False, 0)],
    ids=["alive-collapsed", "pickled-collapsed", "alive-spread", "pickled-spread"],
)
def engine(request):
    """Whether bolts stay alive between waves, and up to which size a wave is collapsed."""
    return request.param


once = dict.fromkeys


def test_tumbling_windows_of_a_count_hold_each_message_once_and_ack_it(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(3)), engine)

    driven.feed(*range(5)).feed(5, 6)

    assert World.emitted == [[0, 1, 2], [3, 4, 5]]
    assert driven.acked == once(range(6), 1)


def test_a_sliding_window_of_a_count_acks_what_no_later_window_holds(engine):
    driven = Driven(Collect().with_window(Tuples(3), Tuples(2)), engine)

    driven.feed(0, 1).feed(2, 3, 4)

    assert World.emitted == [[0, 1], [1, 2, 3]]
    assert driven.acked == once([0, 1, 2], 1)


def test_without_a_slide_every_tuple_gives_a_window(engine):
    driven = Driven(Collect().with_window(Tuples(2)), engine)

    driven.feed(0, 1).feed(2)

    assert World.emitted == [[0], [0, 1], [1, 2]]
    assert driven.acked == once([0, 1], 1)


def test_a_tumbling_window_by_time_is_executed_by_a_tick_when_nothing_comes(engine):
    driven = Driven(Collect().with_tumbling_window(Seconds(5)), engine)

    World.now += 1
    driven.feed(0, 1).wait(1).feed(2).wait(2)
    assert World.emitted == []
    driven.wait(1.5)

    assert World.emitted == [[0, 1, 2]]
    assert driven.acked == once([0, 1, 2], 1)


def test_tuples_after_the_end_of_a_window_are_in_the_next_however_late_the_tick(engine):
    driven = Driven(Collect().with_tumbling_window(Seconds(5)), engine)

    World.now += 1
    driven.feed(0)
    World.now += 4.5
    driven.feed(1, 2).wait(5)

    assert World.emitted == [[0], [1, 2]]


def test_a_tuple_that_comes_just_when_its_window_was_executed_is_in_the_next(engine):
    driven = Driven(Collect().with_tumbling_window(Seconds(5)), engine)

    World.now += 1
    driven.feed(0).wait(4).feed(1).wait(5).wait(5)

    assert World.emitted == [[0], [1]]
    assert driven.acked == once([0, 1], 1)


def test_a_sliding_window_by_time_overlaps_the_one_before(engine):
    driven = Driven(Collect().with_window(Seconds(4), Seconds(2)), engine)

    for n in range(4):
        World.now += 1
        driven.feed(n)
    driven.wait(2).wait(2)

    assert World.emitted == [[0, 1], [0, 1, 2, 3], [2, 3]]
    assert driven.acked == once(range(4), 1)


def test_a_clock_that_jumps_back_stands_still(engine):
    driven = Driven(Collect().with_tumbling_window(Seconds(5)), engine)
    World.now += 6
    driven.feed(0)

    World.now -= 3
    driven.feed(1)
    World.now += 3
    driven.wait(5)

    assert World.emitted == [[0, 1]]


def test_the_last_so_many_are_given_at_every_slide_even_if_nothing_is_new(engine):
    driven = Driven(Collect().with_window(Tuples(2), Seconds(5)), engine)

    World.now += 1
    driven.feed(0, 1, 2).wait(5).wait(5)

    assert World.emitted == [[1, 2], [1, 2]]
    assert driven.acked == {0: 1}


def test_a_window_by_time_that_slides_by_count_expires_while_nothing_comes(engine):
    driven = Driven(Collect().with_window(Seconds(3), Tuples(2)), engine)

    driven.feed(0, 1, 2).wait(3).wait(3)

    assert World.emitted == [[0, 1]]
    assert driven.acked == once([0, 1, 2], 1)


class Bounds(Collect):
    def execute(self, window):
        zero = round(START * 1000)
        start = window.start_timestamp
        World.windows.append(
            (
                None if start is None else start - zero,
                window.end_timestamp - zero,
                [t["n"] for t in window],
                [t["n"] for t in window.new],
                [t["n"] for t in window.expired],
            )
        )


def test_a_window_knows_its_bounds_and_what_is_new_and_expired(engine):
    driven = Driven(Bounds().with_window(Seconds(4), Seconds(2)), engine)

    World.now += 1
    driven.feed(0).wait(2).feed(1).wait(3)

    assert World.windows == [
        (-2000, 2000, [0], [0], []),
        (0, 4000, [0, 1], [1], []),
        (2000, 6000, [1], [], [0]),
    ]


def test_a_window_as_large_as_the_messages_that_may_be_pending_still_fills(engine):
    driven = Driven(Collect().with_window(Tuples(4), Tuples(2)), engine, max_spout_pending=4)

    driven.feed(*range(10))

    assert World.emitted == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]
    assert driven.acked == once(range(8), 1)


def test_every_task_has_windows_of_its_own(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(2)), engine, tasks=2)

    driven.feed(*range(20))

    assert all(len(window) == 2 for window in World.emitted)
    assert len(driven.acked) == 2 * len(World.emitted) >= 18


def test_without_ackers_windows_are_the_same(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(2)), engine, ackers=0)

    driven.feed(0, 1).feed(2).feed(3)

    assert World.emitted == [[0, 1], [2, 3]]


def test_what_has_expired_is_not_kept(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(10)), engine)
    sizes = []

    for start in range(0, 600, 10):
        driven.feed(*range(start, start + 10))
        sizes.append(driven.progress[-1].state_bytes)

    assert max(sizes[5:]) <= sizes[4] + 100
    assert len(driven.acked) == 600


def dated(bolt):
    return bolt.with_timestamp_field("ts")


def test_by_event_time_the_order_of_arrival_does_not_matter(engine):
    bolt = dated(Collect().with_tumbling_window(Seconds(10))).with_lag(Seconds(5))
    driven = Driven(bolt, engine)

    driven.feed((3, 3000), (1, 1000), (12, 12_000), (9, 9000), (26, 26_000)).wait(1)

    assert World.emitted == [[1, 3, 9], [12]]
    assert driven.acked == once([1, 3, 9, 12], 1)


def test_a_tuple_behind_the_watermark_is_dropped_with_a_report_and_acked(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine)

    driven.feed((1, 1000), (12, 12_000)).wait(1).feed((8, 8000), (9, 9000))

    assert World.emitted == [[1]]
    assert driven.acked == once([1, 8, 9], 1)
    ((component, error, count),) = driven.errors
    assert (component, count) == ("windows", 2)
    assert error.startswith("RuntimeWarning: a late tuple was dropped: Tuple(n=8, ts=8000 from s0")


def test_a_late_tuple_goes_to_the_late_stream_and_its_message_is_acked_after_that(engine):
    bolt = dated(Collect().with_tumbling_window(Seconds(10))).with_late_tuple_stream("late")
    driven = Driven(bolt, engine)

    driven.feed((1, 1000), (12, 12_000)).wait(1).feed((8, 8000))

    assert World.emitted == [[1], 8]
    assert driven.acked == once([1, 8], 1)
    assert driven.errors == []


def test_a_tuple_at_the_watermark_is_late_only_if_its_window_is_over(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine)

    driven.feed((1, 15_000)).wait(1).feed((2, 15_000), (3, 20_000)).wait(1)
    driven.feed((4, 20_000), (5, 31_000)).wait(1)

    assert World.emitted == [[1, 2, 3]]
    assert driven.acked == once([1, 2, 3, 4], 1)
    assert len(driven.errors) == 1


def test_event_time_waits_for_the_slowest_stream(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine, spouts=2)

    driven.feed((1, 1000), (30, 30_000)).wait(1)
    assert World.emitted == []
    driven.feed((2, 2000), (11, 11_000), spout=1).wait(1)

    assert World.emitted == [[1, 2]]


def test_the_watermark_is_looked_at_at_its_interval(engine):
    bolt = dated(Collect().with_tumbling_window(Seconds(10)))
    driven = Driven(bolt.with_watermark_interval(Seconds(5)), engine)

    driven.feed((1, 1000), (12, 12_000)).wait(4)
    assert World.emitted == []
    driven.wait(1)

    assert World.emitted == [[1]]


def test_counted_windows_by_event_time_are_in_the_order_of_the_timestamps(engine):
    bolt = dated(Collect().with_tumbling_window(Tuples(2))).with_lag(Seconds(1))
    driven = Driven(bolt, engine)

    driven.feed((3, 3000), (1, 1000), (2, 2000), (4, 4000), (9, 9000)).wait(1)

    assert World.emitted == [[1, 2], [3, 4]]
    assert driven.acked == once([1, 2, 3, 4], 1)


def noon_and(given):
    return dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(seconds=given["ts"])


def test_a_function_may_find_the_timestamp_and_return_a_datetime(engine):
    bolt = Collect().with_tumbling_window(Seconds(10)).with_timestamp_extractor(noon_and)
    driven = Driven(bolt, engine)

    driven.feed((2, 2), (1, 1), (12, 12)).wait(1)

    assert World.emitted == [[1, 2]]


def test_a_timestamp_that_is_no_time_fails_its_own_message_only(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine, max_replays=0)

    driven.feed((1, 1000), (2, "noon"), (12, 12_000)).wait(1)

    assert World.emitted == [[1]]
    assert [letter.message_id for letter in driven.letters.all()] == ["2"]
    assert "a timestamp is an integer" in driven.errors[0][1]


def test_a_window_that_raises_fails_all_its_messages_and_is_executed_when_they_are_back(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(3)), engine)
    World.failing = {1}
    for n in (0, 1, 2):
        driven.feeders[0].feed([n, None], msg_id=n)
    driven.loop.step()
    World.failing = set()

    driven.run()

    assert driven.failed == once([0, 1, 2], 1)
    assert driven.acked == once([0, 1, 2], 1)
    assert [sorted(window) for window in World.windows] == [[0, 1, 2], [0, 1, 2]]
    assert driven.errors == [("windows", "ValueError: cannot do [0, 1, 2]", 1)]


def test_a_tuple_that_only_set_off_a_window_does_not_fail_with_it(engine):
    driven = Driven(Collect().with_tumbling_window(Seconds(5)), engine, max_replays=0)
    World.now += 1
    driven.feed(0, 1)
    World.failing = {1}

    World.now += 4.5
    driven.feed(7).wait(5)

    assert World.windows == [[0, 1], [7]]
    assert driven.failed == {}
    assert sorted(letter.message_id for letter in driven.letters.all()) == ["0", "1"]
    assert driven.acked == once([0, 1, 7], 1)


def test_a_window_that_always_raises_ends_in_the_dead_letters(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(2)), engine, max_replays=2)
    World.failing = {1}

    driven.feed(0, 1).feed(2, 3)

    assert [sorted(window) for window in World.windows] == [[0, 1]] * 3 + [[2, 3]]
    first, second = driven.letters.all()
    assert {first.message_id, second.message_id} == {"0", "1"}
    assert {first.failed_in, second.failed_in} == {"windows"}
    assert first.error == second.error
    assert first.error.startswith("ValueError: cannot do [")
    assert driven.acked == once(range(4), 1)


def test_a_failure_further_down_fails_every_message_of_the_window(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(2)), engine, max_replays=1)
    World.failing = {-1}

    driven.feed(0, 1, 2, 3)

    assert driven.failed == once([0, 1], 1)
    assert driven.acked == once(range(4), 1)
    assert sorted(letter.message_id for letter in driven.letters.all()) == ["0", "1"]


def test_a_failed_sliding_window_fails_what_it_holds_not_what_is_acked(engine):
    driven = Driven(Collect().with_window(Tuples(2)), engine, max_replays=0)
    World.failing = {2}

    driven.feed(0, 1, 2, 3, 4)

    assert World.windows == [[0], [0, 1], [1, 2], [3], [3, 4]]
    assert sorted(letter.message_id for letter in driven.letters.all()) == ["1", "2"]
    assert driven.acked == once([0, 1, 2, 3], 1)


def test_by_event_time_a_failed_window_is_executed_again_with_all_its_messages(engine):
    driven = Driven(dated(Collect().with_window(Seconds(20), Seconds(10))), engine)
    driven.feed((1, 1000), (12, 12_000), (25, 25_000), (41, 41_000))
    World.failing = {12}
    World.now += 1
    driven.loop.step()
    World.failing = set()

    driven.wait(1).wait(1)

    assert World.windows == [[1], [1, 12], [1, 12], [12, 25], [25]]
    assert driven.failed == once([1, 12], 1)
    assert driven.acked == once([1, 12, 25], 1)
    assert [error for _, error, _ in driven.errors] == ["ValueError: cannot do [1, 12]"]


def test_by_event_time_a_window_that_always_fails_does_not_hold_up_the_others(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine, max_replays=2)
    World.failing = {2}

    driven.feed((1, 1000), (2, 2000), (12, 12_000), (25, 25_000))
    for _ in range(4):
        driven.wait(1)

    assert World.windows == [[1, 2]] * 3 + [[12]]
    assert sorted(letter.message_id for letter in driven.letters.all()) == ["1", "2"]
    assert driven.acked == once([1, 2, 12], 1)


def test_event_time_goes_on_when_the_messages_of_a_failed_window_do_not_come_again(engine):
    driven = Driven(dated(Collect().with_tumbling_window(Seconds(10))), engine)
    driven.feeders[0]._replay = False
    World.failing = {2}

    driven.feed((2, 2000), (12, 12_000), (25, 25_000)).wait(1)
    assert World.windows == [[2]]
    driven.wait(10)

    assert World.windows == [[2], [12]]


class Unsteady(WindowedBolt):
    """Fails windows as `World.failing` says: how many of the next ones."""

    streams = {"default": ("ns",), "late": ("n", "ts")}  # noqa: RUF012
    clock = staticmethod(world_time)

    def execute(self, window):
        if World.failing:
            World.failing -= 1
            raise FailedException("not now")
        World.windows.append([t["n"] for t in window])


counted = st.integers(1, 4).map(Tuples)
timed = st.integers(1, 4).map(Seconds)
scripts = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 1, 2, 5])),
        st.tuples(st.just("fail"), st.integers(1, 3)),
    ),
    max_size=25,
)


@given(counted | timed, counted | timed, scripts, st.booleans(), st.booleans())
def test_whichever_windows_fail_every_message_is_in_one_that_did_not_and_acked_once(
    length, slide, script, by_event_time, keep_alive
):
    World.now, World.windows, World.emitted, World.failing = START, [], [], 0
    bolt = Unsteady().with_window(length, slide)
    if by_event_time:
        bolt.with_timestamp_field("ts").with_late_tuple_stream("late")
    driven = Driven(bolt, (keep_alive, 2000), max_replays=1000)
    fed = 0
    for action, much in script:
        if action == "feed":
            messages = [(n, 700 * n) for n in range(fed, fed + much)]
            fed += much
            driven.feed(*messages)
        elif action == "wait":
            driven.wait(much)
        else:
            World.failing = much
    World.failing = 0
    driven.feed((10_000, 700 * fed)).wait(1).wait(1)
    for _ in range(12):
        driven.wait(1)

    seen = {n for window in World.windows for n in window}
    acked = driven.acked
    assert set(acked.values()) <= {1}
    assert World.emitted == []  # in order, so none was late: not even when it came again
    if slide == Tuples(1):
        assert set(range(fed)) <= seen
    if type(length) is not type(slide) or astuple(slide) > astuple(length):
        return  # such windows need not hold every tuple
    assert set(acked) <= seen
    if isinstance(slide, Seconds):
        last = 700 * fed // slide.millis * slide.millis
        over = {n for n in range(fed) if not by_event_time or 700 * n <= last}
        assert over <= seen
        assert set(acked) >= {n for n in over if 700 * n <= last + slide.millis - length.millis}


def test_with_the_policy_to_crash_a_window_that_raises_ends_the_run(engine):
    driven = Driven(Collect().with_tumbling_window(Tuples(1)), engine, bolt_errors="crash")
    World.failing = {0}

    with pytest.raises(BoltCrash, match="cannot do"):
        driven.feed(0)


class Acks(Collect):
    def execute(self, window):
        self.collector.ack(window.get()[0])


def test_acking_a_tuple_of_a_window_oneself_is_an_error_that_says_so(engine):
    driven = Driven(Acks().with_tumbling_window(Tuples(1)), engine, max_replays=0)

    driven.feed(0)

    assert driven.errors == [
        (
            "windows",
            "AckError: a tuple is acked by itself when no later window can hold it",
            1,
        )
    ]


class CountsLate(Collect):
    def execute(self, window):
        self.collector.emit([self.late_count])


def test_a_bolt_can_tell_how_many_tuples_of_its_task_were_late(engine):
    driven = Driven(dated(CountsLate().with_tumbling_window(Seconds(10))), engine)

    driven.feed((1, 1000), (12, 12_000)).wait(1).feed((2, 2000), (3, 3000), (21, 21_000)).wait(1)

    assert World.emitted == [0, 2]


class Own(Collect):
    transient = ("connection",)

    def __init__(self, start):
        self.total = start

    def prepare(self, conf, context, collector):
        self.connection = lambda n: n + 1
        self.collector = collector

    def execute(self, window):
        self.total += len(window)
        self.collector.emit([self.connection(self.total)])


def test_a_bolt_with_its_own_init_prepare_and_transient_attributes_works(engine):
    driven = Driven(Own(100).with_tumbling_window(Tuples(2)), engine)

    driven.feed(0, 1).feed(2, 3)

    assert World.emitted == [103, 105]
    assert driven.acked == once(range(4), 1)


class Adds(Collect):
    """Keeps a sum up to date by what has changed, by tuple."""

    def prepare(self, conf, context, collector):
        self.collector, self.held = collector, {}

    def execute(self, window):
        for one in window.expired:
            del self.held[one]
        self.held.update((one, one["n"]) for one in window.new)
        self.collector.emit([sum(self.held.values())])


def test_a_bolt_may_keep_tuples_and_go_by_what_has_changed(engine):
    driven = Driven(Adds().with_window(Tuples(3), Tuples(2)), engine)

    driven.feed(0, 1).feed(2).feed(3, 4, 5)

    assert World.emitted == [0 + 1, 1 + 2 + 3, 3 + 4 + 5]


class Points(Collect):
    streams = {"default": Direct("size"), "late": ("n", "ts")}  # noqa: RUF012

    def prepare(self, conf, context, collector):
        self.collector = collector
        (self.target,) = context.component_tasks("sink")

    def execute(self, window):
        self.collector.emit_direct(self.target, [len(window)])


def test_direct_emits_are_anchored_to_the_window_too(engine):
    feeder = FeederSpout(("n", "ts"))
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    bolt = Points().with_tumbling_window(Tuples(2))
    builder.set_bolt("windows", bolt).shuffle_grouping("s")
    builder.set_bolt("sink", Refuse()).direct_grouping("windows")
    keep_alive, collapse = engine
    waves = InProcessWaves(2, keep_alive=keep_alive)
    config = Config(wave_collapse_tuples=collapse)
    store = MemoryCoordinationStore("t")
    setup = WaveSetup(builder.create_topology("t"), waves, store, DeadLetters(None), config)
    loop = WaveLoop(setup, world_time)
    loop.start()
    for n in range(2):
        feeder.feed([n, None], msg_id=n)

    for _ in range(8):
        loop.step()

    assert feeder.tracker.fails == {0: 1, 1: 1}


class Refuse(BasicBolt):
    def execute(self, given, collector):
        raise FailedException("never")


def test_the_window_may_be_set_after_the_bolt(engine):
    bolt = Collect()
    feeder = FeederSpout(("n", "ts"))
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("windows", bolt).shuffle_grouping("s")
    bolt.with_tumbling_window(Seconds(5))

    spec = builder.create_topology().components["windows"]

    assert spec.configuration == {"topology.tick.tuple.freq.secs": 1.0}
