"""Code and commands in the documents: they parse, and name what there is."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib
import inspect
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from scripts.docs_tables import TABLES, filled, remedy
from tests.docs.pages import ROOT, Block, blocks, pages, prose
from tests.test_exports import SURFACE
from waterspout import Config, errors
from waterspout.cli.app import app
from waterspout.metrics._catalog import CATALOG

PYTHON = [block for page in pages() for block in blocks(page, "python")]


def test_blocks_of_python_are_python():
    wrong = []
    for block in PYTHON:
        try:
            ast.parse(block.text)
        except SyntaxError as error:
            wrong.append(f"{block}: {error}")

    assert len(PYTHON) > 70
    assert not wrong, "\n".join(wrong)


def test_what_blocks_import_of_the_library_is_there():
    missing = []
    for block in PYTHON:
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("waterspout"):
                module = importlib.import_module(node.module)
                missing += [
                    f"{block}: {node.module} has no {alias.name}"
                    for alias in node.names
                    if not hasattr(module, alias.name)
                ]

    assert not missing, "\n".join(missing)


@cache
def public() -> dict[str, Any]:
    """Return the public names; one that means two things is left out."""
    found: dict[str, Any] = {}
    for module, names in SURFACE.items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if found.setdefault(name, value) is not value:
                found[name] = None
    return {name: value for name, value in found.items() if value is not None}


@cache
def methods() -> dict[str, set[str]]:
    """Return what the methods of public classes may be given by name."""
    found: dict[str, set[str]] = {}
    for value in public().values():
        for name, inner in inspect.getmembers(value if isinstance(value, type) else object):
            if callable(inner) and not name.startswith("_"):
                found.setdefault(name, set()).update(_keywords(inner) or {"*"})
    return found


def _keywords(value: Any) -> set[str] | None:
    """Return the keywords that a call takes; None if they cannot be told."""
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def own_names(tree: ast.AST) -> set[str]:
    """Return the names that a block defines or takes from elsewhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Import(names=names):
                found |= {alias.asname or alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names):
                if not (module or "").startswith("waterspout"):
                    found |= {alias.asname or alias.name for alias in names}
    return found


def wrong_keywords(block: Block) -> list[str]:
    """Return the keywords of calls that the library does not take."""
    tree = ast.parse(block.text)
    own, wrong = own_names(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        taken: set[str] | None = None
        match node.func:
            case ast.Name(id=name) if name in public() and name not in own:
                taken = _keywords(public()[name])
            case ast.Attribute(
                value=ast.Name(id=name), attr="opaque" | "transactional" | "non_transactional"
            ) if name in public():
                taken = _keywords(public()[name])
            case ast.Attribute(attr=name) if name in methods() and "*" not in methods()[name]:
                taken = methods()[name]
        if taken is not None:
            wrong += [f"{block}: {ast.unparse(node.func)}({key}=)" for key in given - taken]
    return wrong


def test_options_in_blocks_are_those_that_the_library_takes():
    wrong = [line for block in PYTHON for line in wrong_keywords(block)]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "Config(max_spout_pendin=3)",
        "SQLiteState.opaque('a.db', tabel='t')",
        "stream.tumbling_window(10, Count(), 'n', event_tim='at')",
        "exactly_once(state, keyz=1).also(state, keyz=1)",
    ],
)
def test_an_option_that_there_is_not_would_be_found(text):
    wrong = wrong_keywords(Block(ROOT / "README.md", "python", text))

    # The columns of a sink may have any name, as keywords.
    assert bool(wrong) != text.startswith("exactly_once")


def test_blocks_of_yaml_and_ini_are_that():
    for page in pages():
        for block in blocks(page, "yaml"):
            yaml.safe_load(block.text)
        for block in blocks(page, "ini"):
            configparser.ConfigParser(strict=False).read_string(block.text)


