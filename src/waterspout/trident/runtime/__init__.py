"""What runs where the tuples are: operations over Arrow data.

The same code on Spark's workers, in the driver, and in the in-process engine.
"""

__all__: list[str] = []
