"""Examples in docstrings become blocks of code on the site: an extension of Griffe.

A docstring has its examples as Python's doctest reads them, `>>>` at the beginning of a line. In
Markdown that would be a quotation.
"""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["Examples", "fenced"]


class Examples(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe calls it with each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Return the text with a fence around each run of examples, which ends at a blank line.

    >>> print(fenced("One.\n\n>>> 1 + 1\n2\n").replace("`", "'"))
    One.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
