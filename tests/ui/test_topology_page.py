"""The page of a topology: whom it asks, and what it says when nobody answers."""

from __future__ import annotations

import httpx

from tests.ui.pages import Api, directory, reading

TOPOLOGY = {"name": "words", "kind": "trident", "status": "running"}


def test_a_driver_that_is_lost_is_shown_as_such_and_what_was_known_stays():
    api = Api({"topology": TOPOLOGY})

    async def act(user):
        await user.open("/t/words")
        await user.should_see("running")
        api.down = httpx.ConnectError("connection refused")
        await user.should_see("The driver does not answer", retries=40)
        await user.should_see("trident")

    reading(act, directory(api))


def test_a_name_that_is_not_known_is_said_to_be_so():
    async def act(user):
        await user.open("/t/wrods")
        await user.should_see("There is no topology wrods")

    reading(act, directory(Api({})))
