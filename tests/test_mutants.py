"""The mutants of `make mutants` fit the code as it is now; trying them takes minutes."""

from __future__ import annotations

from tests.mutant_list import MUTANTS
from tests.mutants import PACKAGE, ROOT


def test_every_mutant_replaces_one_thing_and_names_tests_that_are_there():
    wrong = [
        f"{mutant.name}: {mutant.file}"
        for mutant in MUTANTS
        if not (ROOT / PACKAGE / mutant.file).exists()
        or (ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.old) != 1
        or not all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)
    ]

    assert wrong == []
