"""Plans that are made for one batch and filled in with the files of those that follow.

To describe a batch to Spark is half of the time of a small one, and from batch to batch only the
list of files differs. So the plan of the first one is kept (`templates`), and its one leaf, the
files, is replaced. What is run is what `schedule` says, as ever.

Only in a classic session, and only where nothing else can differ between batches; where anything
is not as expected, batches are described one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from waterspout import faults
from waterspout._config import Config
from waterspout.spark.reads import tasks_to_read
from waterspout.spark.session import SparkRuntime
from waterspout.spark.templates import JavaPlans, PlanTemplate, but_first
from waterspout.spouts._reads import FilesRead, Read
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Keep,
    Mapped,
    Node,
    Project,
    Repartition,
    Route,
    Source,
)
from waterspout.trident.plan.schedule import (
    CollectRows,
    Derive,
    Facts,
    KeepRows,
    ReadSource,
    Step,
)

__all__ = ["Filled", "PreparedPlans", "only_files_differ"]

log = logging.getLogger(__name__)

_ALIKE = (Each, Mapped, Keep, Project, Aggregate, Repartition)
"""Kinds of nodes that become the same in every batch, if they run in the JVM."""

_LISTED = "InMemoryFileIndex"
"""The class of Spark that lists files which are given by name."""

_BETWEEN = "\0"
"""What no name of a file has in it."""


def only_files_differ(steps: Sequence[Step]) -> bool:
    """Whether batches with these steps may have one plan, if they read files.

    The rows of one source are described, and computed once, at the end.
    """
    *described, last = steps
    reads = [step for step in described if isinstance(step, ReadSource)]
    if len(reads) != 1 or reads[0].node.hidden or any(step.only_aside for step in steps):
        return False
    derived = [step for step in described if step is not reads[0]]
    return isinstance(last, (CollectRows, KeepRows)) and all(map(_is_alike, derived))


def _is_alike(step: Step) -> bool:
    # Functions in Python are told which batch it is only for the sake of kill points.
    alone = isinstance(step, Derive) and not step.chain and _becomes_alike(step.node)
    return alone or _in_python(step)


def _in_python(step: Step) -> bool:
    return isinstance(step, Derive) and bool(step.chain)


def _becomes_alike(node: Node) -> bool:
    by_batch = isinstance(node, Repartition) and node.route is Route.BATCH_GLOBAL
    return isinstance(node, _ALIKE) and node.is_native and not by_batch


@dataclass(slots=True)
class _Template:
    """An analysed plan with one leaf that reads files, and what another one is made of."""

    plan: PlanTemplate
    relation: Any
    format: tuple[Any, ...]
    """How files are read: the schema, Spark's class for the format, its options."""

    declared: Any
    schema: pa.Schema | None = None
    """Of the rows that it gives, once some have come."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The frame of one batch, made from the plan of another."""

    frame: DataFrame
    template: _Template

    def to_arrow(self) -> pa.Table:
        """Compute the rows and bring them into the driver."""
        schema = self.template.schema
        if schema is None:
            table = self.frame.toArrow()
            self.template.schema = table.schema
            return table
        # `toArrow` would ask for the schema once more, and for two settings.
        batches = self.frame._collect_as_arrow()  # type: ignore[operator]
        return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


Users = Callable[[], DataFrame]
"""What a plan does with the rows of its source, done with no rows."""


