"""Runs the code of notebooks without Jupyter: one namespace, cell after cell, as a kernel would.

`python -m tests.docs.notebooks docs/notebooks/*.ipynb` runs them and stores what they print.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def ran(path: Path) -> list[str]:
    """Run a notebook in the current folder; return what each cell of code prints and shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [
        _printed("".join(cell["source"]), names, f"{path.name}, cell {number}")
        for number, cell in enumerate(cells(path), 1)
        if cell["cell_type"] == "code"
    ]


def stored(path: Path) -> list[str]:
    """Return what the notebook says that its cells print."""
    return [
        "".join("".join(output["text"]) for output in cell["outputs"])
        for cell in cells(path)
        if cell["cell_type"] == "code"
    ]


def _printed(source: str, names: dict[str, Any], where: str) -> str:
    body = ast.parse(source, where).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(ast.Module(body, []), where, "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if shown is not None:
                print(repr(shown))
    return out.getvalue()


def main() -> None:
    """Run notebooks and store what they print."""
    for name in sys.argv[1:]:
        path = Path(name).absolute()
        document = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            try:
                printed = iter(ran(path))
            finally:
                os.chdir(before)
        for cell in document["cells"]:
            if cell["cell_type"] == "code":
                text = next(printed)
                lines = text.splitlines(keepends=True)
                output = {"name": "stdout", "output_type": "stream", "text": lines}
                cell["outputs"] = [output] if text else []
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{path.name}: stored", file=sys.stderr)


if __name__ == "__main__":
    main()
