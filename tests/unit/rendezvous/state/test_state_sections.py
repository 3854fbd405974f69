"""The parts of the agreement keep to their sections of the state: found in the syntax, not by a search for names.

A part is a module of functions. It stores nothing, is given the state (or a section of it) and the time, and changes
its own section only; what it wants of another part it asks for with an intent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.documents.pages import ROOT

OWN = {
    "member/admission": "membership", "member/join": "membership", "member/lease": "lease",
    "member/local_round": "round", "member/notes": "", "member/refusal": "",
    "member/outage": "outage", "member/stale_watch": "stale_watch", "member/leave": "leaving",
    "leader/election": "election leadership takeover", "leader/takeover": "takeover", "leader/leader": "leadership",
    "leader/observe": "seen", "leader/commit": "commit", "leader/guarded_write": "leadership",
}  # fmt: skip
SECTIONS = {
    "Leadership": "leadership",
    "TakeoverState": "takeover",
    "RoundState": "round",
    "CommitState": "commit",
    "Observations": "seen",
}
NAMES = {"membership", "lease", "round", "outage", "stale_watch", "leaving", "election", "leadership", "seen", "commit"}
SERVICES = {"requests", "cache", "peers"}  # with methods of their own, for everybody
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update", "move"}


def parts() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT / "rendezvous").with_suffix(""))
        for package in ("member", "leader")
        for path in (ROOT / "rendezvous" / package).glob("*.py")
        if path.stem != "__init__"
    )


def find_section(node: ast.expr, known: dict[str, str]) -> str:
    """The section that an expression is a part of; empty if it is none."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Subscript):
        return find_section(node.value, known)
    if not isinstance(node, ast.Attribute):
        return ""
    if node.attr in NAMES | SERVICES | {"takeover"} and find_section(node.value, known) in (
        "state",
        "leadership",
        "election",
    ):
        return node.attr
    return find_section(node.value, known)


def list_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef))


def find_changes(function: ast.FunctionDef) -> Iterator[str]:
    """The sections that this function, with the functions in it, changes itself."""
    known = {"state": "state"}
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
            known[node.arg] = SECTIONS.get(node.annotation.id, known.get(node.arg, ""))
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and find_section(value, known):
                        known[name.id] = find_section(value, known)
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [one for each in node.targets for one in (each.elts if isinstance(each, ast.Tuple) else [each])]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func]
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                yield find_section(target, known)


@pytest.mark.parametrize("part", parts())
def test_a_part_is_functions_that_change_their_own_section(part: str) -> None:
    tree = ast.parse((ROOT / "rendezvous" / f"{part}.py").read_text())
    assert not [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    own = {*OWN[part].split(), ""}
    for function in list_functions(tree):
        changed = set(find_changes(function)) - own
        assert not changed, f"{function.name} of {part} changes {', '.join(sorted(changed))}"


@pytest.mark.parametrize("part", parts())
def test_no_part_knows_the_machine(part: str) -> None:
    tree = ast.parse((ROOT / "rendezvous" / f"{part}.py").read_text())
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in named if module and module.startswith(("rendezvous.machine", "rendezvous.driver"))]
    other = "rendezvous.leader" if part.startswith("member/") else "rendezvous.member"
    assert not [module for module in named if module and module.startswith(other)]


def test_the_search_finds_another_section_and_every_part_has_its_own() -> None:
    source = """
def advance(state, now):
    lease, here = state.lease, state.round
    here.status = 1
    def on_reply(answer):
        lease.keys.add(answer)
        del state.election.unaware_until[answer]
"""
    function = next(list_functions(ast.parse(source)))
    assert set(find_changes(function)) == {"round", "lease", "election"}
    assert parts() == sorted(OWN)
