"""Row-level isolation: bad rows become letters, the rest goes on, in all forms of an operation."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident.support import capture
from waterspout import Config, FailedException
from waterspout.errors import DeadLettersFullError, TooManyBadRowsError, TopologyError
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state import MemoryMapState
from waterspout.testing import LocalRun
from waterspout.testing._spouts import MemoryLog
from waterspout.trident import (
    Count,
    Filter,
    FlatMapFunction,
    Function,
    MapFunction,
    Split,
    TridentTopology,
    arrow_function,
    expr,
    pandas_function,
)
from waterspout.trident.plan.nodes import Isolated

CONFIG = Config(retry_backoff_millis=0, cancel_wait_secs=0.0)
DEAD = "dead_letter"


def rows_of(*texts, size=100):
    return FixedBatchSpout("text string", size, [(text,) for text in texts])


def run(build, spout, config=CONFIG, **more):
    """Build a stream over a spout, run it, and return what came out and the ended run."""
    topology = TridentTopology("isolated")
    kept = capture(build(topology.new_stream("in", spout)))
    local = LocalRun(topology, config, **more)
    local.finish(max_steps=5000)
    return kept, local


def facts(local):
    return [(letter.row, letter.failed_in, letter.position) for letter in local.letters]


class Parse(Function):
    def execute(self, tuple, collector):
        collector.emit((int(tuple[0]),))


def parse(text: str) -> int:
    return int(text)


@arrow_function
def arrow_parse(batch):
    return pc.cast(batch.column(0), "int64")


@pandas_function
def pandas_parse(frame):
    return frame["text"].astype("int64")


FORMS = [Parse(), parse, arrow_parse, pandas_parse]
IDS = ["function", "plain", "arrow", "pandas"]


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_bad_rows_become_letters_and_the_rest_goes_on(form):
    spout = rows_of("1", "x", "3", "y", "5")

    kept, local = run(lambda s: s.each("text", form, "n bigint", on_error=DEAD), spout)

    assert kept.rows == [("1", 1), ("3", 3), ("5", 5)]
    name = {"function": "Parse"}.get(IDS[FORMS.index(form)], getattr(form, "__name__", None))
    node = local.letters[0].failed_in
    assert facts(local) == [({"text": "x"}, node, "1"), ({"text": "y"}, node, "3")]
    assert name is None or node == f"each({name})"


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_without_it_the_batch_fails(form):
    with pytest.raises(Exception, match=r"x|parse"):
        run(lambda s: s.each("text", form, "n bigint"), rows_of("1", "x"))


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.sampled_from(["1", "-7", "x", "", "30"]), max_size=12),
    form=st.sampled_from(FORMS),
    size=st.integers(1, 5),
)
def test_every_row_is_in_the_stream_or_in_the_letters(texts, form, size):
    kept, local = run(
        lambda s: s.each("text", form, "n bigint", on_error=DEAD), rows_of(*texts, size=size)
    )

    bad = [(text, str(i)) for i, text in enumerate(texts) if not text.lstrip("-").isdigit()]
    assert [(letter.row["text"], letter.position) for letter in local.letters] == bad
    good = [(text, int(text)) for text in texts if text.lstrip("-").isdigit()]
    assert kept.rows == sorted(good, key=repr)


class Picky(Filter):
    def is_keep(self, tuple):
        return int(tuple[0]) > 1


@arrow_function
def arrow_picky(batch):
    return pc.greater(pc.cast(batch.column(0), "int64"), 1)


@pytest.mark.parametrize("form", [Picky(), lambda text: int(text) > 1, arrow_picky])
def test_filters_isolate(form):
    kept, local = run(lambda s: s.filter("text", form, on_error=DEAD), rows_of("1", "x", "3"))

    assert kept.rows == [("3",)]
    assert [letter.row for letter in local.letters] == [{"text": "x"}]


def test_peeks_isolate():
    seen = []

    def look(text):
        seen.append(int(text))

    kept, local = run(lambda s: s.peek(look, on_error=DEAD), rows_of("1", "x", "3"))

    assert kept.rows == [("1",), ("3",)]
    assert [letter.row for letter in local.letters] == [{"text": "x"}]


class Twice(MapFunction):
    def execute(self, tuple):
        return (2 * int(tuple[0]),)


@pytest.mark.parametrize("form", [Twice(), lambda text: 2 * int(text)])
def test_maps_isolate_and_letters_have_the_position_of_the_row(form):
    def build(stream):
        doubled = stream.map(form, "n bigint", on_error=DEAD)
        return doubled.each("n", lambda n: 12 // (n - 6), "q bigint", on_error=DEAD)

    kept, local = run(build, rows_of("1", "x", "3", "4"))

    assert kept.rows == [(2, -3), (8, 6)]
    assert facts(local) == [
        ({"text": "x"}, local.letters[0].failed_in, "1"),
        ({"n": 6}, local.letters[1].failed_in, "2"),
    ]


class Numbers(FlatMapFunction):
    def execute(self, tuple):
        for part in tuple[0].split():
            yield (int(part) if part != "wide" else 2**70,)


@pytest.mark.parametrize("bad", ["x", "wide"])
def test_a_row_whose_last_tuple_is_bad_gives_none(bad):
    spout = rows_of("1 2", f"3 4 {bad}", "", "5")

    kept, local = run(lambda s: s.flat_map(Numbers(), "n bigint", on_error=DEAD), spout)

    assert kept.rows == [(1,), (2,), (5,)]
    assert facts(local) == [({"text": f"3 4 {bad}"}, "flat_map(Numbers)", "1")]


class Emits(Function):
    def execute(self, tuple, collector):
        for part in tuple[0].split():
            collector.emit((part,) if part != "odd" else ("a", "b"))
            if part == "x":
                raise ValueError(part)


@pytest.mark.parametrize("bad", ["x", "odd"])
def test_what_a_bad_row_has_emitted_is_taken_back(bad):
    spout = rows_of("a b", f"c {bad}", "d")

    kept, local = run(lambda s: s.each("text", Emits(), "word string", on_error=DEAD), spout)

    assert kept.rows == [("a b", "a"), ("a b", "b"), ("d", "d")]
    assert [letter.row for letter in local.letters] == [{"text": f"c {bad}"}]


def test_a_value_that_does_not_fit_its_type_is_a_bad_row():
    kept, local = run(
        lambda s: s.each("text", lambda t: t if t == "x" else 1, "n bigint", on_error=DEAD),
        rows_of("a", "x", "b"),
    )

    assert kept.rows == [("a", 1), ("b", 1)]
    assert "which is declared as int64" in local.letters[0].error


def test_a_letter_says_what_failed_where_and_how():
    _, local = run(lambda s: s.each("text", parse, "n bigint", on_error=DEAD), rows_of("1", "x"))

    (letter,) = local.letters
    assert (letter.id, letter.failures) == ("1:0:0", 1)
    assert letter.error == "ValueError: invalid literal for int() with base 10: 'x'"
    assert "in parse" in letter.trace
    assert letter.first_failed == letter.last_failed


def test_a_failed_exception_still_replays_the_batch():
    calls = []

    def moody(text):
        calls.append(text)
        if len(calls) < 3:
            raise FailedException("later")
        return int(text)

    kept, local = run(lambda s: s.each("text", moody, "n bigint", on_error=DEAD), rows_of("1", "x"))

    assert [letter.row for letter in local.letters] == [{"text": "x"}]
    assert kept.rows == [("1", 1)]


def test_two_operations_of_a_chain_isolate_each_with_its_own_input():
    def build(stream):
        numbers = stream.each("text", parse, "n bigint", on_error=DEAD)
        kept = numbers.filter("n", lambda n: n != 7).project("n")
        return kept.each("n", lambda n: 10 // n, "q bigint", on_error=DEAD).name("divide")

    kept, local = run(build, rows_of("1", "x", "0", "7", "5"))

    assert kept.rows == [(1, 10), (5, 2)]
    assert facts(local) == [({"text": "x"}, "each(parse)", "1"), ({"n": 0}, "divide", "2")]
    isolated = [node for node in local.plan.nodes if isinstance(node, Isolated)]
    assert len(isolated) == 1


def test_an_operation_of_a_chain_that_does_not_isolate_fails_the_batch():
    def build(stream):
        numbers = stream.each("text", parse, "n bigint", on_error=DEAD)
        return numbers.each("n", lambda n: 1 // n, "q bigint", on_error="fail")

    with pytest.raises(ZeroDivisionError):
        run(build, rows_of("1", "x", "0"))


def test_two_operations_of_one_name_have_letters_of_their_own():
    def build(stream):
        numbers = stream.each("text", parse, "n bigint", on_error=DEAD)
        text = numbers.map(lambda text, n: "x" if n == 2 else text, "text string")
        return text.each("text", parse, "m bigint", on_error=DEAD)

    kept, local = run(build, rows_of("1", "x", "2"))

    assert [letter.failed_in for letter in local.letters] == ["each(parse)", "each(parse) #2"]
    assert kept.rows == [("1", 1)]


def test_positions_survive_shuffles_merges_and_operations_that_do_not_isolate():
    topology = TridentTopology("merged")
    left = topology.new_stream("left", rows_of("1", "x"))
    right = topology.new_stream("right", rows_of("y", "2"))
    shouted = left.map(lambda text: text.upper(), "shouted string").shuffle()
    both = topology.merge(shouted, right.each("text", lambda t: t, "same string").project("same"))
    kept = capture(both.each("shouted", parse, "n bigint", on_error=DEAD))
    local = LocalRun(topology, CONFIG)
    local.finish()

    assert kept.rows == [("1", 1), ("2", 2)]
    assert facts(local) == [
        ({"shouted": "X"}, "each(parse)", "1"), ({"shouted": "y"}, "each(parse)", "0"),
    ]  # fmt: skip


def test_behind_an_aggregation_there_is_no_position():
    def build(stream):
        counted = stream.group_by("text").aggregate(Count(), "n")
        return counted.each("text", parse, "number bigint", on_error=DEAD)

    kept, local = run(build, rows_of("1", "x", "1"))

    assert kept.rows == [("1", 2, 1)]
    assert facts(local) == [({"text": "x", "n": 1}, "each(parse)", None)]


def test_a_field_of_the_users_own_called_like_the_hidden_one_stays():
    spout = FixedBatchSpout("_position string", 10, [("1",), ("x",)])

    kept, local = run(lambda s: s.each("_position", parse, "n bigint", on_error=DEAD), spout)

    assert kept.rows == [("1", 1)]
    assert facts(local) == [({"_position": "x"}, "each(parse)", None)]


def test_other_readers_of_the_stream_see_nothing_of_it():
    topology = TridentTopology("two-readers")
    stream = topology.new_stream("in", rows_of("1", "x"))
    every = capture(stream)
    whole = capture(stream.map(lambda *values: len(values), "width bigint"))
    good = capture(stream.each("text", parse, "n bigint", on_error=DEAD))
    local = LocalRun(topology, CONFIG)
    local.finish()

    assert every.rows == [("1",), ("x",)]
    assert whole.rows == [(1,), (1,)]
    assert good.rows == [("1", 1)]


def test_a_stream_behind_an_update_isolates_too():
    topology = TridentTopology("behind")
    words = topology.new_stream("in", rows_of("1", "x", "1", size=2))
    counts = words.group_by("text").persistent_aggregate(MemoryMapState(), Count(), "n")
    numbers = counts.new_values_stream().each("text", parse, "number bigint", on_error=DEAD)
    kept = capture(numbers)
    local = LocalRun(topology, CONFIG)
    local.finish()

    assert kept.rows == [("1", 1, 1), ("1", 2, 1)]
    assert facts(local) == [({"text": "x", "n": 1}, "each(parse)", None)]
    local.replay_letters(*local.letters, text="5")
    local.finish()
    assert kept.rows == [("1", 1, 1), ("1", 2, 1), ("5", 1, 5)]
    assert local.letters == []


def test_the_configuration_gives_the_default():
    config = CONFIG.replace(on_error=DEAD)

    kept, local = run(lambda s: s.each("text", parse, "n bigint"), rows_of("1", "x"), config)

    assert kept.rows == [("1", 1)]
    assert len(local.letters) == 1


def test_by_default_what_runs_in_the_jvm_stays_there():
    topology = TridentTopology("native")
    words = topology.new_stream("in", rows_of("a b")).each("text", Split(), "word")
    capture(words.filter(expr("word <> 'a'")))

    local = LocalRun(topology, CONFIG.replace(on_error=DEAD))

    assert not [node for node in local.plan.nodes if isinstance(node, Isolated)]


def test_an_operation_may_be_stricter_than_the_configuration():
    config = CONFIG.replace(on_error=DEAD)

    with pytest.raises(ValueError, match="invalid literal"):
        run(lambda s: s.each("text", parse, "n bigint", on_error="fail"), rows_of("x"), config)


def test_a_topology_that_does_not_isolate_is_as_it_was():
    topology = TridentTopology("plain")
    capture(topology.new_stream("in", rows_of("1")).each("text", parse, "n bigint"))

    local = LocalRun(topology, CONFIG)

    assert local.plan.nodes == topology.plan(CONFIG).nodes


def test_letters_are_no_part_of_what_must_not_change():
    def fingerprint(on_error):
        topology = TridentTopology("plain")
        stream = topology.new_stream("in", rows_of("1"))
        numbers = stream.each("text", parse, "n bigint", on_error=on_error)
        state = MemoryMapState().named("same")
        numbers.group_by("n").persistent_aggregate(state, Count(), "count")
        return LocalRun(topology, CONFIG).plan.fingerprint()

    assert fingerprint(None) == fingerprint(DEAD)


@pytest.mark.parametrize("operation", [expr("cast(text as bigint)")])
def test_a_spark_expression_cannot_isolate(operation):
    stream = TridentTopology("native").new_stream("in", rows_of("1"))

    with pytest.raises(TopologyError, match="try_cast"):
        stream.each("text", operation, "n bigint", on_error=DEAD)


def test_what_is_no_choice_is_refused():
    stream = TridentTopology("odd").new_stream("in", rows_of("1"))

    with pytest.raises(TopologyError, match="on_error"):
        stream.each("text", parse, "n bigint", on_error="ignore")


def test_a_stream_that_isolates_counts_as_opaque():
    topology = TridentTopology("opaque")
    stream = topology.new_stream("in", rows_of("1")).each("text", parse, "n bigint", on_error=DEAD)
    stream.group_by("n").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")

    text = topology.explain(CONFIG)

    assert "not exactly-once: each(parse) puts bad rows aside, the state is transactional" in text


def test_explain_shows_the_letters():
    topology = TridentTopology("shown")
    capture(topology.new_stream("in", rows_of("1")).each("text", parse, "n bigint", on_error=DEAD))

    text = topology.explain(CONFIG)

    assert "dead letters" in text
    assert "exactly-once: each(parse) puts bad rows aside, the state is opaque" in text


def test_too_many_bad_rows_stop_the_run_before_anything_is_committed():
    config = CONFIG.replace(max_bad_ratio=0.5)
    spout = rows_of("1", "2", "x", "4", "x", "y", "z", size=3)
    topology = TridentTopology("many")
    stream = topology.new_stream("in", spout)
    kept = capture(stream)
    stream.each("text", parse, "n bigint", on_error=DEAD)
    local = LocalRun(topology, config)

    with pytest.raises(TooManyBadRowsError) as caught:
        local.finish()

    text = str(caught.value)
    assert "2 of the 3 rows of batch 2 that came to each(parse) are bad: 66.7%" in text
    assert "max_bad_ratio allows 50.0%" in text
    assert "ValueError: invalid literal for int() with base 10: 'x'; " in text
    assert list(kept.batches) == [1]
    assert [letter.row for letter in local.letters] == [{"text": "x"}]
    assert local.loop.ledger.emitted[2].attempt == 0, "it was not tried again"


def test_as_many_as_allowed_do_not_stop_it():
    config = CONFIG.replace(max_bad_ratio=0.5)

    kept, local = run(
        lambda s: s.each("text", parse, "n bigint", on_error=DEAD), rows_of("1", "x"), config
    )

    assert (kept.rows, len(local.letters)) == ([("1", 1)], 1)


def test_the_ratio_is_that_of_each_operation():
    def build(stream):
        numbers = stream.each("text", parse, "n bigint", on_error=DEAD)
        few = numbers.filter("n", lambda n: n < 2)
        return few.each("n", lambda n: 1 // n, "q bigint", on_error=DEAD).name("divide")

    with pytest.raises(TooManyBadRowsError, match="1 of the 1 rows of batch 1 that came to divide"):
        run(build, rows_of("0", "3", "4", "5"), CONFIG.replace(max_bad_ratio=0.5))


def test_a_replay_that_fails_again_does_not_stop_the_run():
    config = CONFIG.replace(max_bad_ratio=0.5)
    _, local = run(
        lambda s: s.each("text", parse, "n bigint", on_error=DEAD), rows_of("1", "x"), config
    )

    local.replay_letters(*local.letters, text="y")
    local.finish()

    assert [(letter.row, letter.failures) for letter in local.letters] == [({"text": "y"}, 2)]


def test_when_the_letters_are_full_the_run_stops_and_drops_none():
    config = CONFIG.replace(dead_letters_max=3)
    topology = TridentTopology("full")
    stream = topology.new_stream("in", rows_of("x", "x", "1", "y", "z", "2", size=3))
    kept = capture(stream.each("text", parse, "n bigint", on_error=DEAD))
    local = LocalRun(topology, config)

    with pytest.raises(DeadLettersFullError, match="there are 2 dead letters, and 3 are kept"):
        local.finish()

    assert kept.rows == [("1", 1)]
    assert [letter.row["text"] for letter in local.letters] == ["x", "x"]


def test_one_batch_with_more_bad_rows_than_there_may_be_letters_stops_the_run():
    with pytest.raises(DeadLettersFullError, match="fails on more rows of one batch"):
        run(
            lambda s: s.each("text", parse, "n bigint", on_error=DEAD),
            rows_of("x", "y", "z"),
            CONFIG.replace(dead_letters_max=2),
        )


def test_an_opaque_spout_may_lose_a_row_and_its_letter_with_it():
    log = MemoryLog("text string", [[("x",)], [("y",)]], kind=_opaque(), take=5)
    calls = []

    def once(text):
        calls.append(text)
        if calls.count(text) == 1 and text == "y":
            log.disabled = {0}
            raise FailedException("y comes again, x does not")
        log.disabled = set()
        return int(text)

    _, local = run(lambda s: s.each("text", once, "n bigint", on_error=DEAD), log)

    assert sorted(letter.row["text"] for letter in local.letters) == ["x", "y"]


def _opaque():
    from waterspout.spouts._base import SpoutKind

    return SpoutKind.OPAQUE
