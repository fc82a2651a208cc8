"""How nodes become DataFrames: one function for each kind of node, found by its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from waterspout import faults
from waterspout.config import Config
from waterspout.spark.tasks import TaskSetting
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.trident.plan.exchange import Exchange
from waterspout.trident.plan.lowering import Lowerings
from waterspout.trident.plan.nodes import Node
from waterspout.trident.plan.plan import Plan

__all__ = ["Building", "Lowering", "lowers"]


@dataclass(frozen=True)
class Building:
    """What a lowering may know: the plan, the attempt, and how the node's rows are to move."""

    spark: SparkSession
    plan: Plan
    conf: Config
    attempt: TransactionAttempt
    exchanges: tuple[Exchange, ...] = ()
    no_requests: DataFrame | None = None
    """Stands for the requests of all batches in which nobody asks for a dead letter."""

    casts: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    """Which columns of an expression have another type than the stream says; filled once."""

    @property
    def exchange(self) -> Exchange | None:
        """How rows move on their way into the node; None: they stay where they are."""
        return next((one for one in self.exchanges if not one.behind), None)

    def setting(self, node: Node | None = None) -> TaskSetting:
        """Return what tasks of a node must know."""
        plan = faults.current_plan()
        width = None if node is None else self.plan.width_of(node)
        text = None if plan is None else plan.to_json()
        return TaskSetting(self.conf, self.attempt.txid, width, text, self.attempt.attempt_id)


Lowering = Callable[[Any, Sequence[DataFrame], Building], DataFrame]
"""From a node and the frames of its parents to the node's own frame."""

lowers: Lowerings[Lowering] = Lowerings("on Spark")
"""Registers what nodes of some kinds become on Spark."""
