"""Running on Spark: the only package that imports pyspark."""

__all__: list[str] = []
