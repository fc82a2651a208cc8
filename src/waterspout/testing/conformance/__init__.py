"""One suite for every store: implement `multi_get` and `multi_put`, then run it.

    from waterspout.testing import StateConformance

    class TestMyStore(StateConformance):
        def make_backing(self, kind):
            return MyStore(...)

A store of rows inherits from `RowsConformance`. Needs pytest and hypothesis; both classes say what
else a store may override.
"""

from pkgutil import iter_modules

from waterspout.errors import MissingDependencyError

try:
    import hypothesis as _hypothesis  # noqa: F401  (so that the error below names it)
    import pytest
except ImportError as error:
    raise MissingDependencyError(str(error.name), "dev") from error

# Must come before the imports: a failed assertion then shows both sides, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{found.name}" for found in iter_modules(__path__)))

from waterspout.testing.conformance.hooks import EQUAL_KEYS, ODD_KEYS  # noqa: E402
from waterspout.testing.conformance.rows import RowsConformance  # noqa: E402
from waterspout.testing.conformance.suite import StateConformance  # noqa: E402

__all__ = ["EQUAL_KEYS", "ODD_KEYS", "RowsConformance", "StateConformance"]
