"""The header of a state in its store: of which format, kind and columns it is, and its head.

Every store keeps one header for each state, and says only where: a row of a table, a hash, an
item, the first line of a file. What is in it, how it is checked, and in which words a state that
is not ours is refused, is said here. Stores written by an earlier version stay readable: a
change of these fields needs a new `FORMAT` and a way to read the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._safe_repr import with_article
from waterspout._schema import Schema
from waterspout._serde import checksum
from waterspout.errors import (
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    NewerFormatError,
)
from waterspout.state._head import Head

__all__ = ["FORMAT", "ROW", "StoreHeader", "refuse_newer"]

FORMAT = 1
ROW = ("format", "kind", "layout", "head", "checksum")


@dataclass(frozen=True)
class StoreHeader:
    """What the header of one state must say.

    `title` is what errors call the state. `unit` is what to take another of where something else
    is in its place: a table, a prefix, a folder. `summed` are the fields that the checksum covers,
    in order; `state` among them means kind and layout as one text. `by_column` if the store keeps
    each column of a value for itself.
    """

    title: str
    unit: str
    kind: str
    layout: str
    summed: tuple[str, ...] = ("kind", "layout", "head")
    by_column: bool = False

    @property
    def state(self) -> str:
        """Kind and layout as one text."""
        return f"{self.kind}, {self.layout}"

    def fields(self, head: Head | None, **more: Any) -> dict[str, Any]:
        """Return the fields of a header with this head; `more` is what the store adds to them."""
        text = "" if head is None else head.to_text()
        named = {"format": FORMAT, "kind": self.kind, "layout": self.layout, "head": text, **more}
        return {**named, "checksum": self._sum(named)}

    def opened(self, fields: Mapping[str, Any], *, where: str = "") -> Head | None:
        """Return the head in a header; refuse one that is not this state's.

        `where` names the header if a state has several.
        """
        refuse_newer(fields["format"], self.title, self.unit)
        if fields["checksum"] != self._sum(fields):
            raise DamagedStoreError(f"the head of {self.title}{where} does not match its checksum")
        self.refuse_other(fields["kind"], fields["layout"])
        return Head.from_text(fields["head"]) if fields["head"] else None

    def row(self, head: Head | None) -> tuple[Any, ...]:
        """Return the header as the columns of a table."""
        return tuple(self.fields(head).values())

    def from_row(self, row: Sequence[Any] | None) -> Head | None:
        """Return the head in a row of such a table, if any; refuse one that is not this state's."""
        return None if row is None else self.opened(dict(zip(ROW, row, strict=True)))

    def refuse_other(self, kind: str, layout: str) -> None:
        """Refuse a state of another kind, or of other columns; fewer of the same will do."""
        if kind == self.kind and (layout == self.layout or self.added_to(layout)):
            return
        array = ""
        if kind == self.kind and self.layout.startswith(f"{layout}, "):
            array = "An array that was the only value cannot be told from several values. "
        raise ForeignStoreError(
            f"{self.title}: this is {with_article(kind)} state of {layout}; this topology wants "
            f"{with_article(self.kind)} state of {self.layout}. {array}Use another {self.unit}."
        )

    def added_to(self, layout: str) -> int:
        """Return how many columns have been added since a header of this layout was written.

        The next move of the head writes the new one. Records keep the columns that they have until
        they are written again (`BatchedMap`).
        """
        if not self.layout.startswith(f"{layout}, "):
            return 0
        before = Schema.parse(layout.rpartition(" -> ")[2])
        if not self.by_column and len(before) == 1 and not _is_no_array(before.types[0]):
            return 0
        return len(Schema.parse(self.layout.rpartition(" -> ")[2])) - len(before)

    def foreign(self, what: str = "") -> ForeignStoreError:
        """Return the error for something in the state's place that has no header of ours."""
        return ForeignStoreError(
            f"{what or self.title} exists, but waterspout did not make it. Use another {self.unit}."
        )

    def moved(self, new: Head, found: Head | None = None) -> FencedError:
        """Return the error for a head that cannot be made `new`: it is not the expected one."""
        at = "" if found is None else f", and is at {found.stamp}{', committed' * found.committed}"
        return FencedError(
            f"{self.title}: another driver has moved the head; it was to go to {new.stamp}{at}"
        )

    def _sum(self, fields: Mapping[str, Any]) -> str:
        values = {"state": f"{fields['kind']}, {fields['layout']}", **fields}
        return checksum("|".join(str(values[name]) for name in self.summed))


def refuse_newer(form: Any, title: str, unit: str) -> None:
    """Refuse what a later version has written; an odd format is left to the checksum."""
    number = int(form) if isinstance(form, str) and form.isdecimal() else form
    if isinstance(number, int) and number > FORMAT:
        raise NewerFormatError(title, form, FORMAT, instead=f"another {unit}")


def _is_no_array(kind: str | None) -> bool:
    return kind is not None and not kind.startswith("array")
