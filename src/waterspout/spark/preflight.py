"""What is checked before a run: guarantees asked for, stores, pickling, and the plan itself.

Only `dry_compile` needs Spark. All else is found out before a JVM is started or a file written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout.coordination.commit_protocol import verify_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.factory import coordination_store, volatile_store
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import TopologyError
from waterspout.spark.compiler import Compiler
from waterspout.spark.session import SparkRuntime
from waterspout.state._batched import BatchedMap
from waterspout.topology._pickling import require_picklable
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident._topology import TridentTopology
from waterspout.trident.isolation.rewriting import letters_location, with_letters
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.plan.costs import Case, cost_of
from waterspout.trident.plan.explain import refuse_weak
from waterspout.trident.plan.nodes import Node, Project, RowNode
from waterspout.trident.plan.plan import Plan
from waterspout.trident.plan.schedule import Derive
from waterspout.trident.runtime.states import open_headed_states
from waterspout.trident.windowing.store import WindowsFile

__all__ = ["Prepared", "check_plan", "dry_compile", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A topology that may run: its plan, its ledger's store, and states to move the heads of.

    `states` are named by their locations, which is what errors should name.
    """

    plan: Plan
    store: CoordinationStore
    folder: Path | None
    states: dict[str, BatchedMap[Any, Any]]

    def close(self) -> None:
        """Give up the connections."""
        for state in self.states.values():
            state.close()
        self.store.release()


def prepare(topology: TridentTopology, conf: Config) -> Prepared:
    """Return what is needed to run a topology, or raise what is wrong; writes nothing."""
    bare = topology.plan(conf)
    plan = with_letters(bare, conf, letters_location(bare, conf))
    check_plan(plan, conf)
    store, folder = _store(plan, conf)
    prepared = Prepared(plan, store, folder, {})
    try:
        for name, state in open_headed_states(plan, conf).items():
            prepared.states[plan.states[name].factory.location() or name] = state
        verify_topology(prepared.states, store.peek(), plan.name, plan.fingerprint())
        store.refuse_if_held()
    except BaseException:
        prepared.close()
        raise
    return prepared


def _store(plan: Plan, conf: Config) -> tuple[CoordinationStore, Path | None]:
    """Choose where the ledger is kept: as long-lived as the states are."""
    updated = [spec for spec in plan.states.values() if not (spec.static or spec.hidden)]
    if updated and all(spec.factory.volatile for spec in updated):
        locations = tuple(sorted(str(spec.factory.location()) for spec in updated))
        return volatile_store(plan.name, locations), None
    folder = None
    # A list of files that were read stays on this machine, and so do windows without a store and
    # dead letters.
    keeps_a_list = any(node.spout.needs_folder for node in plan.sources.values())
    has_letters = any(spec.hidden for spec in plan.states.values())
    if keeps_a_list or has_letters or any(isinstance(s.factory, WindowsFile) for s in updated):
        folder = conf.home_path().absolute() / plan.name
    store = coordination_store(plan.name, conf, folder)
    return store, store.folder if isinstance(store, EmbeddedStore) else folder


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
    for step in cost_of(plan, conf, Case.COLLECTED).schedule:
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
