"""All suites in one class, for a store author to inherit from."""

from __future__ import annotations

from waterspout.testing.conformance.combining import CombineSuite
from waterspout.testing.conformance.contract import ContractSuite
from waterspout.testing.conformance.growing import GrowingSuite
from waterspout.testing.conformance.heads import HeadSuite
from waterspout.testing.conformance.losses import LossSuite
from waterspout.testing.conformance.network import NetworkSuite
from waterspout.testing.conformance.outside import OutsideSuite
from waterspout.testing.conformance.scanning import ScanSuite
from waterspout.testing.conformance.semantics import SemanticsSuite
from waterspout.testing.conformance.typing import TypesSuite
from waterspout.testing.conformance.witnesses import WitnessSuite
from waterspout.testing.conformance.zombies import ZombieSuite

__all__ = ["StateConformance"]


class StateConformance(
    ContractSuite,
    SemanticsSuite,
    HeadSuite,
    OutsideSuite,
    ZombieSuite,
    LossSuite,
    ScanSuite,
    CombineSuite,
    TypesSuite,
    WitnessSuite,
    GrowingSuite,
    NetworkSuite,
):
    """Everything that a store must do, and that a store with a fence must refuse.

    `make_backing` returns a new, empty store each time it is called. Everything else may be
    left as it is (see `StoreHooks`): `reopen`, `make_int_backing`, `make_recipe`, `lose_records`,
    `proxy`, `commit_request`, `many`, `odd_keys`, `keeps_removed`, `is_durable`. What a test needs
    beside that, such as a server, comes from a fixture:

            @pytest.fixture(autouse=True)
            def _server(self, my_server):
                self.server = my_server

    Tests of a fence, of `scan` or of a proxy are skipped for a store that has none; the reason
    of each skip says what is then not promised.
    """
