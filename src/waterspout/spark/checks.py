"""What is checked before a run: guarantees asked for, stores, pickling, and the plan itself."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException

from waterspout.arrow import arrow_schema
from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.topology.pickling import require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.explain import refuse_weak
from waterspout.trident.plan.native import is_native
from waterspout.trident.plan.nodes import (
    Each,
    Keep,
    Mapped,
    NewValues,
    Node,
    Project,
    Query,
    Source,
    Update,
)
from waterspout.trident.plan.plan import Plan, operations

__all__ = ["check_plan", "dry_compile"]


def check_plan(plan: Plan, conf: Config) -> None:
    """Check all that needs no Spark; writes nothing."""
    if conf.strict:
        refuse_weak(plan)
    for node in plan.nodes:
        for operation in [*operations(node), getattr(node, "grouping", None)]:
            if operation is not None and not is_expression(operation):
                require_picklable(operation, node.title)
    for spec in plan.states.values():
        require_picklable(spec.factory, f"the factory of {spec.name}")
        spec.factory.check()
        chosen = not (spec.static or spec.hidden)
        if spec.factory.driver_only and conf.commit_in == "tasks" and chosen:
            raise TopologyError(
                f"commit_in='tasks' is not possible with {spec.name}, which only the driver "
                "reaches; leave commit_in at 'auto', or use a state on a server"
            )
    for node in plan.sources.values():
        node.spout.check()


def dry_compile(plan: Plan, conf: Config, runtime: SparkRuntime) -> None:
    """Build every DataFrame over empty inputs, so that a bad expression shows now."""
    compiler = Compiler(runtime, plan, conf)
    made: dict[Node, Any] = {}
    for node in plan.nodes:
        if isinstance(node, (Source, Update, NewValues)) or (
            isinstance(node, Query) and not compiler.is_asked_by_tasks(node)
        ):
            made[node] = compiler.from_table(arrow_schema(node.schema).empty_table())
        else:
            made[node] = _built(node, plan, compiler, made)


def _built(node: Node, plan: Plan, compiler: Compiler, made: dict[Node, Any]) -> Any:
    try:
        frame = compiler.frame(node, made, TransactionAttempt(1, 0))
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
    in_python = isinstance(node, (Each, Keep, Mapped)) and not is_native(node)
    fewer = in_python or isinstance(node, Project)
    return plan.kept[node].names if fewer else node.schema.names
