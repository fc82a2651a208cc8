"""Whether a state is exactly-once, and why. Pure functions of a plan.

Two questions about everything that a state follows from. Can it *vary* between two attempts at a
batch? Then only an opaque state can take the lost attempt back. Can a replay be *wrong*, because
it sees what the lost attempt has written? Then no state behind it is exact. And one about its
store: can it lose or replace, unnoticed, what was committed?
"""

from __future__ import annotations

from dataclasses import dataclass

from waterspout.spouts._base import SpoutKind, is_pinned
from waterspout.state._base import StateKind
from waterspout.trident.operations.row_updaters import AppendRows
from waterspout.trident.plan.nodes import (
    Isolated,
    NewValues,
    Node,
    Query,
    Source,
    StaticTable,
    Update,
    UpdateWith,
)
from waterspout.trident.plan.plan import Plan, StateSpec, ancestors

__all__ = ["Verdict", "exactly_once", "kind_name", "verdict_of"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a state's updates are exactly-once, why, and what to do if they are not."""

    exact: bool
    why: str
    remedy: str = "Use an opaque state (and a spout that can replay)"


def verdict_of(plan: Plan, update: Update) -> Verdict:
    """Judge the state of an update."""
    above = [*ancestors(update), update]
    for node in above:
        if wrong := _why_it_is_wrong(plan, node):
            return wrong
        source = plan.updates.get(getattr(node, "state", ""))
        if source is None or source is update:
            continue
        before = verdict_of(plan, source)
        if not before.exact:
            why = f"it follows from {source.state}, which is not exactly-once"
            return Verdict(False, why, before.remedy)
    if plan.recomputes and (varied := _why_one_of_them_varies(plan, above)):
        return Verdict(
            False,
            f"{varied}, and this Spark session may compute a lost part of a batch anew, so that "
            "rows are lost or doubled where it differs",
            "Start the session with spark.stage.maxConsecutiveAttempts=1",
        )
    spec = plan.states[update.state]
    state = spec.factory.kind
    if spec.factory.pins_batches:
        return _pinned(plan, above, spec)
    spout, why = _spout_kind(plan, above)
    exact, why = exactly_once(spout, state), f"{why}, the state is {kind_name(state)}"
    if exact and spec.risk is not None:
        return Verdict(False, spec.risk.why, spec.risk.remedy)
    return Verdict(exact, why)


def _pinned(plan: Plan, above: list[Node], spec: StateSpec) -> Verdict:
    """Judge a state that cannot take back what a lost attempt has written.

    Every attempt at a batch that has begun to commit is given the same input. So an opaque spout
    will do as well as a transactional one; but what varies from the same input will not.
    """
    remedy = "Use an opaque state, or a spout that can give the same batch again"
    opaque = ""
    for node in sorted((n for n in above if isinstance(n, Source)), key=lambda n: n.hidden):
        what = f"spout {node.spout_id!r} is {node.spout.kind.value}"
        if not is_pinned(node.spout, pins_batches=True):
            again = "" if node.spout.repeats else ", and does not give the same batch again"
            return Verdict(False, f"{what}{again}; {_CANNOT_UNDO}", remedy)
        opaque = opaque or (what if node.spout.kind is SpoutKind.OPAQUE else "")
    if varied := _why_one_of_them_varies(plan, above):
        return Verdict(False, f"{varied}; {_CANNOT_UNDO}", "Use an opaque state")
    if spec.risk is not None:
        return Verdict(False, spec.risk.why, spec.risk.remedy)
    _, why = _spout_kind(plan, above)
    pinned = "once a batch has begun to commit, every attempt at it is given the same rows"
    return Verdict(True, f"{opaque or why}; {pinned}, and the state skips those that it has")


_CANNOT_UNDO = "the state cannot take back what a lost attempt has written"


def exactly_once(spout: SpoutKind, state: StateKind | None) -> bool:
    """Look a pair up in the matrix of spouts and states."""
    if spout is SpoutKind.TRANSACTIONAL:
        return state in (StateKind.TRANSACTIONAL, StateKind.OPAQUE)
    return spout is SpoutKind.OPAQUE and state is StateKind.OPAQUE


def _spout_kind(plan: Plan, above: list[Node]) -> tuple[SpoutKind, str]:
    """Return the weakest kind among the sources of a state, and what makes it so."""
    # Those of the user first: the requests for letters only come in beside them.
    sources = sorted((n for n in above if isinstance(n, Source)), key=lambda n: n.hidden)
    kinds = [(n.spout.kind, f"spout {n.spout_id!r}") for n in sources]
    for order in (SpoutKind.NON_TRANSACTIONAL, SpoutKind.OPAQUE):
        for kind, why in kinds:
            if kind is order:
                return kind, f"{why} is {kind.value}"
    if reason := _why_one_of_them_varies(plan, above):
        return SpoutKind.OPAQUE, reason
    return SpoutKind.TRANSACTIONAL, f"{kinds[0][1]} is transactional" if kinds else "no spout"


def _why_one_of_them_varies(plan: Plan, nodes: list[Node]) -> str | None:
    return next(filter(None, (_why_it_varies(plan, node) for node in nodes)), None)


def _why_it_varies(plan: Plan, node: Node) -> str | None:
    """Say why a node's output may differ between attempts at one batch, if it may."""
    for operation in node.operations:
        # A Column answers to every name, with a Column.
        if getattr(operation, "deterministic", True) is False:
            reason = getattr(operation, "varies", "is declared not deterministic")
            return f"{node.title} {reason}"
    if isinstance(node, Isolated):
        return f"{next(filter(None, node.addresses))} puts bad rows aside"
    if getattr(node, "on_error", None) == "dead_letter":
        return f"{node.title} puts bad rows aside"
    if isinstance(node, StaticTable):
        return f"the {node.title} may change between attempts"
    if isinstance(node, Query) and plan.states[node.state].static:
        return f"{node.title} asks {node.state}, a static state, which may change between attempts"
    return None


def _why_it_is_wrong(plan: Plan, node: Node) -> Verdict | None:
    """Say why a node may see, in a replay, what the lost attempt has written; None: it does not.

    Only an opaque state still has the values from before its last batch.
    """
    match node:
        case Query():
            return _why_an_answer_is_wrong(plan, node)
        case Update(updating=UpdateWith(operation=AppendRows())):
            return None  # it reads nothing
        case Update(updating=UpdateWith(keys=None)) if _is_transactional(plan, node):
            why = f"{node.title} may read values there {_LOST}, for it does not declare its keys"
            return Verdict(False, why, f"Make {node.state} opaque, or declare the updater's keys")
        case NewValues(parents=(Update(updating=UpdateWith()) as update,)):
            if _is_transactional(plan, update):
                why = f"what {update.title} emits may come of values there {_LOST}"
                return Verdict(False, why, f"Make {update.state} opaque")
    return None


def _is_transactional(plan: Plan, update: Update) -> bool:
    return plan.states[update.state].factory.kind is StateKind.TRANSACTIONAL


def _why_an_answer_is_wrong(plan: Plan, query: Query) -> Verdict | None:
    spec = plan.states[query.state]
    if spec.static:
        same = _updated_at_the_place_of(plan, spec)
        if same is None:
            return None
        why = (
            f"{query.title} asks {spec.name} as a static state, but it is {same}, which is updated "
            "here: the answers may hold the batch itself, or lack those before it"
        )
        return Verdict(False, why, f"Ask {same} itself, whose answers hold the batches before")
    update = plan.updates.get(query.state)
    if update is None or spec.factory.kind is not StateKind.TRANSACTIONAL:
        return None
    if update in ancestors(query):
        return None  # all of this batch is in the answers, in a replay too
    return Verdict(
        False,
        f"{query.title} asks {query.state}, a transactional state that is updated here too, and "
        f"may find values there {_LOST}",
        f"Make {query.state} opaque: it keeps the values from before the batch",
    )


_LOST = "that a lost attempt at the same batch wrote"


def _updated_at_the_place_of(plan: Plan, static: StateSpec) -> str | None:
    """Return the state that is updated where a static one is read, if there is one."""
    location = static.factory.location()
    for name in plan.updates:
        if location is not None and plan.states[name].factory.location() == location:
            return name
    return None


def kind_name(kind: StateKind | None) -> str:
    """Return a kind of state in words."""
    return "the user's own, and promises nothing" if kind is None else kind.value
