"""Commands for a run, which change something: the door lets nobody in without the token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from waterspout.coordination.commands.messages import Change, Reply, Verb
from waterspout.coordination.kept_letters import kept_letters
from waterspout.coordination.rollback import refuse_states_without_past, roll_back
from waterspout.coordination.state_lookup import StateLookup, described_of, prepared_for
from waterspout.errors import LeaseHeldError
from waterspout.serving._answers import ERRORS, JSONAnswer, Refusal
from waterspout.serving._served import Served
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology

__all__ = ["Rebalancing", "Replaying", "Waiting", "router"]

# A caller is told after so long what is under way, and asks again how it stands.
_ANSWER_S = 20.0
_WAIT_MAX_S = 86_400.0
_COUNT_MAX = 1_000_000
_RELEASE_S = 5.0
_LOOK_S = 0.05


class Waiting(BaseModel):
    """How long what is in flight is given to finish; left out: the message timeout."""

    model_config = ConfigDict(extra="forbid", strict=True)

    wait_s: float | None = Field(None, ge=0, le=_WAIT_MAX_S, allow_inf_nan=False)


class Rebalancing(Waiting):
    """What is to change; what is left out stays as it is."""

    pending: int | None = Field(None, ge=1, le=_COUNT_MAX)
    workers: int | None = Field(None, ge=1, le=_COUNT_MAX)
    parallelism: dict[str, int] = Field(default_factory=dict)


class Replaying(BaseModel):
    """Which dead letters are sent through again, and with which values of a row's fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str | int] | None = None
    """By the ids that they have in the list; None: all."""
    set: dict[str, str] = Field(default_factory=dict)


def router(served: Served) -> APIRouter:
    """Return the commands for a run."""
    run, conf = served.run, served.config
    api = APIRouter(prefix="/api/v1", tags=["commands"], responses=ERRORS)

    def give(
        verb: Verb, request: Request, wait_s: float | None, change: Change | None = None
    ) -> JSONAnswer:
        reply = run.ask(verb, _who(request), wait_s=wait_s, change=change, timeout_s=_ANSWER_S)
        return _told(reply)

    @api.post("/activate")
    def activate(request: Request) -> JSONAnswer:
        """Let the spouts go on, now and in later runs."""
        return give("activate", request, None)

    @api.post("/deactivate")
    def deactivate(request: Request) -> JSONAnswer:
        """Ask the spouts no more, now and in later runs; what is in flight is finished."""
        return give("deactivate", request, None)

    @api.post("/kill")
    def kill(request: Request, body: Waiting | None = None) -> JSONAnswer:
        """End the run when nothing is in flight, or the wait is over. The server ends with it."""
        return give("kill", request, None if body is None else body.wait_s)

    @api.post("/rebalance")
    def rebalance(request: Request, body: Rebalancing) -> JSONAnswer:
        """Change parallelism or pending when nothing is in flight, and go on."""
        change = Change(body.pending, body.workers, body.parallelism)
        if not change:
            raise Refusal(422, "invalid", "say what is to change: parallelism, workers or pending")
        return give("rebalance", request, body.wait_s, change)

    @api.post("/rollback")
    def rollback(request: Request, body: Waiting | None = None) -> JSONAnswer:
        """End the run, then take the last committed batch back; the next run emits it again."""
        topology = served.topology
        if isinstance(topology, Topology) and not isinstance(topology, TransactionalTopology):
            raise Refusal(409, "refused", "a topology of spouts and bolts has no batches")
        wait_s = None if body is None else body.wait_s
        return JSONAnswer(_taken_back(served, topology, _who(request), wait_s))

    @api.post("/dead-letters/replay")
    def replay(body: Replaying | None = None) -> JSONAnswer:
        """Send dead letters through the topology again; one that fails again comes back."""
        ids = None if body is None or body.ids is None else [str(id) for id in body.ids]
        is_trident = isinstance(served.topology, TridentTopology)
        with kept_letters(run.name, conf, is_trident=is_trident) as found:
            changes = {} if body is None else body.set
            outcome = found.replay(found.chosen(ids), changes, skip=ids is None)
        return JSONAnswer({"done": outcome.done, "text": outcome.text, "problem": outcome.problem})

    return api


def _told(reply: Reply) -> JSONAnswer:
    facts: Mapping[str, Any] = reply.facts
    told = {**facts, "outcome": reply.outcome, "text": reply.text}
    return JSONAnswer(told, 200 if reply.is_final else 202)


def _taken_back(
    served: Served,
    topology: TridentTopology | TransactionalTopology,
    by: str,
    wait_s: float | None,
) -> dict[str, Any]:
    """End a run and take its last batch back; nothing is ended for what could not be."""
    run, conf = served.run, served.config
    described = served.described
    assert not isinstance(described, Topology) or isinstance(described, TransactionalTopology)
    lookup = StateLookup.of(described, hidden=True)
    refuse_states_without_past(lookup.kinds, {})
    ledger = run.store.peek()
    reason = "there is no batch yet" if ledger is None else ledger.why_not_roll_back(unclaimed=True)
    if reason is not None:
        raise Refusal(409, "refused", f"the last batch cannot be taken back: {reason}")
    reply = run.ask("kill", by, wait_s=wait_s, timeout_s=_ANSWER_S)
    if not reply.is_final:
        raise Refusal(409, "not_ended", f"{reply.text}. Then: waterspout state rollback FILE")
    until = time.monotonic() + _RELEASE_S
    while True:
        try:
            with closing(prepared_for(topology, conf, taking_back=True)) as prepared:
                found = described_of(prepared)
                kinds = StateLookup.of(found, hidden=True).kinds
                txid = roll_back(
                    found.name, found.fingerprint(), prepared.store, prepared.states, kinds
                )
            break
        except LeaseHeldError:  # the run has ended, and is about to give its lease up
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)
    text = f"{reply.text}; batch {txid} was taken back: the next run emits it again"
    return {"outcome": "done", "text": text, "taken_back": txid}


def _who(request: Request) -> str:
    return f"http@{request.client.host if request.client else '?'}"
