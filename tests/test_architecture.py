"""The tree is the architecture: who may import whom, how large a thing may grow."""

from __future__ import annotations

import ast
import builtins
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from waterspout import errors

SRC = Path(__file__).parents[1] / "src"
ROOT = SRC / "waterspout"
MODULES = sorted(ROOT.rglob("*.py"))

# A part of the library may import itself and what stands before it.
ORDER = (
    *("errors", "_safe_repr", "_causes", "_plain", "_habits", "_signatures", "_tuples", "_schema"),
    *("_fitting", "_arrow", "_backoff", "_storm_keys", "_config", "_log_context"),
    *("_serde", "_letters", "faults", "_addresses", "_tls", "_own_files", "_connections"),
    "_kafka_servers",
    *("topology", "acking", "waves"),
    "transactional",
    "state",
    "spouts",
    "trident",
    "coordination",
    *("events", "spark"),
    "_run",
    *("sinks", "drpc", "metrics", "serving", "ui", "proving", "cli"),
    "testing",
)
# What travels to Spark's workers is pickled by the copy of cloudpickle that they have.
MAY_IMPORT_CLOUDPICKLE = ROOT / "topology" / "_pickling.py"

# Frames travel only through Spark's own channels, between our driver and our workers.
MAY_UNPICKLE = ROOT / "waves" / "frames.py"

# These tie the parts together, on demand.
MAY_IMPORT_ANYTHING = {"__init__", "__main__", "_run", "cli"}

# Each can run code of whoever wrote the bytes. Spark's own protocol needs them; we do not.
UNSAFE_CALLS = {
    *("eval", "exec", "builtins.eval", "builtins.exec"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("cloudpickle.load", "cloudpickle.loads"),
    *("marshal.load", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
}

MODULE_LINES_MAX = 600
INIT_LINES_MAX = 60
FUNCTION_LINES_MAX = 70

# Exceptions that never end a run, with what catches them, or that only tests raise.
NOT_IN_THE_TREE = {
    "FewerColumns": "PostgresMap reads with the columns that there are",
    "InjectedError": "faults.py raises it in place of an error that nobody foresaw",
    "NotAnswered": "the page shows it in place of a view, or above it",
    "LostWorker": "testing: in place of a worker's death",
    "OvertakenError": "FileState looks again and writes again",
    "Refusal": "serving answers its caller with it",
    "SimulatedCrash": "testing: in place of the driver's death",
    "Unanswered": "the ZooKeeper store looks whether the write was carried out",
    "_HeaderChanged": "a Redis state looks again and writes again",
    "_LostError": "the memcached client connects again and asks for the rest",
    "_Outrun": "PostgresMap runs its statement again",
    "_Unmade": "PostgresMap makes its table",
}


def test_every_module_has_a_position_in_the_order() -> None:
    known = {*ORDER, *MAY_IMPORT_ANYTHING}

    unknown = [f"{path}: {part_of(path)!r}" for path in MODULES if part_of(path) not in known]

    assert not unknown, listed("ORDER does not have these; add them", unknown)


def test_nothing_is_imported_from_further_down_the_order() -> None:
    upward = [
        f"{path}:{line}: {part} imports {name}, but {target} does not come before {part}"
        for path in MODULES
        if (part := part_of(path)) not in MAY_IMPORT_ANYTHING
        for name, line in imports_of(path)
        if (target := part_of_import(name)) is not None
        and target not in ORDER[: ORDER.index(part) + 1]
    ]

    assert not upward, listed("these import from further down", upward)


def test_only_the_spark_package_imports_pyspark() -> None:
    found = [
        f"{path}:{line}: imports {name}"
        for path in MODULES
        if part_of(path) != "spark"
        for name, line in imports_of(path)
        if name.split(".")[0] in {"pyspark", "py4j"}
        and not (name == "pyspark.cloudpickle" and path == MAY_IMPORT_CLOUDPICKLE)
    ]

    assert not found, listed(f"these belong in {ROOT / 'spark'}", found)


def test_a_module_stays_small() -> None:
    large = [
        f"{path}:{limit}: {lines} lines, {limit} at most; split it"
        for path in MODULES
        if (lines := len(path.read_text(encoding="utf-8").splitlines()))
        > (limit := INIT_LINES_MAX if path.name == "__init__.py" else MODULE_LINES_MAX)
    ]

    assert not large, listed("these have grown too large", large)


def test_a_function_stays_small() -> None:
    large = [
        f"{path}:{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} at most"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]

    assert not large, listed("these have grown too large", large)


def test_a_module_says_what_lives_there() -> None:
    silent = [f"{path}:1" for path in MODULES if not ast.get_docstring(tree_of(path))]

    assert not silent, listed("these have no module docstring", silent)


def test_nothing_read_from_outside_can_run_as_code() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path in MODULES
        if part_of(path) != "spark" and path != MAY_UNPICKLE
        for name, line in references_of(path)
        if name in UNSAFE_CALLS
    ]

    assert not found, listed("these run code from data", found)


def test_no_comment_draws_a_line() -> None:
    drawn = [
        f"{path}:{number}"
        for path in (*MODULES, *sorted(Path(__file__).parent.rglob("*.py")))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"\s*# [-=]{3,}", line)
    ]

    assert not drawn, listed("a section is a module or a class of its own, not a banner", drawn)


