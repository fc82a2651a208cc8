"""With how many arguments a function of the user's can be called; asked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from waterspout.errors import TopologyError

__all__ = ["refuse_misfit", "refuse_misfit_methods", "takes"]


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments.

    >>> takes(lambda txid, previous: None, 3), takes(lambda txid, previous, target=None: None, 3)
    (False, True)
    """
    return _misfit(function, count) is None


def refuse_misfit(function: Callable[..., Any], count: int, where: str, given: str) -> None:
    """Refuse a function that cannot be called with so many arguments; `given` says which.

    >>> refuse_misfit(lambda a, b: a, 1, "each(f)", "the value of a")
    Traceback (most recent call last):
    waterspout.errors.TopologyError: each(f) is called with the value of a, but takes (a, b)
    """
    takes = _misfit(function, count)
    if takes is not None:
        raise TopologyError(f"{where} is called with {given}, but takes {takes}")


def refuse_misfit_methods(thing: object, where: str) -> None:
    """Refuse an object with a method that cannot be called as that of our class is.

    A class of the user's derives from one of ours, which says how its methods are called.
    """
    ours = [kind for kind in type(thing).__mro__ if kind.__module__.startswith("waterspout.")]
    theirs = [kind for kind in type(thing).__mro__ if kind not in ours]
    for kind in theirs:
        for name, method in vars(kind).items():
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            contract = next((vars(base)[name] for base in ours if name in vars(base)), None)
            if not inspect.isfunction(contract):
                continue
            wanted = [p.name for p in _positional(contract)]
            takes = _misfit(method, len(wanted))
            if takes is not None:
                raise TopologyError(
                    f"{where}: {kind.__name__}.{name} is called as {name}"
                    f"({', '.join(wanted[1:])}), but is written as def {name}{takes}"
                )


def _misfit(function: Callable[..., Any], count: int) -> str | None:
    """Return the arguments of a function that cannot be called with so many."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a builtin that does not show its arguments
    try:
        signature.bind(*[None] * count)
    except TypeError:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        return str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return None


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a method is always given."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return [p for p in found if p.kind in kinds and p.default is p.empty]
