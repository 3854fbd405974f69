"""The table of extensions is strings, and says what the folders of launcher/extensions have: no more, and no less."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import extensions
from launcher.hardware.accelerators.contract import KINDS
from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import meshctl
from launcher.ranks.environments.contract import Environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launcher/extensions"
NAMED = [value for name, value in vars(extensions).items() if name.isupper() and isinstance(value, (str, dict))]
ENTRIES = sorted({entry for value in NAMED for entry in (value.values() if isinstance(value, dict) else [value])})


def list_definitions() -> Iterator[tuple[str, ast.stmt]]:
    """Every class and function at the top of a module of an extension: `module:name`, and its syntax tree."""
    for path in sorted(FOLDER.glob("*/**/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                yield f"{module}:{node.name}", node


def find_classes(*methods: str) -> set[str]:
    """The classes that have all of these methods."""
    return {
        entry
        for entry, node in list_definitions()
        if isinstance(node, ast.ClassDef)
        and {*methods} <= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    }


def test_the_table_imports_nothing_and_names_every_part_of_an_extension() -> None:
    tables = [
        part for part in ast.parse((FOLDER / "__init__.py").read_text()).body if not isinstance(part, ast.FunctionDef)
    ]
    nodes = [node for part in tables for node in ast.walk(part)]
    assert not [node for node in nodes if isinstance(node, (ast.Import, ast.Call))]
    assert {node.module for node in nodes if isinstance(node, ast.ImportFrom)} <= {"__future__", "typing"}
    for path in FOLDER.glob("*/command.py"):
        extensions.load_entry(f"launcher.extensions.{path.parent.name}.command:__name__")
    made = {name: command.callback for name, command in meshctl.commands.items()}
    found = {name: f"{function.__module__}:{function.__name__}" for name, function in made.items() if function}
    assert {name: entry for name, entry in found.items() if "extensions" in entry} == extensions.COMMANDS
    assert find_classes("detect") == {*extensions.DEVICES.values()}
    assert {kind: extensions.load_entry(entry).kind for kind, entry in extensions.DEVICES.items()} == {
        kind: kind for kind in extensions.DEVICES
    }
    kernels = {path.stem for path in (ROOT / "launcher/hardware/accelerators").glob("*.py")}
    assert KINDS.keys() - kernels == extensions.DEVICES.keys()
    methods = {name for name in vars(Environment) if not name.startswith("_")}
    assert find_classes(*methods) == {*extensions.ENVIRONMENTS.values()}
    drawn = {entry for entry, _ in list_definitions() if ".pictures." in entry and ":render_" in entry}
    assert drawn == {*extensions.PICTURES.values()}
    (plan,) = (command for name, command in meshctl.commands.items() if name == "plan")
    assert {f"--{name}" for name in extensions.PICTURES} <= {word for one in plan.params for word in one.opts}


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_the_table_names_is_there(entry: str) -> None:
    assert callable(extensions.load_entry(entry)) or entry in (*extensions.OPTIONS.values(), extensions.CONTROLLERS)