def test_no_two_classes_share_a_name() -> None:
    lines: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                lines.setdefault(node.name, []).append(f"{path}:{node.lineno}")

    twice = {name: found for name, found in lines.items() if len(found) > 1}

    assert not twice, "\n".join(f"{name}: {', '.join(twice[name])}" for name in twice)


def test_every_error_is_in_the_tree_of_errors() -> None:
    known = {name for name, value in vars(builtins).items() if is_exception(value)}
    known |= {name for name, value in vars(errors).items() if is_exception(value)}
    elsewhere = [
        f"{path}:{node.lineno}: {node.name}"
        for path in MODULES
        if path != ROOT / "errors.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in known for base in node.bases)
        and node.name not in NOT_IN_THE_TREE
    ]

    assert not elsewhere, listed("these belong in errors.py", elsewhere)


def test_the_docstring_of_errors_draws_its_tree() -> None:
    drawn: list[tuple[str, str | None]] = []
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)(\w+(?:Error|Exception|Crash))\b", line):
            depth, name = len(found[1]) // 4, found[2]
            above[depth:] = [name]
            drawn.append((name, above[depth - 1] if depth else None))

    derived = [
        (name, None if name == "WaterspoutError" else getattr(errors, name).__bases__[0].__name__)
        for name in errors.__all__
        if name != "RunFailedError"  # which is told of below the tree
    ]
    assert sorted(drawn) == sorted(derived)


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_importing_the_library_needs_no_spark_and_starts_nothing() -> None:
    program = """if True:
        import json, sys
        started = []
        events = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system")
        sys.addaudithook(lambda event, args: event in events and started.append(event))
        import waterspout
        loaded = [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")]
        print(json.dumps({"loaded": loaded, "started": started}))
    """

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"loaded": [], "started": []}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import waterspout.spark.session", {"waterspout.spark.session"}),
        ("from waterspout import errors", {"waterspout.errors"}),
        ("from waterspout.state import _base", {"waterspout.state._base"}),
        ("from . import _kinds", {"waterspout.state._kinds"}),
        ("from ..spark import session", {"waterspout.spark.session"}),
        ("def f():\n    import pyspark.sql", {"pyspark.sql"}),
        ("if TYPE_CHECKING:\n    from pyspark.sql import DataFrame", {"pyspark.sql.DataFrame"}),
        ("importlib.import_module('pyspark')", {"pyspark"}),
    ],
)
def test_the_rules_see_every_way_to_import(source: str, expected: set[str]) -> None:
    found = {name for name, _ in imports_in(ast.parse(source), "waterspout.state")}

    assert found == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pickle as p\np.loads(b'')", "pickle.loads"),
        ("from pickle import loads as read\nread(b'')", "pickle.loads"),
        ("import pickle\nmap(pickle.loads, rows)", "pickle.loads"),
        ("import yaml\nyaml.load(text, Loader=L)", "yaml.load"),
        ("eval('1')", "eval"),
    ],
)
def test_the_rules_see_through_aliases(source: str, expected: str) -> None:
    assert expected in {name for name, _ in references_in(ast.parse(source))}


def listed(what: str, offenders: list[str]) -> str:
    """Return all offenders, one per line: who mends them wants to see them all."""
    return "\n".join([f"{what}:", *offenders])


def part_of(path: Path) -> str:
    """Return the part of the library that a file belongs to: `state`, `errors`, `__init__`."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def part_of_import(name: str) -> str | None:
    """Return the part that an import reaches, None if it reaches outside the library."""
    top, _, rest = name.partition(".")
    if top != "waterspout":
        return None
    part = rest.partition(".")[0]
    known = (ROOT / part).is_dir() or (ROOT / f"{part}.py").is_file()
    return part if part and known else "__init__"  # the root holds names of every part


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    relative = path.relative_to(SRC).with_suffix("")
    return list(imports_in(tree_of(path), ".".join(relative.parts[:-1])))


def imports_in(tree: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """Yield the full name and the line of all that a module imports, wherever it does so."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package.split(".")[: package.count(".") + 2 - level] if level else []
                prefix = ".".join([*base, *([module] if module else [])])
                yield from ((f"{prefix}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def references_of(path: Path) -> list[tuple[str, int]]:
    return list(references_in(tree_of(path)))


def references_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module uses, with its own aliases resolved."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                aliases |= {alias.asname: alias.name for alias in names if alias.asname}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                aliases |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                yield aliases.get(name, name), node.lineno
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                yield f"{aliases.get(name, name)}.{attribute}", node.lineno
