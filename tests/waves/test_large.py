"""Containers that note their changes: they look like plain ones, and their steps rebuild them."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from waterspout.waves import large
from waterspout.waves.frames import pack, unpack
from waterspout.waves.large import adopt, apply, reference, resolving

COUNT = 110


@pytest.fixture(autouse=True)
def _little_is_large(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 100)


def plain(kind: type) -> Any:
    """A large container of this kind."""
    if kind is set:
        return set(range(COUNT))
    if kind is defaultdict:
        return defaultdict(int, enumerate(range(COUNT)))
    return kind({n: n for n in range(COUNT)})


def adopted(value: Any) -> Any:
    """The container that takes the place of a plain one; None if none does."""
    attributes = {"it": value}
    del value
    found = adopt(attributes, (), 0, 1)
    return attributes["it"] if found else None


def noting(kind: type) -> Any:
    attributes = {"it": plain(kind)}
    (made,) = adopt(attributes, (), 0, 1).values()
    assert attributes["it"] is made
    return made


all_kinds = pytest.mark.parametrize("kind", [dict, Counter, defaultdict, set])
maps = pytest.mark.parametrize("kind", [dict, Counter, defaultdict])


def change_map(it: Any, dice: random.Random) -> None:
    key, other = dice.randrange(COUNT + 50), dice.randrange(COUNT + 50)
    some = {dice.randrange(COUNT + 50): dice.randrange(9) for _ in range(3)}
    changes = [
        lambda: it.__setitem__(key, other),
        lambda: it.__setitem__(key, other if isinstance(it, Counter) else (other, str(key))),
        lambda: it.__delitem__(key) if key in it else None,
        lambda: it.pop(key, None),
        lambda: it.popitem() if it else None,
        lambda: it.setdefault(key, other),
        lambda: it.update(some),
        lambda: it.update([(key, other), (other, key)]) if not isinstance(it, Counter) else None,
        lambda: it.__ior__(some) if not isinstance(it, Counter) else None,
        lambda: it[key] if isinstance(it, defaultdict) else None,
        lambda: it.clear() if dice.random() < 0.05 else None,
    ]
    dice.choice(changes)()


def change_counter(it: Any, dice: random.Random) -> None:
    some = {dice.randrange(COUNT + 50): dice.randrange(-3, 9) for _ in range(3)}
    changes = [
        lambda: it.update(some),
        lambda: it.update([1, 1, 2]),
        lambda: it.update(word=2),
        lambda: it.subtract(some),
        lambda: it.__iadd__(Counter(some)),
        lambda: it.__isub__(Counter(some)),
        lambda: it.__ior__(Counter(some)),
        lambda: it.__delitem__("never there"),
        lambda: it.__iand__(Counter({**it, 3: 1})) if dice.random() < 0.2 else None,
        lambda: it.clear() if dice.random() < 0.1 else None,
    ]
    dice.choice(changes)()


def change_set(it: Any, dice: random.Random) -> None:
    member = dice.randrange(COUNT + 50)
    some = {dice.randrange(COUNT + 50) for _ in range(3)}
    changes = [
        lambda: it.add(member),
        lambda: it.discard(member),
        lambda: it.remove(member) if member in it else None,
        lambda: it.update(some, [member]),
        lambda: it.difference_update(some),
        lambda: it.symmetric_difference_update(some),
        lambda: it.intersection_update(set(it) - some),
        lambda: it.__ior__(some),
        lambda: it.__isub__(some),
        lambda: it.__ixor__(some),
        lambda: it.__iand__(it - some),
        lambda: it.clear() if dice.random() < 0.05 else None,
    ]
    dice.choice(changes)()


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (dict, change_map),
        (Counter, change_map),
        (defaultdict, change_map),
        (Counter, change_counter),
        (set, change_set),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_done_to_one_its_steps_rebuild_it_in_the_same_order(kind, change, seed):
    dice, same_dice = random.Random(seed), random.Random(seed)
    model, it = plain(kind), noting(kind)
    rebuilt: dict[int, Any] = {}
    apply(rebuilt, {1: it.whole()})

    for _ in range(30):
        for _ in range(dice.randrange(12)):
            same_dice.setstate(dice.getstate())
            change(model, dice)
            change(it, same_dice)
        apply(rebuilt, pickle.loads(pickle.dumps({1: it.change()})))
        it.forget()

        assert it == model
        assert rebuilt[1] == model
        if kind is not set:
            assert list(rebuilt[1].items()) == list(model.items())


@all_kinds
def test_it_passes_for_the_plain_one(kind):
    model, it = plain(kind), noting(kind)

    assert isinstance(it, kind)
    assert it == model
    assert repr(it) == repr(model)
    for copied in (it.copy(), copy.copy(it), copy.deepcopy(it), pickle.loads(pickle.dumps(it))):
        assert type(copied) is kind
        assert copied == model
    assert type(it | it) is kind
    if kind is not set:
        assert json.dumps(it) == json.dumps(model)
    if kind is Counter:
        assert it.most_common(3) == model.most_common(3)
        assert type(it + it) is Counter
    if kind is defaultdict:
        assert it.copy().default_factory is int


@all_kinds
def test_small_ones_and_those_below_the_number_of_tuples_stay_as_they_are(kind):
    small = {"it": kind(list(plain(kind))[:10]) if kind is set else kind()}
    large = {"it": plain(kind)}

    assert adopt(small, (), 0, 1) == {}
    assert adopt(large, (), COUNT + 1, 1) == {}
    assert type(large["it"]) is kind


def test_one_that_somebody_else_holds_stays_as_it_is():
    held = plain(dict)
    bound = plain(dict)
    update = bound.update

    assert adopted(held) is None
    assert adopt({"it": bound}, (), 0, 1) == {}
    assert update is not None
    assert adopt({"one": held, "other": held}, (), 0, 1) == {}


@pytest.mark.parametrize(
    "value",
    [[], {}, pytest.param(object(), id="object"), {1}, bytearray(), (1, []), Counter(), ([],)],
    ids=repr,
)
def test_one_with_values_that_can_be_changed_in_place_stays_as_it_is(value):
    attributes = {"it": {**plain(dict), "key": value}}

    assert adopt(attributes, (), 0, 1) == {}
    assert type(attributes["it"]) is dict


@pytest.mark.parametrize(
    "key", [math.nan, (1, math.nan), pytest.param(object(), id="object"), len], ids=repr
)
def test_one_with_keys_that_do_not_find_their_entry_again_stays_as_it_is(key):
    assert adopt({"it": {**plain(dict), key: 1}}, (), 0, 1) == {}


def test_values_of_many_kinds_are_noted():
    values = [1, 1.5, math.nan, "a", b"a", None, True, (1, ("a", None)), datetime.now(UTC)]
    attributes = {"it": {**plain(dict), **{str(n): each for n, each in enumerate(values)}}}

    assert len(adopt(attributes, (), 0, 1)) == 1


def test_one_that_gets_such_a_value_later_says_so():
    it = noting(dict)
    it["key"] = []

    assert it.change() is None


class Helper:
    def __init__(self) -> None:
        self.table = plain(dict)


class Odd(Helper):
    def __getstate__(self):
        return {"table": dict(self.table)}


def test_they_are_found_in_small_dicts_and_in_plain_objects():
    attributes = {
        "by_name": {"a": plain(Counter), "deep": {"b": plain(set)}},
        "helper": Helper(),
        "odd": Odd(),
        "transient": plain(dict),
    }

    found = adopt(attributes, {"transient"}, 0, 7)

    assert [type(each).__mro__[1:][-2] for each in found.values()] == [dict, dict, set]
    assert sorted(found) == [7, 8, 9]
    assert attributes["by_name"]["a"] is found[7]
    assert type(attributes["odd"].table) is dict
    assert type(attributes["transient"]) is dict


def test_a_bolt_refers_to_its_own_and_carries_those_of_others():
    own, other = noting(dict), noting(dict)
    met: set[int] = set()

    packed = pack([own, own, other], reference({1: own}, met))
    with resolving({1: own}):
        one, two, three = unpack(packed)

    assert met == {1}
    assert one is two is own
    assert type(three) is dict
    assert three == other
