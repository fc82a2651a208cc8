"""Compare what is installed with `requirements.lock`, and look for vulnerabilities that are known.

    python scripts/audit.py [path to pip-audit]

Ends with 0 if all is well, with 1 if something is wrong, and with 2 if it could not be found out:
the database of vulnerabilities was not reached, or does not know a package. That is not "none".
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
FINE, WRONG, UNKNOWN = 0, 1, 2


class Pin(NamedTuple):
    """A package of the lock; `marker` says where it is needed, empty for everywhere."""

    version: str
    hashes: tuple[str, ...]
    marker: str


def read_lock(text: str) -> dict[str, Pin]:
    """Return the packages of a lock by name; raise ValueError at a line that is not understood."""
    pins: dict[str, Pin] = {}
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        words = re.fullmatch(r"([\w.-]+)==(\S+)(?:\s*;\s*(.*?))?((?:\s+--hash=\S+)*)\s*", line)
        if words is None:
            raise ValueError(f"{line[:100]!r} is not a package with its version and hashes")
        hashes = tuple(re.findall(r"--hash=(\S+)", words[4]))
        pins[canonical(words[1])] = Pin(words[2], hashes, words[3] or "")
    return pins


def canonical(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def mismatches(pins: Mapping[str, Pin], installed: Mapping[str, str]) -> list[str]:
    """Say what of the lock is without a hash, not installed, or in another version."""
    found = [f"{name}: no sha256 hash" for name, pin in pins.items() if not _is_hashed(pin)]
    for name, pin in pins.items():
        have = installed.get(name)
        if have is None and not pin.marker:
            found.append(f"{name}: not installed; the lock has {pin.version}")
        elif have not in (None, pin.version):
            found.append(f"{name}: {have} is installed; the lock has {pin.version}")
    return found


def _is_hashed(pin: Pin) -> bool:
    return bool(pin.hashes) and all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in pin.hashes)


def judged(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the vulnerabilities of a report of pip-audit, and what it did not find out about."""
    bad, unknown = [], []
    for package in report["dependencies"]:
        name = package["name"]
        if "skip_reason" in package:
            unknown.append(name)
        for known in package.get("vulns", ()):
            mended = ", ".join(known.get("fix_versions", ())) or "no version yet"
            bad.append(f"{name} {package['version']}: {known['id']}, mended in {mended}")
    return bad, unknown


def installed_here() -> dict[str, str]:
    """Return the versions of all packages of this Python."""
    return {canonical(d.metadata["Name"]): d.version for d in metadata.distributions()}


def audited(tool: str) -> int:
    """Ask pip-audit, tell what it says, and return how it went."""
    command = [tool, "-r", str(LOCK), "--disable-pip", "--require-hashes", "-f", "json"]
    done = subprocess.run(  # noqa: S603  (what the Makefile has installed)
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    try:
        bad, unknown = judged(json.loads(done.stdout))
    except (ValueError, KeyError):
        print(f"NOT AUDITED: pip-audit could not do its work: {done.stderr.strip()[-500:]}")
        return UNKNOWN
    for line in bad:
        print(f"VULNERABLE: {line}")
    if unknown:
        print(
            f"NOT AUDITED: the database of vulnerabilities told nothing of {len(unknown)} packages "
            f"({', '.join(unknown[:5])}...). Run this where it can be reached."
        )
    if not bad and not unknown:
        print("no vulnerabilities are known")
    return WRONG if bad else UNKNOWN if unknown else FINE


def main(arguments: list[str]) -> int:
    """Compare, ask, and return how it went."""
    pins = read_lock(LOCK.read_text(encoding="utf-8"))
    wrong = mismatches(pins, installed_here())
    for line in wrong:
        print(f"LOCK: {line}")
    if not wrong:
        print(f"{len(pins)} packages are locked with hashes, and installed as they are locked")
    outcome = audited(arguments[0]) if arguments else FINE
    return WRONG if wrong else outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
