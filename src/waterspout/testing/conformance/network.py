"""A real server behind a network that drops requests, replies and connections."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import OutsideError
from waterspout.state._base import StateKind
from waterspout.testing._batches import Batches
from waterspout.testing._faulty import FaultyMap
from waterspout.testing._proxy import FaultProxy
from waterspout.testing.conformance.hooks import (
    TRANSACTIONAL,
    StoreHooks,
    each_exact_kind,
    examples,
)

__all__ = ["NetworkSuite"]

# The calls of one commit, in order.
CALLS = ("claim's read", "claim", "read", "write", "settling's read", "settling")
LOSSES = ("reply", "request", "cut", "commit reply", "commit request")
batch = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1)
# One entry for each call of the store; most lose nothing, so that attempts get far.
plans = st.lists(st.just("") | st.just("") | st.sampled_from(LOSSES), max_size=30)


class NetworkSuite(StoreHooks):
    """The values are exact in the end, whatever the network lost on the way."""

    def _proxied(self) -> FaultProxy:
        if self.proxy is None:
            pytest.skip("no `proxy` was given: lost requests and replies were not tried")
        return self.proxy

    def _losing(self, kind: StateKind, plan: list[str]) -> tuple[Batches, FaultyMap[Any]]:
        """Return batches over a new store that loses, call by call, what `plan` says."""
        faulty = FaultyMap(self.fresh(kind))
        batches = self.batches(kind, faulty)

        def lose() -> None:
            if plan:
                self._lose(plan.pop(0))

        batches.persist({"a": 1})  # now there is a head, and a connection to lose
        faulty.before_call = lose
        return batches, faulty

    def _lose(self, loss: str) -> None:
        proxy = self._proxied()
        if loss.startswith("commit") and self.commit_request is None:
            loss = loss.removeprefix("commit ")
        matching = self.commit_request if loss.startswith("commit") else None
        if loss.endswith("reply"):
            proxy.drop_next_reply(matching)
        elif loss.endswith("request"):
            proxy.drop_next_request(matching)
        elif loss == "cut":
            proxy.cut()

    @pytest.mark.parametrize("loss", LOSSES)
    @each_exact_kind
    def test_the_next_attempt_makes_good_what_the_network_lost(
        self, kind: StateKind, loss: str
    ) -> None:
        self._proxied()
        if loss.startswith("commit") and self.commit_request is None:
            pytest.skip("`commit_request` was not given: a write is taken to be one request")
        for n, call in enumerate(CALLS):
            batches, faulty = self._losing(kind, [""] * n + [loss])
            batches.persist({"a": 10, "b": 10})
            self._use_up(batches, faulty)

            found = batches.found("a", "b")
            assert found == batches.values("a", "b") == [11, 10], f"lost: {loss} of the {call}"

    @each_exact_kind
    @examples(20)
    @given(history=st.lists(batch, min_size=1, max_size=4), other=batch, plan=plans)
    def test_sums_are_exact_whatever_the_network_lost(
        self, kind: StateKind, history: Any, other: Any, plan: Any
    ) -> None:
        self._proxied()
        batches, faulty = self._losing(kind, list(plan))
        truth = Counter(a=1)

        for updates in history:
            with suppress(OutsideError):  # this attempt may fail; the next one follows
                batches.lose(updates if kind is TRANSACTIONAL else other)
            batches.persist(updates)
            truth.update(updates)
        self._use_up(batches, faulty)

        exact = [truth[key] for key in "abcd"]
        assert [value or 0 for value in batches.found(*"abcd")] == exact
        if batches.state.is_fenced:  # without a fence, a reader may see a lost attempt
            assert [value or 0 for value in batches.values(*"abcd")] == exact

    def _use_up(self, batches: Batches, faulty: FaultyMap[Any]) -> None:
        """Stop losing, and go on until no armed fault is left that could hit a later test."""
        faulty.before_call = None
        proxy, dropped = self._proxied(), -1
        while dropped != proxy.dropped:
            dropped = proxy.dropped
            batches.patiently(lambda: batches.found("a"))
            if self.commit_request is not None:
                batches.persist({})
