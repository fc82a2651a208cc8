"""What is refused of a windowed bolt, and when: as it is said, as it is built, as a run starts."""

from __future__ import annotations

import datetime as dt
import pickle

import pytest

from waterspout import Config
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.errors import TopologyError
from waterspout.testing._feeder import FeederSpout
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import Direct, Seconds, TopologyBuilder, Tuples, WindowedBolt

TICKS = "topology.tick.tuple.freq.secs"


class Windowed(WindowedBolt):
    streams = {  # noqa: RUF012
        "default": ("n",),
        "late": ("n", "ts"),
        "by_hand": Direct("n"),
        "odd": ("n", "why"),
    }

    def execute(self, window):
        pass


def built(bolt, options=None):
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout(("n", "ts")))
    declarer = builder.set_bolt("windows", bolt).shuffle_grouping("source")
    declarer.add_configurations(options or {})
    return builder.create_topology()


def started(bolt, **options):
    setup = WaveSetup(
        built(bolt),
        InProcessWaves(),
        MemoryCoordinationStore("topology"),
        DeadLetters(None),
        Config(**options),
    )
    loop = WaveLoop(setup, lambda: 0.0)
    loop.start()
    loop.close()


@pytest.mark.parametrize("count", [0, -1, 2.0, True, None])
def test_a_number_of_tuples_is_positive_and_whole(count):
    with pytest.raises(TopologyError, match="a number of tuples is a positive integer"):
        Tuples(count)


@pytest.mark.parametrize("seconds", [0, -1, 0.0004, float("inf"), float("nan"), "5", True])
def test_a_duration_is_at_least_a_millisecond(seconds):
    with pytest.raises(TopologyError, match="a duration is at least a millisecond"):
        Seconds(seconds)


@pytest.mark.parametrize("given", [5, 2.5, None, "5s"])
def test_a_bare_number_is_no_length(given):
    with pytest.raises(TopologyError, match=r"length of a window is given as Tuples\(30\), Seco"):
        Windowed().with_window(given)


def test_a_slide_needs_a_length():
    with pytest.raises(TopologyError, match="the length of a window is given as"):
        Windowed().with_window(None, Tuples(2))


def test_a_lag_is_not_a_number_of_tuples():
    with pytest.raises(TopologyError, match=r"the lag is given as Seconds\(5\) or a timedelta"):
        Windowed().with_lag(Tuples(3))


def test_a_timedelta_is_a_duration():
    minute = dt.timedelta(minutes=1)

    said = Windowed().with_window(minute, minute / 4)._window_settings

    assert (said.length, said.slide) == (Seconds(60.0), Seconds(15.0))


def test_timestamps_come_from_a_field_or_a_function_not_both():
    with pytest.raises(TopologyError, match="not both"):
        Windowed().with_timestamp_field("ts").with_timestamp_extractor(int)
    with pytest.raises(TopologyError, match="not both"):
        Windowed().with_timestamp_extractor(int).with_timestamp_field("ts")


def test_an_extractor_must_be_callable():
    with pytest.raises(TopologyError, match="a timestamp extractor is a function, not 'ts'"):
        Windowed().with_timestamp_extractor("ts")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_timestamp_field_and_a_late_stream_are_names(name):
    with pytest.raises(TopologyError, match="by its name"):
        Windowed().with_timestamp_field(name)
    with pytest.raises(TopologyError, match="non-empty string"):
        Windowed().with_late_tuple_stream(name)


def test_what_is_said_of_one_bolt_is_not_said_of_another():
    Windowed().with_window(Tuples(3)).with_timestamp_field("ts")

    assert Windowed()._window_settings.length is None
    assert Windowed().configuration == {}


def test_a_windowed_bolt_pickles_with_its_window():
    bolt = Windowed().with_window(Tuples(3), Seconds(2))

    again = pickle.loads(pickle.dumps(bolt))

    assert again._window_settings == bolt._window_settings
    assert again.configuration == {TICKS: 1.0}


