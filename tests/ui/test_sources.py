"""A served run over its API: what is asked, with whose token, and what an error means."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.ui.pages import URL, Api
from waterspout.ui._sources import NotAnswered


def test_a_question_goes_below_the_api_with_the_token_of_the_page():
    api = Api({"stats": {"a": 1}, "/drpc/words": [[1]]})
    source = api.source("words", URL, "page-token")

    assert asyncio.run(source.get("stats", window="all", limit=None)) == {"a": 1}

    assert api.asked == [("GET", "stats", {"window": "all"}, "Bearer page-token")]
    assert asyncio.run(api.source("words", URL).get("/drpc/words")) == [[1]]


def test_a_change_is_made_with_the_token_of_its_reader_only():
    api = Api({"kill": {"outcome": "done"}})
    source = api.source("words", URL, "page-token")

    async def twice():
        await source.post("kill", {"wait_s": 1})
        await source.post("kill", token="mine")

    asyncio.run(twice())

    assert [asked[3] for asked in api.asked] == [None, "Bearer mine"]


@pytest.mark.parametrize(
    ("answer", "why", "text"),
    [
        (httpx.Response(401, json={"error": {"kind": "x", "message": "no"}}), "refused", "no"),
        (httpx.Response(404, json={"detail": "Not Found"}), "absent", "Not Found"),
        (httpx.Response(500, text="oops"), "failed", "oops"),
    ],
)
def test_an_answer_that_is_none_says_why(answer, why, text):
    with pytest.raises(NotAnswered, match=text) as caught:
        asyncio.run(Api({"snapshot": answer}).source("words", URL).get("snapshot"))

    assert caught.value.why == why


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("late")])
def test_a_driver_that_cannot_be_reached_is_named(error):
    api = Api({})
    api.down = error

    with pytest.raises(NotAnswered, match=URL) as caught:
        asyncio.run(api.source("words", URL).get("snapshot"))

    assert caught.value.why == "unreachable"
