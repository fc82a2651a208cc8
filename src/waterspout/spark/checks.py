"""What is checked before a run: guarantees asked for, stores, pickling, and the plan itself."""

from __future__ import annotations

from dataclasses import replace
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
from waterspout.trident.plan.costs import Case, usual_facts
from waterspout.trident.plan.explain import refuse_weak
from waterspout.trident.plan.nodes import Node, Project, RowNode
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import Derive, schedule

__all__ = ["check_plan", "dry_compile"]


def check_plan(plan: Plan, conf: Config) -> None:
    """Check all that needs no Spark; writes nothing."""
    if conf.strict:
        refuse_weak(plan)
    for node in plan.nodes:
        for operation in [*node.operations, getattr(node, "grouping", None)]:
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
    for step in schedule(plan, conf, usual_facts(plan, Case.COLLECTED)):
        if isinstance(step, Derive):
            for node in step.nodes:
                alone = () if not step.chain else (node,)
                made[node] = _built(replace(step, node=node, chain=alone), plan, compiler, made)
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
