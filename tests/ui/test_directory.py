"""Which topologies are listed, how they stand, and whom a page asks about each."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from tests.ui.answers import CORE
from tests.ui.pages import URL, Api, directory, served
from waterspout.coordination.commands.outside import Sight
from waterspout.coordination.lease import Holder
from waterspout.errors import StoreError
from waterspout.transactional._ledger import EmittedBatch, Ledger
from waterspout.ui._directory import listed
from waterspout.ui._sources import NotAnswered

EMITTED = Ledger("words", {}, "h", 8, 0, {}, {8: EmittedBatch(1, {"a": 1})}, (0,))


def seen(directory):
    return {each.name: each for each in asyncio.run(directory.listing()).topologies}


def test_a_dead_run_is_listed_with_what_a_restart_goes_on_with():
    before = served("words")
    dead = replace(before, holder=Holder(1, None, "dead"), ledger=EMITTED)

    line = listed(dead, 100.0)

    assert (line.status, line.url, line.up) == ("dead", "", "")
    assert line.resumes == ("goes on with batch 8, attempt 2: it was emitted before",)
    assert line.is_over


def test_a_run_is_asked_where_it_is_served_and_a_stopped_one_not_at_all():
    api = Api(CORE)
    stopped = Sight("old", Holder(1, None, "free"), {}, EMITTED)
    here = directory(api, lambda: [served("words"), stopped])

    async def sources():
        return (await here.source("words")), (await here.source("old"))

    live, stored = asyncio.run(sources())

    assert (live.live, live.where) == (True, URL)
    assert stored.live is False


def test_a_server_that_was_named_is_listed_once_though_the_home_knows_its_run():
    api = Api(CORE)
    unserved = served("words", url="")

    found = seen(directory(api, lambda: [unserved], servers=[URL]))

    assert list(found) == ["words"]
    assert (found["words"].url, found["words"].status) == (URL, "running")


def test_a_server_that_is_gone_is_told_of_by_the_home_and_without_one_as_unreachable():
    api, now = Api(CORE), [0.0]
    sights = []
    here = directory(api, lambda: list(sights), servers=[URL])
    here._clock = lambda: now[0]
    assert seen(here)["words"].status == "running"

    api.down, now[0] = httpx.ConnectError("refused"), 10.0
    assert seen(here)["words"].status == "unreachable"

    sights.append(Sight("words", Holder(1, None, "dead"), {}, EMITTED))
    now[0] = 20.0
    assert seen(here)["words"].status == "dead"


def test_a_home_that_cannot_be_looked_at_is_a_problem_and_no_error_page():
    def broken():
        raise StoreError("no such machine")

    listing = asyncio.run(directory(Api({}), broken).listing())

    assert listing.topologies == ()
    assert "no such machine" in listing.problem


def test_everybody_shares_one_look():
    looks = []

    def look():
        looks.append(1)
        return []

    here = directory(Api({}), look)

    async def many():
        await asyncio.gather(*(here.listing() for _ in range(20)))

    asyncio.run(many())

    assert len(looks) == 1


def test_a_name_that_nobody_has_is_absent():
    with pytest.raises(NotAnswered) as caught:
        asyncio.run(directory(Api({}), list).source("words"))

    assert caught.value.why == "absent"