def test_the_options_of_the_page_on_deploying_are_those_of_a_run():
    (text,) = (block.text for block in blocks(ROOT / "docs/how-to/deploy.md", "yaml"))

    config = Config.from_dict(yaml.safe_load(text))

    assert (config.max_spout_pending, config.strict, config.outage_secs) == (4, True, 1800)


def test_the_rules_of_the_page_on_alerting_name_metrics_that_there_are():
    (text,) = (block.text for block in blocks(ROOT / "docs/how-to/alert.md", "yaml"))
    known = {name for metric in CATALOG for name in metric.series}

    named = set(re.findall(r"\bwaterspout_\w+", text))

    assert len(named) >= 5
    assert named - known == set()


def test_tables_are_what_the_code_says():
    stale = [
        str(page.relative_to(ROOT))
        for page in pages()
        if filled(text := page.read_text(encoding="utf-8")) != text
    ]

    assert stale == [], "run `make docs-tables`"


def test_every_table_has_a_place():
    text = "".join(page.read_text(encoding="utf-8") for page in pages())

    missing = [name for name in TABLES if f"<!-- made: {name} -->" not in text]

    assert missing == []


def test_every_error_says_what_to_do():
    silent = [
        name
        for name in errors.__all__
        if isinstance(getattr(errors, name), type) and not remedy(getattr(errors, name))
    ]

    assert silent == [], "add a paragraph `What to do: ...` to the docstring"


# What stands in for an argument in a list of commands, or ends one.
_INLINE = re.compile(r"`((?:\.venv/bin/)?waterspout [^`]+)`")
_INDENTED = re.compile(r"^    (?:\.venv/bin/)?(waterspout [^\n]+)", re.M)


def commands() -> list[tuple[Path, str]]:
    """Return every command of the library that a document shows."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        lines = [
            *(line[2:] for block in blocks(page, "console") for line in block.text.splitlines()
              if line.startswith("$ ")),
            *_INLINE.findall(text),
            *_INDENTED.findall(prose(page)),
        ]  # fmt: skip
        for line in lines:
            shown = re.split(r" {2,}|#|;|, | \| | && ", line.removeprefix(".venv/bin/"))[0]
            if shown.startswith("waterspout "):
                found.append((page, shown.strip()))
    return found


@cache
def program() -> Any:
    """Return the program with all its commands."""
    return typer.main.get_command(app)


def unknown_in(command: str) -> list[str]:
    """Return the parts of a command line that the program does not know."""
    at: Any = program()
    known = {"--debug", "--version", "--install-completion", "--show-completion", "-h", "--help"}
    for word in shlex.split(command)[1:]:
        if word.startswith("-") and word.strip("-."):
            if word.partition("=")[0] not in known:
                return [f"{command}: no option {word}"]
        elif hasattr(at, "commands"):
            if word not in at.commands:
                return [f"{command}: no command {word}"]
            at = at.commands[word]
            known |= {name for each in at.params for name in (*each.opts, *each.secondary_opts)}
    return []


def test_commands_in_the_documents_are_those_of_the_program():
    found = commands()

    wrong = [
        f"{page.relative_to(ROOT)}: {line}"
        for page, command in found
        for line in unknown_in(command)
    ]

    assert len(found) > 100
    assert not wrong, "\n".join(wrong)


def test_a_command_that_there_is_not_would_be_found():
    assert unknown_in("waterspout state explian FILE KEY")
    assert unknown_in("waterspout run FILE --until-idel")
    assert not unknown_in("waterspout run FILE --until-idle -c strict=true")


def test_targets_of_make_in_the_documents_are_there():
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

    named = {
        target
        for page in pages()
        for target in re.findall(r"`make ([a-z-]+)`|^(?:    |\$ )make ([a-z-]+)",
                                 page.read_text(encoding="utf-8"), re.M)
        for target in target
        if target
    }  # fmt: skip

    assert len(named) > 10
    assert named - made == set()
