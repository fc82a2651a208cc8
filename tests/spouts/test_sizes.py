"""What each spout takes when it is asked for a size, and what it says that a batch holds."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts import DataFrameSpout, SpoutContext
from waterspout.spouts._base import LookingPlanner
from waterspout.spouts._reads import FilesRead
from waterspout.spouts._sources import source_of
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rate import RateSpout
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.transactional import MemoryTransactionalSpout


def context(**conf):
    return SpoutContext(Config(**conf), "in", None, {}, 1)


def files(folder, *sizes):
    for number, size in enumerate(sizes):
        (folder / f"f{number:03}").write_text("x" * (size - 1) + "\n" if size else "")
    return folder


def taken(planner, previous=None, target=None, txid=1):
    assert planner.is_ready(previous)
    return planner.plan(txid, previous, target)


@pytest.mark.parametrize(
    ("target", "expected"),
    [(1, [100]), (100, [100]), (149, [100]), (150, [100, 100]), (250, [100, 100, 100]), (9999, 5)],
)
def test_files_are_taken_to_about_the_target_and_at_least_one(tmp_path, target, expected):
    planner = FileSpout(files(tmp_path, *[100] * 5)).open(context())

    batch = taken(planner, target=target)

    held = [file[1] for file in batch["files"]]
    assert held == ([100] * expected if isinstance(expected, int) else expected)
    assert planner.size_of(batch) == sum(held)
    assert planner.unit == "bytes"


@pytest.mark.parametrize("said", [{"max_files": 2}, {"max_bytes": 250}, {"max_rows": 2}])
def test_a_limit_that_was_said_stays_whatever_is_asked_for(tmp_path, said):
    planner = FileSpout(files(tmp_path, *[100] * 9), **said).open(context())

    batch = taken(planner, target=100_000)

    assert len(batch["files"]) == 2
    assert planner.size_of(batch) is None


def test_without_a_target_files_are_taken_up_to_the_old_limits(tmp_path):
    spout = FileSpout(files(tmp_path, *[1] * 1005))

    planner = spout.open(context())
    first, rest = taken(planner), taken(planner, txid=2)

    assert (spout.max_files, spout.max_bytes) == (1000, 64_000_000)
    assert (len(first["files"]), len(rest["files"])) == (1000, 5)


def test_a_target_may_go_beyond_a_thousand_files(tmp_path):
    planner = FileSpout(files(tmp_path, *[1] * 1005)).open(context())

    assert len(taken(planner, target=10_000)["files"]) == 1005


@pytest.mark.parametrize("said", [{"max_files": 0}, {"max_bytes": 0}, {"max_rows": -1}])
def test_a_limit_below_one_is_refused(tmp_path, said):
    with pytest.raises(TopologyError, match="must be at least 1"):
        FileSpout(tmp_path, **said)


def test_rows_at_a_rate_are_taken_up_to_the_target():
    now = [0.0]
    planner = RateSpout(100, clock=lambda: now[0]).open(context())
    now[0] = 10.0

    batch = taken(planner, target=300)

    assert (batch["start"], batch["end"]) == (0, 300)
    assert planner.size_of(batch) == 300
    assert planner.lag(batch) == {"rows": 700}


def test_a_said_batch_size_of_a_rate_stays():
    now = [0.0]
    planner = RateSpout(100, max_batch_size=50, clock=lambda: now[0]).open(context())
    now[0] = 10.0

    batch = taken(planner, target=300)

    assert batch["end"] == 50
    assert planner.size_of(batch) is None


def test_fixed_batches_stay_fixed():
    planner = FixedBatchSpout("n", 2, list(range(9))).open(context())

    batch = taken(planner, target=5)

    assert batch == {"start": 0, "end": 2}
    assert planner.size_of(batch) is None


@pytest.mark.parametrize(
    ("conf", "expected"), [({}, (1000, 2000, True)), ({"spout_max_batch_size": 7}, (7, 7, False))]
)
def test_messages_are_pulled_up_to_the_target_unless_a_size_was_said(conf, expected):
    feeder = FeederSpout("n")
    for n in range(5000):
        feeder.feed([n])
    source = source_of(feeder, topology="t", spout_id="in", out="n bigint")
    planner = source.open(context(**conf))

    first, second = taken(planner), taken(planner, target=2000, txid=2)

    sized = planner.size_of(second) is not None
    assert (first["rows"], second["rows"], sized) == expected
    assert planner.left_more(second) is True


def test_a_pull_that_got_less_left_nothing():
    feeder = FeederSpout("n")
    feeder.feed([1])
    planner = source_of(feeder, topology="t", spout_id="in", out="n bigint").open(context())

    batch = taken(planner, target=10)

    assert (batch["rows"], planner.left_more(batch)) == (1, False)


class Orders(DataFrameSpout):
    schema = "id bigint"

    def __init__(self):
        self.asked = []

    def next_range(self, txid, previous, target=None):
        self.asked.append(target)
        start = 0 if previous is None else previous[1]
        end = min(start + (target or 10), 100)
        return [start, end] if end > start else None

    def read(self, spark, range):
        raise NotImplementedError

    def size_of(self, range):
        return range[1] - range[0]

    def lag(self, previous):
        return 100 - (0 if previous is None else previous[1])


def test_ranges_are_asked_for_with_a_target_where_next_range_takes_one():
    planner = source_of(Orders(), topology="t", spout_id="in").open(context())

    batch = taken(planner, target=25)

    assert batch == [None, [0, 25]]
    assert planner.size_of(batch) == 25
    assert planner.lag(batch) == {"rows": 75}


def test_ranges_without_a_target_are_chosen_by_the_spout_alone():
    class Old(Orders):
        def next_range(self, txid, previous):
            return super().next_range(txid, previous)

    planner = source_of(Old(), topology="t", spout_id="in").open(context())

    batch = taken(planner, target=25)

    assert batch == [None, [0, 10]]
    assert planner.size_of(batch) is None


def test_a_plan_that_was_kept_from_a_look_was_made_with_the_target_that_holds():
    spout = Orders()
    planner = source_of(spout, topology="t", spout_id="in").open(context())
    first = taken(planner, target=20)

    assert planner.is_ready(first)  # looks, and keeps what it finds, with 20
    same = planner.plan(2, first, 20)
    looked = list(spout.asked)
    assert planner.is_ready(same)
    other = planner.plan(3, same, 40)

    assert (same[1], other[1]) == ([20, 40], [40, 80])
    assert looked == [None, 20, 20]
    assert spout.asked == [None, 20, 20, 20, 40]


def test_a_planner_that_takes_no_target_looks_once_whatever_is_asked_for():
    class Looking(LookingPlanner):
        looks = 0

        def look(self, txid, previous):
            self.looks += 1
            return {"txid": txid}

        def goes_on(self, metadata):
            return True

    planner = Looking(context())

    assert planner.is_ready(None)
    planner.plan(1, None, 99)

    assert planner.looks == 1


def test_emitters_in_storms_form_cannot_be_sized():
    spout = MemoryTransactionalSpout([["a", "b", "c"]], "word", 2)
    planner = source_of(spout, topology="t", spout_id="in", out="word string").open(context())

    batch = taken(planner, target=1)

    assert planner.size_of(batch) is None


@pytest.mark.parametrize(
    ("size", "small", "tiny"),
    [(1_000_000, True, True), (1_000_001, True, False), (32_000_000, True, False),
     (32_000_001, False, False)],
)  # fmt: skip
def test_what_is_expected_of_files_follows_from_their_size(size, small, tiny):
    read = FilesRead(Schema.parse("value string"), "text", ["/a"], size)

    assert (read.is_small, read.is_tiny) == (small, tiny)
