"""No name of an earlier vocabulary comes back: the field's terms are in the glossary of docs/concepts.md.

The lists hold names of things, by kind, and not words: prose may speak of a place, a word or a way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.documents.pages import ROOT


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


CLASSES = words("""
    Appear Arrival Asked Attend Attendance Begin Benched Birth Board Bond Conclude Conversation Dialling End
    Entry Farewell Following Gate Given Greeting Ground Grove Hired Image Joining Lanes Leading Leash Ledger
    Look Looked Mark Mirror Narrator Obey Outsider Past Pauses Place Pursuit Resign Sealing Seen Sight Storm
    Strangers Switchboard Tell Told Tidings Trouble Ward Warden Way Words Yard
""")
FUNCTIONS = words("""
    attended beat benched blamed blow born detected echo fixed fresh gathered give_word gone held here hired
    kept look_again looked lost made offered parked said seat shown siblings sought stay taken tell tidings told
    told_by tolls walkers whole
""")
MODULES = words("""
    arrival attendance blame board conversation demand departure dialling echo farewell fitting foreign
    following forkserver greeting ground hearing hired image joined joining lanes leading leash leavings lineup
    looks masonry meanings meeting mending mirror namesakes narrator networked offered outsider overview pauses
    preloading predecessors preview pursuit redirects sealing shadows sharing siblings sight signs standing stay
    strangers switchboard talking terms tidings told trouble ward warden wishes words
""")
OPTIONS = ("toll", "tolls")


def list_sources() -> Iterator[tuple[Path, ast.Module]]:
    for tree in ("launcher", "rendezvous"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def test_no_class_or_function_has_a_name_of_before() -> None:
    found = []
    for path, tree in list_sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                found.append(f"class {node.name} in {path.relative_to(ROOT)}")
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.lstrip("_") in FUNCTIONS:
                found.append(f"function {node.name} in {path.relative_to(ROOT)}")
    assert found == []


def test_no_module_has_a_name_of_before() -> None:
    names = {part for path, _ in list_sources() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert sorted(names & MODULES) == []


def test_no_option_shows_a_name_of_before() -> None:
    from launcher.config.options.table import TABLE

    assert [option.name for option in TABLE if option.name in OPTIONS] == []
