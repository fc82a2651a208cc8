"""A plan over other numbers of partitions, while it runs. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from waterspout.errors import ConfigError
from waterspout.trident.plan.nodes import Node, Update
from waterspout.trident.plan.partitions import root_of
from waterspout.trident.plan.plan import Plan, Shape

__all__ = ["rebalanced"]


def rebalanced(plan: Plan, parallelism: Mapping[str, int]) -> Plan:
    """Return the plan with other numbers of partitions for the groups of named operations.

    As `parallelism_hint` there, in place of what was given. Refused where the number shows in
    the results, and where the partitions of a state follow from it.
    """
    for name, n in parallelism.items():
        plan = _with_width(plan, _named(plan, name), n)
    return plan


def _named(plan: Plan, name: str) -> Node:
    found = [node for node in plan.nodes if node.name == name]
    # Several of one group will do: where bad rows are put aside, a node is made into some.
    if len({root_of(node) for node in found}) > 1:
        raise ConfigError(
            f"{plan.name} has several operations {name!r}; give one a name of its own"
        )
    if found:
        return found[0]
    if name in plan.states:
        raise ConfigError(
            f"{name} is a state: its number of partitions is part of what is stored, and is not "
            "changed while it runs. A deploy may change it: docs/growing.md"
        )
    known = sorted({node.name for node in plan.nodes if node.name})
    has = f"it has {', '.join(known)}" if known else "none of its operations has a name"
    raise ConfigError(f"there is no operation {name!r} in {plan.name}; {has} (stream.name(...))")


def _with_width(plan: Plan, node: Node, n: int) -> Plan:
    root = root_of(node)
    group = [one for one in plan.nodes if root_of(one) is root]
    for one in group:
        own = isinstance(one, Update) and plan.states[one.state].shape is Shape.OWN
        if own or one.shows_partitions:
            raise ConfigError(
                f"{node.title} runs on the same partitions as {one.title}, whose results depend on "
                "their number: it cannot be changed while it runs"
            )
    others = {number: hint for number, hint in plan.hints.items() if _is_not_in(group, number)}
    changed = replace(plan, hints={**others, node.number: n})
    changed.require_partitions()
    return changed


def _is_not_in(group: list[Node], number: int) -> bool:
    return all(one.number != number for one in group)
