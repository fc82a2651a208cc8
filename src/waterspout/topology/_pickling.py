"""Pickling of components, and finding the attribute that keeps one from being pickled.

What travels to Spark's workers is pickled by the copy of cloudpickle that they have: pyspark's.
It is loaded when it is needed, so that describing a topology needs no Spark.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from waterspout.errors import NotPicklableError

__all__ = ["culprit", "dumps", "names_what_workers_lack", "require_picklable"]


def dumps(thing: Any, reducers: Mapping[type, Callable[[Any], Any]] | None = None) -> bytes:
    """Pickle anything, functions and classes of `__main__` included; some types in ways given."""
    from pyspark import cloudpickle

    buffer = io.BytesIO()
    pickler = cloudpickle.CloudPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
    if reducers:
        # By the base class: an attribute of cloudpickle's own class stands before that of the C
        # object, which alone is looked at.
        table = ChainMap(dict(reducers), pickler.dispatch_table)
        pickle.Pickler.dispatch_table.__set__(pickler, table)  # type: ignore[attr-defined]
    pickler.dump(thing)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def names_what_workers_lack(pickled: bytes) -> bool:
    """Whether something in it is named only, in a module that workers cannot import.

    Those are the user's own script, and what `waterspout run` has loaded. May be true of data that
    has the name of such a module as a text.
    """
    cloudpickle = sys.modules.get("pyspark.cloudpickle")
    loaded = () if cloudpickle is None else cloudpickle.list_registry_pickle_by_value()
    return any(_names_module(name.encode(), pickled) for name in ("__main__", *loaded))


def _names_module(name: bytes, pickled: bytes) -> bool:
    """Whether a text in it is the name of a module, or of one inside it."""
    alone = pickle.SHORT_BINUNICODE + len(name).to_bytes(1, "little") + name
    inside = name + b"."
    at = pickled.find(inside)
    # The text must begin there: of `waterspout.waves`, a module `waves` is not the parent.
    while at >= 0 and pickled[at - 2 : at - 1] != pickle.SHORT_BINUNICODE:
        at = pickled.find(inside, at + 1)
    return at >= 0 or alone in pickled


def require_picklable(thing: Any, title: str) -> bytes:
    """Return the pickled form of a component, or raise which attribute is in the way."""
    try:
        return dumps(thing)
    except Exception as error:
        raise NotPicklableError(
            title, culprit(getattr(thing, "__dict__", {})), str(error)
        ) from error


def culprit(attributes: Mapping[str, Any]) -> str | None:
    """Return the first attribute that cannot be pickled."""
    for name, value in attributes.items():
        try:
            dumps(value)
        except Exception:
            return str(name)
    return None
