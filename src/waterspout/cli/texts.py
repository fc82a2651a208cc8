"""Text for people: numbers with their nouns, and what others wrote, made harmless."""

from __future__ import annotations

__all__ = ["counted", "harmless"]


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "wave"), counted(1200, "wave"), counted(2, "batch", "batches")
    ('1 wave', '1,200 waves', '2 batches')
    """
    return f"1 {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def harmless(text: str) -> str:
    r"""Return text on one line that cannot move the cursor, change colours or hide anything.

    >>> print(harmless("a \x1b[31mred\n[bold]line"))
    a \x1b[31mred\n[bold]line
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
