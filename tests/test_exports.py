"""What the library shows: `__all__` equals reality, and examples hold."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

from waterspout.errors import MissingDependencyError

SRC = Path(__file__).parents[1] / "src"


def is_public(path: Path) -> bool:
    """Tell whether users may import from a file; `cli` has commands instead of names."""
    parts = path.relative_to(SRC / "waterspout").with_suffix("").parts
    names = parts[:-1] if parts[-1] == "__init__" else parts
    return not any(name.startswith("_") or name == "cli" for name in names)


# What users import from; each lists its names in `__all__`.
PUBLIC_MODULES = (
    "waterspout",
    "waterspout.errors",
    *(f"waterspout.{name}" for name in ("sinks", "spouts", "state", "testing", "topology")),
    *(f"waterspout.{name}" for name in ("transactional", "trident")),
    *(f"waterspout.spouts.{name}" for name in ("files", "fixed", "lines", "rabbitmq", "rate")),
    *(f"waterspout.state.{name}" for name in ("cassandra", "files", "memcached", "postgres")),
    *(f"waterspout.state.{name}" for name in ("redis", "sqlite")),
)

# Parameters that may be of any type, by name.
OF_ANY_TYPE = {
    **dict.fromkeys(
        ("default", "partitions", "rows", "values", "decode"),
        "values of tuples",
    ),
    **dict.fromkeys(
        ("finisher", "left", "read", "result", "right", "state", "updates", "value"),
        "what an aggregator makes of tuples, or a state keeps",
    ),
    **dict.fromkeys(
        ("known", "last", "metadata", "next_range", "position", "previous", "range"),
        "what a spout itself notes about a batch, as JSON",
    ),
    **dict.fromkeys(("ack_at_once", "msg_id"), "the id that a spout gives a message"),
    **dict.fromkeys(("arguments", "conf", "properties"), "settings of many types, by name"),
    "batch_id": "a txid, or the span of a window; an Aggregator may say for which it is",
    "spark": "a SparkSession of either kind; only waterspout.spark imports pyspark",
}

PUBLIC = [path for path in sorted((SRC / "waterspout").rglob("*.py")) if is_public(path)]


def test_all_exists_and_is_sorted() -> None:
    found = []
    for path in PUBLIC:
        names = declared(path)
        if names is None:
            found.append(f"{path}:1: no __all__")
        elif names != sorted(names, key=ruff_order):
            found.append(f"{path}:1: sort __all__ (`make format` does)")
        elif len(names) != len(set(names)):
            found.append(f"{path}:1: __all__ has a name twice")

    assert not found, "\n".join(found)


def test_every_exported_name_resolves() -> None:
    missing = [
        f"{path}:1: __all__ lists {name}, which the module does not have"
        for path in PUBLIC
        if (module := load(path)) is not None
        for name in declared(path) or []
        if not hasattr(module, name)
    ]

    assert not missing, "\n".join(missing)


def test_every_public_definition_is_exported() -> None:
    hidden = [
        f"{path}:{node.lineno}: {node.name} is neither in __all__ nor private"
        for path in PUBLIC
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and node.name not in (declared(path) or [])
    ]

    assert not hidden, "\n".join(hidden)


def test_examples_in_docstrings_hold() -> None:
    failed = [
        f"{path}:1: see the examples that failed above"
        for path in PUBLIC
        if (module := load(path)) is not None
        and doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    ]

    assert not failed, "\n".join(failed)


def test_no_parameter_that_users_see_is_of_any_type() -> None:
    found = {
        f"{module}.{where}({name}: {annotation})"
        for module in PUBLIC_MODULES
        for where, function in signatures(module)
        for name, annotation in function.__annotations__.items()
        if name != "return" and name not in OF_ANY_TYPE and mentions_any(str(annotation))
    }

    assert not found, "say what these take:\n" + "\n".join(sorted(found))


def signatures(name: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of a module, and the methods of its classes, that users may call."""
    module = load(SRC / Path(*name.split(".")) / "__init__.py")
    for exported in module.__all__ if module is not None else ():
        value = getattr(module, exported)
        if isinstance(value, FunctionType):
            yield exported, value
        elif isinstance(value, type):
            for method, inner in vars(value).items():
                function = getattr(inner, "__func__", inner)
                public = not method.startswith("_") or method == "__init__"
                if public and isinstance(function, FunctionType):
                    yield f"{exported}.{method}", function


def mentions_any(annotation: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "Any"
        for node in ast.walk(ast.parse(annotation, mode="eval"))
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def declared(path: Path) -> list[str] | None:
    """Return the literal value of `__all__`, None if there is none."""
    for node in tree_of(path).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                return list(ast.literal_eval(value))
    return None


def ruff_order(name: str) -> tuple[int, str]:
    """Order as ruff's RUF022 does: constants, classes, then everything else."""
    if len(name) > 1 and name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name


def load(path: Path) -> ModuleType | None:
    """Import the module of a file; None where what it needs is not installed."""
    parts = path.relative_to(SRC).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        return importlib.import_module(name)
    except MissingDependencyError:
        return None
