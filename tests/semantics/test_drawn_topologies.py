"""Whole topologies and schedules of failures at random: what `explain()` calls exact is exact."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.semantics.drawn_cases import Ask, NewValues, Source, Static, Step, Update, draw
from tests.semantics.drawn_runs import first_wrong, run
from tests.soaking import repeated


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(1800)
@repeated(150, in_soak=5000)
def test_nothing_is_wrong(count):
    totals: Counter[str] = Counter()

    assert first_wrong(range(count), totals) == ""
    assert totals["batches"] > 2 * count
    assert min(totals["crashes"], totals["exact"], totals["weak"]) > count / 2


def test_a_seed_has_one_history():
    first, second = run(draw(7)), run(draw(7))

    assert first.batches == second.batches > 0
    assert (first.crashes, first.fired) == (second.crashes, second.fired)


def test_everything_is_drawn():
    found: Counter[str] = Counter()
    for seed in range(1000):
        case = draw(seed)
        found.update(_traits(case.things))
        found["nothing happens"] += case.schedule.is_calm
        found["strict"] += case.schedule.strict
        found["zombies"] += case.schedule.zombies

    assert min(found.values()) > 20, found
    assert len(found) > 30, found


def _traits(things):
    for thing in things:
        match thing:
            case Source(kind, files):
                yield "files" if files else f"{kind} spout"
            case Step(name):
                yield name
            case Ask(state=state):
                asked = things[state]
                yield "static" if isinstance(asked, Static) else f"asks {asked.kind}"
            case Update(how=how, kind=kind, place=place, partitions=partitions):
                yield from (f"state by {how}", f"{kind} state", f"state in {place.store}")
                yield f"{partitions} partitions"
            case NewValues():
                yield "new values"
