"""The lock: every package with its version and hashes; and what an audit says."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load(path: Path):
    spec = importlib.util.spec_from_file_location("audit", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


audit = load(ROOT / "scripts" / "audit.py")
LOCKED = audit.LOCK.read_text(encoding="utf-8")


def test_every_package_is_locked_with_hashes():
    pins = audit.read_lock(LOCKED)

    assert audit.mismatches(pins, {name: pin.version for name, pin in pins.items()}) == []


def test_all_that_the_project_needs_is_in_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]

    names = {audit.canonical(re.match(r"[\w.-]+", line)[0]) for line in wanted}

    assert names - audit.read_lock(LOCKED).keys() == set()


def test_no_host_is_in_the_lock():
    assert re.findall(r"\w+://|--index|--find-links|@ ", LOCKED) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rich==1.0", "rich: no sha256 hash"),
        (f"rich==1.0 --hash=md5:{'a' * 32}", "rich: no sha256 hash"),
        (f"rich==2.0 --hash=sha256:{'a' * 64}", "rich: 1.0 is installed; the lock has 2.0"),
        (f"poor==2.0 --hash=sha256:{'a' * 64}", "poor: not installed; the lock has 2.0"),
        (f"poor==2.0 ; python_version < '3' \\\n --hash=sha256:{'a' * 64}", None),
    ],
)
def test_what_does_not_match_is_told(line, said):
    found = audit.mismatches(audit.read_lock(f"# made\n{line}\n"), {"rich": "1.0"})

    assert found == ([] if said is None else [said])


@pytest.mark.parametrize("line", ["rich", "rich>=1", "rich @ file:///x", "-r other.txt"])
def test_a_line_that_pins_nothing_is_an_error(line):
    with pytest.raises(ValueError, match="is not a package with its version"):
        audit.read_lock(line)


KNOWN = {"name": "rich", "version": "1.0", "vulns": [{"id": "X-1", "fix_versions": ["1.1"]}]}
CLEAN = {"name": "rich", "version": "1.0", "vulns": []}
SKIPPED = {"name": "poor", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([CLEAN], audit.FINE, "no vulnerabilities are known"),
        ([KNOWN, SKIPPED], audit.WRONG, "VULNERABLE: rich 1.0: X-1, mended in 1.1"),
        ([CLEAN, SKIPPED], audit.UNKNOWN, "NOT AUDITED: the database of vulnerabilities"),
        (None, audit.UNKNOWN, "NOT AUDITED: pip-audit could not do its work: no network"),
    ],
)
def test_what_was_not_found_out_does_not_pass_for_none(packages, code, said, tmp_path, capsys):
    tool = tmp_path / "pip-audit"
    answer = "" if packages is None else json.dumps({"dependencies": packages})
    tool.write_text(f"#!/bin/sh\necho '{answer}'\necho 'no network' >&2\n")
    tool.chmod(0o755)

    assert audit.audited(str(tool)) == code

    assert said in capsys.readouterr().out
