"""What only Spark can tell of a plan before it runs: whether its DataFrames can be built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout.errors import TopologyError
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.plan.costs import Case, cost_of
from waterspout.trident.plan.nodes import Node, Project, RowNode
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import Derive

__all__ = ["dry_compile"]


def dry_compile(plan: Plan, conf: Config, runtime: SparkRuntime) -> None:
    """Build every DataFrame over empty inputs, so that a bad expression shows now."""
    compiler = Compiler(runtime, plan, conf)
    made: dict[Node, Any] = {}
    for step in cost_of(plan, conf, Case.COLLECTED).schedule:
        if isinstance(step, Derive):
            for node in step.nodes:
                alone = () if not step.chain else (node,)
                # Each node by itself: nothing is counted before the node that counts.
                one = replace(step, node=node, chain=alone, counts=None, adds_up=False)
                made[node] = _built(one, plan, compiler, made)
        elif step.node not in made:
            made[step.node] = compiler.from_table(arrow_schema(step.node.schema).empty_table())


def _built(step: Derive, plan: Plan, compiler: Compiler, made: dict[Node, Any]) -> Any:
    node = step.node
    try:
        frame = compiler.derived(step, made, TransactionAttempt(1, 0))
        columns = tuple(frame.columns)
    except AnalysisException as error:
        message = str(error).split("\n")[0]
        raise TopologyError(f"{node.title} does not fit its stream: {message}") from error
    if columns != _expected(node, plan):
        raise TopologyError(
            f"{node.title} gives {', '.join(columns)} where "
            f"{', '.join(node.schema.names)} is declared"
        )
    return frame


def _expected(node: Node, plan: Plan) -> tuple[str, ...]:
    """Return the columns that a node's frame has: in Python, fields that nobody reads are gone."""
    fewer = isinstance(node, RowNode) and (not node.is_native or isinstance(node, Project))
    return plan.kept[node].names if fewer else node.schema.names
