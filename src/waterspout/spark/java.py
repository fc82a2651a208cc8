"""Is there a Java that Spark can run on? Asked before a JVM is started, to say it plainly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from waterspout.errors import JavaError

__all__ = ["require_java"]

_WANTED = 17
_REMEDY = (
    f"Spark needs Java {_WANTED} or newer: install a JDK and set JAVA_HOME, or run `make java` "
    "on Debian and Ubuntu."
)


def require_java() -> int:
    """Return the major version of the Java that Spark will use, or raise."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        raise JavaError(f"There is no Java here ({java or 'not on the PATH'}). {_REMEDY}")
    try:
        answer = subprocess.run(  # noqa: S603  (the java that Spark itself would start)
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} cannot be run ({error}). {_REMEDY}") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if not match:
        raise JavaError(f"{java} does not say its version. {_REMEDY}")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < _WANTED:
        raise JavaError(f"{java} is Java {major}. {_REMEDY}")
    return major