class PreparedPlans:
    """The prepared plans of a run. Several threads may use them at once."""

    def __init__(self, runtime: SparkRuntime, conf: Config) -> None:
        self._runtime = runtime
        self._conf = conf
        self._alike: dict[Facts, bool] = {}
        self._seen: set[Hashable] = set()
        self._first: dict[Hashable, tuple[Any, Users]] = {}
        """Plans that nobody has looked into yet."""
        self._templates: dict[Hashable, _Template | None] = {}

    def key(
        self, facts: Facts, steps: Sequence[Step], reads: Mapping[Source, Read]
    ) -> Hashable | None:
        """Return what batches have in common whose plans differ only in their files.

        None: this one has a plan of its own.
        """
        if self._runtime.is_connect or len(reads) != 1:
            return None
        (read,) = reads.values()
        if not isinstance(read, FilesRead) or not read.paths or read.too_long:
            return None
        if any(name.lower() == "basepath" for name in read.options):
            return None  # of folders below it Spark makes columns
        if facts not in self._alike:
            self._alike[facts] = only_files_differ(steps)
        if not self._alike[facts]:
            return None
        if faults.current_plan() is not None and any(_in_python(step) for step in steps):
            return None
        options = tuple(sorted(read.options.items()))
        tasks = tasks_to_read(self._runtime, self._conf, read)
        return facts, read.format, read.schema, options, read.malformed_are(self._conf), tasks

    def filled(self, key: Hashable | None, read: Read) -> Filled | None:
        """Return the frame of a batch from the plan of one before; None if there is none."""
        if key is None or not isinstance(read, FilesRead):
            return None
        try:
            if (first := self._first.pop(key, None)) is not None:
                self._templates[key] = self._template(*first)
            template = self._templates.get(key)
            return None if template is None else Filled(self._fill(template, read.paths), template)
        except Exception:
            # If it is the files, a plan of its own will fail as well, and say why. If it is the
            # plan, this is another Spark than we know, and nothing is kept.
            log.debug("a prepared plan could not be filled in", exc_info=True)
            return None

    def remember(self, key: Hashable | None, frame: DataFrame, users: Users) -> None:
        """Keep the plan of a batch for those to come.

        It is looked into when the second comes: many a run has only one, with all that waits.
        """
        if key is not None and key not in self._seen:
            self._seen.add(key)
            self._first[key] = frame._jdf.logicalPlan(), users

    def _template(self, plan: Any, users: Users) -> _Template | None:
        # Spark draws the seeds of random numbers when it analyses: they would be those of all
        # batches. What reads the files may not be deterministic either, but draws nothing.
        if not plan.deterministic() and not users()._jdf.logicalPlan().deterministic():
            return None
        template = PlanTemplate.of(plan)
        if template is None or _kind(template.leaf) != "LogicalRelation":
            return None
        relation, java = template.leaf.relation(), self._java
        if _kind(relation) != "HadoopFsRelation" or _kind(relation.location()) != _LISTED:
            return None
        if not relation.partitionSchema().isEmpty():  # names of folders are columns, too
            return None
        declared = java.option.apply(relation.dataSchema())
        return _Template(template, relation, but_first(relation), declared)

    def _fill(self, template: _Template, paths: Sequence[str]) -> DataFrame:
        """Return the frame of a batch.

        The files are listed by the class that lists those of `load`, which would beforehand look
        for the format among all classes, twice, and for patterns in the names.
        """
        java, options = self._java, template.format[-1]
        names = java.between_names.split(_BETWEEN.join(paths))  # in one call, however many
        files = java.as_seq(java.as_paths(names))
        session = java.plans.session
        listed = java.listed(
            session, files, options, template.declared, java.no_cache, java.none, java.none
        )
        relation = template.relation.copy(listed, *template.format, session)
        # With the ids of its columns, above all, which the plan uses.
        leaf = template.plan.leaf.copy(relation, *template.plan.rest)
        return java.plans.filled(template.plan, leaf)

    @cached_property
    def _java(self) -> _Java:
        return _Java.of(self._runtime)


@dataclass(frozen=True, slots=True)
class _Java:
    """What is called in the JVM, looked up once."""

    plans: JavaPlans
    listed: Any
    no_cache: Any
    option: Any
    none: Any
    between_names: Any
    as_paths: Any
    as_seq: Any

    @classmethod
    def of(cls, runtime: SparkRuntime) -> _Java:
        jvm: Any = runtime.spark._jvm
        sources = jvm.org.apache.spark.sql.execution.datasources
        return cls(
            plans=JavaPlans.of(runtime),
            listed=getattr(sources, _LISTED),
            no_cache=getattr(getattr(sources, "NoopCache$"), "MODULE$"),
            option=jvm.scala.Option,
            none=jvm.scala.Option.empty(),
            between_names=jvm.java.util.regex.Pattern.compile(_BETWEEN),
            as_paths=jvm.org.apache.hadoop.util.StringUtils.stringToPath,
            as_seq=jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray,
        )


def _kind(found: Any) -> str:
    return str(found.getClass().getSimpleName())
