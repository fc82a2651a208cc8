"""Plans that are described to Spark once: as Spark has analysed them, with another leaf each time.

To describe what is done with some rows takes a call into the JVM for every step and every column,
and Spark analyses the whole after each of them. Where only the rows differ from batch to batch, or
from wave to wave, what was made of the first of them is kept, and its one leaf is replaced. (Spark
itself does so with the micro-batches of a stream.)

Only in a classic session. No other module knows the classes of Spark's plans by which it is done,
but for those of leaves that read files, which are in `prepared`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.pandas.types import from_arrow_schema

from waterspout.spark.session import SparkRuntime

__all__ = ["JavaPlans", "PlanTemplate", "TableTemplate", "but_first"]


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """An analysed plan with one leaf."""

    plan: Any
    leaf: Any
    rest: tuple[Any, ...]
    """What the leaf has beside its first part."""

    @classmethod
    def of(cls, plan: Any) -> PlanTemplate | None:
        """Return what to make plans of; None if this one has several leaves."""
        leaves = plan.collectLeaves()
        leaf = leaves.head()
        return cls(plan, leaf, but_first(leaf)) if leaves.size() == 1 else None


@dataclass(frozen=True, slots=True)
class JavaPlans:
    """What is called in the JVM to fill in a plan, looked up once."""

    session: Any
    of_rows: Any
    one_pair: Any
    """A map of one pair, which is a partial function as well: what to replace, and by what."""

    frame: Callable[[Any], DataFrame]

    @classmethod
    def of(cls, runtime: SparkRuntime) -> JavaPlans:
        """Look them up in a session's JVM."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        spark: Any = runtime.spark
        jvm = spark._jvm
        return cls(
            session=spark._jsparkSession,
            of_rows=jvm.org.apache.spark.sql.classic.Dataset.ofRows,
            one_pair=getattr(jvm.scala.collection.immutable, "Map$Map1"),
            frame=lambda found: ClassicFrame(found, spark),
        )

    def filled(self, template: PlanTemplate, leaf: Any) -> DataFrame:
        """Return a frame with the plan of a template and another leaf, of the same columns."""
        plan = template.plan.transformDown(self.one_pair(template.leaf, leaf))
        plan.setAnalyzed()  # it is, but for its leaf, which has the columns of the one before
        return self.frame(self.of_rows(self.session, plan))


class TableTemplate:
    """What is done with a table of the driver's, for tables that follow it.

    The plan is that of an empty table: it keeps no rows.
    """

    def __init__(
        self, runtime: SparkRuntime, schema: pa.Schema, use: Callable[[DataFrame], DataFrame]
    ) -> None:
        spark: Any = runtime.spark
        self._context, jvm = spark.sparkContext, spark._jvm
        self._java = JavaPlans.of(runtime)
        self._sql, self._server = jvm.PythonSQLUtils, jvm.ArrowIteratorServer
        self._schema = from_arrow_schema(schema).json()
        empty = self._java.frame(self._sent(schema.empty_table()))
        template = PlanTemplate.of(use(empty)._jdf.logicalPlan())
        assert template is not None, "it is made from one table"
        self._template = template
        self._columns = template.leaf.output()

    def filled(self, table: pa.Table) -> DataFrame:
        """Return the frame of a table: what was done with the first one."""
        sent = self._sent(table).logicalPlan()
        # It has columns of its own; the plan knows those of the first one.
        others = sent.otherCopyArgs()  # of a table that is large, and is an RDD in the JVM
        more = (others.apply(place) for place in range(others.size()))
        leaf = sent.copy(self._columns, *but_first(sent), *more)
        return self._java.filled(self._template, leaf)

    def _sent(self, table: pa.Table) -> Any:
        """Bring a table into the JVM, as `createDataFrame` does, less a dozen questions."""
        rows = self._context._serialize_to_jvm(
            table.to_batches(),
            ArrowStreamSerializer(),
            self._sql.readArrowStreamFromFile,
            self._server,
        )
        return self._sql.toDataFrame(rows, self._schema, self._java.session)


def but_first(found: Any) -> tuple[Any, ...]:
    """Return what a class of Spark's is made of, but for the first of it."""
    return tuple(found.productElement(place) for place in range(1, found.productArity()))
