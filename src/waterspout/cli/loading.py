"""From `FILE[:NAME]` to the topology that it means."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from waterspout._safe_repr import with_article
from waterspout.errors import TopologyError, WaterspoutError
from waterspout.topology._builder import TopologyBuilder
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology

__all__ = ["load_batched", "load_stateful", "load_topology", "names_a_file"]

_DEFAULT_NAME = "topology"


def load_topology(target: str) -> Topology | TridentTopology:
    """Run the file, with its folder importable, and return the topology of that name."""
    path, name = _split(target)
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "is not there"
        raise TopologyError(f"{path} {kind}; give the Python file that holds the topology")
    module = _run_file(path)
    found = getattr(module, name, None)
    if inspect.isroutine(found):
        found = _call(found, path, name)
    if not isinstance(found, Topology | TridentTopology):
        raise TopologyError(_not_found(module, path, name, found))
    return found


def load_stateful(target: str) -> TridentTopology | TransactionalTopology:
    """Load a topology that must have states: of Trident, or of bolts that were given some."""
    found = load_topology(target)
    if isinstance(found, TransactionalTopology) and found.states:
        return found
    if isinstance(found, TransactionalTopology):
        raise TopologyError(
            f"{found.name!r} is a transactional topology without states: what its committers write "
            "only they know. set_committer_bolt(...).with_state(...) gives them one."
        )
    if isinstance(found, Topology):
        raise TopologyError(
            f"{found.name!r} is a topology of spouts and bolts: it has no states. What its bolts "
            "hold in memory ends with the run."
        )
    return found


def load_batched(target: str) -> TridentTopology | TransactionalTopology:
    """Load a topology that works in batches."""
    found = load_topology(target)
    if isinstance(found, TridentTopology | TransactionalTopology):
        return found
    raise TopologyError(
        f"{found.name!r} is a topology of spouts and bolts: it has no batches. Messages that "
        "cannot be processed are among its dead letters."
    )


def names_a_file(target: str) -> bool:
    """Tell whether a target means a file, or a topology in one, rather than a bare name."""
    path, _ = _split(target)
    return path.suffix == ".py" or path.is_file()


def _split(target: str) -> tuple[Path, str]:
    file, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not Path(target).exists():
        return Path(file), name
    return Path(target), _DEFAULT_NAME


def _run_file(path: Path) -> ModuleType:
    before = set(sys.modules)
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = "topology_file_" + "".join(c if c.isalnum() else "_" for c in path.stem)
    spec = importlib.util.spec_from_loader(
        name, importlib.machinery.SourceFileLoader(name, str(path.absolute()))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.absolute()))
    loader = spec.loader
    caches, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a check writes nothing
    try:
        _in_user_code(lambda: loader.exec_module(module), path)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = caches
    from waterspout.spark.starting import ship_by_value

    # Workers have neither this file nor its folder; what they need of it goes along by value.
    ship_by_value([module, *_neighbours(path.parent.absolute(), before)])
    return module


def _neighbours(folder: Path, before: set[str]) -> list[ModuleType]:
    """Return the modules that the file has imported from its own folder."""
    found = []
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name not in before and "." not in name and origin is not None:
            files = (folder / f"{name}.py", folder / name / "__init__.py")
            if Path(origin).absolute() in files:
                found.append(module)
    return found


def _call(function: Callable[[], Any], path: Path, name: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TopologyError(
            f"{name}() in {path} takes arguments; a function that makes a topology takes none"
        ) from error
    return _in_user_code(function, path)


def _in_user_code(function: Callable[[], Any], path: Path) -> Any:
    """Call code of the file; an error names the line in it."""
    try:
        return function()
    except SystemExit as error:
        raise TopologyError(
            f"{_line_of(error, path)} ends the program while it is loaded; put what is to run only "
            "as a script under: if __name__ == '__main__':"
        ) from error
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        if not isinstance(error, WaterspoutError):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise TopologyError(f"{_line_of(error, path)}: {text}") from error


def _line_of(error: BaseException, path: Path) -> str:
    """Return the file, as it was given, and the line of it that led to an error."""
    file = str(path.absolute())
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{path if error.filename == file else error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _not_found(module: ModuleType, path: Path, name: str, found: object) -> str:
    if name in vars(module):
        what = with_article(type(found).__name__) if found is not None else "None"
        said = f"{name} in {path} is {what}, not a topology."
    else:
        said = f"{path} has nothing named {name}."
    topologies = _names_of(module, Topology | TridentTopology)
    if topologies:
        choices = " or ".join(f"{path}:{k}" for k in topologies)
        return f"{said} It has {_listed(topologies)}: use {choices}."
    builders = _names_of(module, TopologyBuilder)
    if builders or isinstance(found, TopologyBuilder):
        made = f"{name} = {(builders or ['builder'])[0]}.create_topology(...)"
        return f"{said} A builder is not a topology yet: call create_topology, as in {made}"
    makers = [
        k
        for k, v in vars(module).items()
        if inspect.isfunction(v) and v.__module__ == module.__name__
    ]
    if makers:
        has = f"It has no topology, and the functions {_listed(makers)}"
        return f"{said} {has}; if one of them returns a topology, use {path}:{makers[-1]}."
    return (
        f"{said} It has no topology: assign a TridentTopology, or what create_topology() returns, "
        f"to a variable named {name}."
    )


def _names_of(module: ModuleType, kind: Any) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, kind)]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