@pytest.mark.parametrize(
    ("bolt", "ticks"),
    [
        (Windowed().with_window(Tuples(3)), None),
        (Windowed().with_tumbling_window(Seconds(60)), 1.0),
        (Windowed().with_window(Seconds(60), Seconds(0.25)), 0.25),
        (Windowed().with_window(Seconds(0.25), Seconds(60)), 1.0),
        (Windowed().with_window(Tuples(3), Seconds(0.5)), 0.5),
        (Windowed().with_window(Seconds(0.5), Tuples(3)), 0.5),
        (Windowed().with_window(Tuples(3)).with_timestamp_field("ts"), 1.0),
        (
            Windowed()
            .with_watermark_interval(Seconds(3))
            .with_window(Tuples(3))
            .with_timestamp_field("ts"),
            3,
        ),
    ],
)
def test_a_bolt_asks_for_ticks_as_often_as_its_window_needs_them(bolt, ticks):
    assert bolt.configuration.get(TICKS) == ticks


def test_ticks_that_the_user_has_asked_for_stay():
    class Hasty(Windowed):
        configuration = {TICKS: 0.1, "mine": 1}  # noqa: RUF012

    assert Hasty().with_tumbling_window(Seconds(9)).configuration == {TICKS: 0.1, "mine": 1}


def test_a_configuration_that_lost_the_ticks_is_refused():
    bolt = Windowed().with_tumbling_window(Seconds(5))
    bolt.configuration = {"mine": 1}

    with pytest.raises(TopologyError, match="'windows' needs ticks"):
        built(bolt)


def test_a_bolt_without_a_window_is_refused():
    with pytest.raises(TopologyError, match="'windows' has no window: call with_window or"):
        built(Windowed())


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("with_lag", Seconds(1)),
        ("with_watermark_interval", Seconds(1)),
        ("with_late_tuple_stream", "late"),
    ],
)
def test_what_only_concerns_event_time_needs_timestamps(call, argument):
    bolt = getattr(Windowed().with_window(Tuples(3)), call)(argument)

    with pytest.raises(TopologyError, match=f"{call} means nothing without timestamps"):
        built(bolt)


def dated(field="ts"):
    return Windowed().with_window(Tuples(3)).with_timestamp_field(field)


def test_a_timestamp_field_that_no_input_has_is_refused():
    with pytest.raises(TopologyError, match="no timestamp field 'tss' in stream 'default' of 'so"):
        built(dated("tss"))


def test_a_late_stream_that_is_not_declared_is_refused():
    with pytest.raises(TopologyError, match="late tuples, 'latte', is not declared; it declares"):
        built(dated().with_late_tuple_stream("latte"))


def test_a_late_stream_must_not_be_direct():
    with pytest.raises(TopologyError, match="must not be direct"):
        built(dated().with_late_tuple_stream("by_hand"))


def test_a_late_stream_has_fields_that_the_inputs_have():
    with pytest.raises(TopologyError, match="no late field 'why' in stream 'default' of 'source'"):
        built(dated().with_late_tuple_stream("odd"))


def test_a_timeout_of_the_bolt_itself_is_checked_when_it_is_built():
    with pytest.raises(TopologyError, match=r"are 12 s together, .* times out after 10 s"):
        built(Windowed().with_window(Seconds(8), Seconds(4)), {"topology.message.timeout.secs": 10})


def test_a_window_that_outlasts_the_timeout_is_refused_before_anything_runs():
    with pytest.raises(TopologyError, match="raise message_timeout_secs"):
        started(Windowed().with_tumbling_window(Seconds(16)))


@pytest.mark.parametrize(
    "options",
    [
        {"message_timeout_secs": 32},
        {"enable_message_timeouts": False},
        {"ackers": 0},
    ],
)
def test_a_window_within_the_timeout_or_without_one_is_fine(options):
    started(Windowed().with_tumbling_window(Seconds(16)), **options)


def test_a_window_that_can_never_be_full_is_refused():
    bolt = Windowed().with_tumbling_window(Tuples(50))

    with pytest.raises(TopologyError, match="holds 50 tuples, but a spout stops at 49 messages"):
        started(bolt, max_spout_pending=49)
    started(bolt, max_spout_pending=50)
