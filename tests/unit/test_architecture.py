"""The architecture as rules: which package may import which, and what no file or package may do.

Imports go downwards only, inside functions and for type checkers as well. If a module needs something from above, the
value it wants belongs lower.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each package may import those before it. "" is the package's own __init__; "extensions" the table of them, which is
# strings and may be read anywhere; "extensions/" every folder there.
ORDER = {
    "rendezvous": (
        "", "values", "errors", "codec", "settings", "reasons", "records", "sentences", "stores", "events", "peers",
        "policy", "state", "member", "leader", "machine", "driver",
    ),
    "launcher": (
        "extensions", "model", "config", "hardware", "locality", "placement", "worker", "supervisor", "logs",
        "ranks", "parts", "views", "diagnosis", "agent", "cli", "meshctl", "calls", "", "__main__", "extensions/",
    ),
}  # fmt: skip

# Decisions: they touch no clock, file, thread or socket.
PURE = (
    "launcher.agent.lifecycle", "launcher.config.config", "launcher.config.options.*", "launcher.config.schedulers",
    "launcher.diagnosis.answer", "launcher.diagnosis.evidence", "launcher.logs.reports.failure_class",
    "launcher.supervisor.heartbeats", "launcher.diagnosis.progress", "launcher.diagnosis.recorder",
    "launcher.diagnosis.request", "launcher.diagnosis.stack_groups", "launcher.diagnosis.stragglers",
    "launcher.diagnosis.verdict", "launcher.hardware.cpu_binding",
    "launcher.extensions.measure.grouping", "launcher.extensions.measure.procedure",
    "launcher.extensions.measure.rates", "launcher.extensions.measure.schedule", "launcher.extensions.notices.notice",
    "launcher.extensions.ray.agent_pool",
    "launcher.extensions.ray.bundles", "launcher.extensions.ray.environment", "launcher.extensions.ray.options",
    "launcher.locality.contract", "launcher.locality.keys", "launcher.locality.merge", "launcher.logs.reports.report",
    "launcher.logs.reports.symptoms", "launcher.meshctl.doctor.checks", "launcher.meshctl.live.log_lines",
    "launcher.meshctl.live.ranks", "launcher.meshctl.live.top_state",
    "launcher.meshctl.status", "launcher.meshctl.table",
    "launcher.model.[!c]*", "launcher.views.goodput", "launcher.views.sinks.node_demand",
    "launcher.views.event_view", "launcher.views.requests", "launcher.views.run_events", "launcher.views.run_json",
    "launcher.views.run_view",
    "launcher.views.sentences", "launcher.views.stored_run", "launcher.views.timeline",
    "launcher.placement.*", "rendezvous.codec", "rendezvous.errors", "rendezvous.events",
    "rendezvous.leader*", "rendezvous.machine", "rendezvous.member*", "rendezvous.policy*", "rendezvous.reasons",
    "rendezvous.records", "rendezvous.sentences", "rendezvous.settings", "rendezvous.state*",
)  # fmt: skip
IMPURE_MODULES = {"os", "time", "random", "asyncio", "threading", "socket", "subprocess", "logging"}


def read_modules(root: Path) -> dict[str, ast.Module]:
    """Every module of the packages under `root`: dotted name -> syntax tree; a package goes by its name and a dot."""
    found = {}
    for package in ("launcher", "rendezvous"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(), filename=str(path))
    return found


MODULES = read_modules(ROOT)


def list_imports(name: str, tree: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    """What a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively; write the whole name"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("__import__", "import_module") and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def name_extension(module: str) -> str:
    """The folder of launcher/extensions/ that a module belongs to; "" for all others, the table of extensions too."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["launcher", "extensions"] and len(parts) > 2 else ""


def read_imports(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Module -> what it imports."""
    return {name: [*list_imports(name, tree, modules)] for name, tree in modules.items()}


IMPORTS = read_imports(MODULES)


def find_imports_into_extensions(imports: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """(module, extension) where the module imports any of the extension and is not part of it."""
    return {
        (name, name_extension(imported))
        for name, all_imported in imports.items()
        for imported in all_imported
        if name_extension(imported) not in ("", name_extension(name))
    }


def find_upward_imports(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Imports that do not go downwards; those into extensions are `find_imports_into_extensions`."""
    found = []
    for name, all_imported in imports.items():
        package, _, rest = name.partition(".")
        for imported in all_imported:
            other, _, other_rest = imported.partition(".")
            if package == "rendezvous" and other == "launcher":
                found.append(f"{name} imports {imported}: rendezvous does not know launcher")
            if package != other or package not in ORDER or name_extension(imported):
                continue
            order = ORDER[package]
            own = "extensions/" if name_extension(name) else rest.partition(".")[0]
            target = other_rest.partition(".")[0]
            if own not in order:
                found.append(f"{name} is in no package of ORDER")
            elif target not in order or order.index(target) > order.index(own):
                found.append(f"{name} imports {imported}: imports go downwards")
    return found


def find_impure_imports(imports: Mapping[str, Iterable[str]]) -> list[str]:
    pure = (name for name in imports if any(fnmatch.fnmatchcase(name, pattern) for pattern in PURE))
    return [
        f"{name} imports {imported}: pass in what it needs"
        for name in pure
        for imported in imports[name]
        if imported.partition(".")[0] in IMPURE_MODULES
    ]


def find_circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """What reaches itself: a way from one to itself; empty where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def list_edges(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Module -> the modules it imports."""
    return {name: {one for one in found if one in imports and one != name} for name, found in imports.items()}


def list_package_edges(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Package -> those it imports; each extension is a package."""

    def name_package(module: str) -> str:
        return ".".join(module.split(".")[: 3 if name_extension(module) else 2])

    edges: defaultdict[str, set[str]] = defaultdict(set)
    for name, others in list_edges(imports).items():
        own = name_package(name)
        edges[own] |= {other for other in map(name_package, others) if other != own}
    return edges


def test_imports_go_downwards_and_in_no_circle() -> None:
    assert find_upward_imports(IMPORTS) == []
    assert find_circle(list_edges(IMPORTS)) == []
    assert find_circle(list_package_edges(IMPORTS)) == []


def test_the_kernel_imports_no_extension_and_decisions_touch_nothing_outside() -> None:
    assert find_imports_into_extensions(IMPORTS) == set()
    assert find_impure_imports(IMPORTS) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("launcher.model.node", "from launcher.placement.planner import plan"),
        ("launcher.supervisor.handle", "if TYPE_CHECKING:\n    from launcher.agent import loop"),
        ("launcher.model.mesh", "__import__('launcher.cli')"),
        ("launcher.ranks.ports", "def late():\n    from launcher.agent.loop import Agent"),
        ("launcher.brand_new", "import launcher.model.node"),
        ("rendezvous.records", "import launcher.model.node"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    assert len(find_upward_imports(read_imports({module: ast.parse(source)}))) == 1


@pytest.mark.parametrize(
    ("module", "source", "is_found"),
    [
        ("launcher.agent.loop", "from launcher.extensions.ray.options import split", True),
        ("launcher.meshctl.commands", "def late():\n    import launcher.extensions.ray.main", True),
        ("launcher.extensions.torchrun.member", "from launcher.extensions.ray import options", True),
        ("launcher.extensions.ray.main", "from launcher.extensions.ray import options", False),
        ("launcher.cli", "from launcher import extensions", False),
    ],
)
def test_an_import_into_an_extension_is_found(module: str, source: str, is_found: bool) -> None:
    imports = read_imports({module: ast.parse(source), "launcher.extensions": ast.parse("")})
    assert bool(find_imports_into_extensions(imports)) == is_found
    assert find_upward_imports(imports) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rendezvous.policy.decide", "import time"),
        ("launcher.model.mesh", "def late():\n    from os import path"),
        ("launcher.placement.planner", "import random"),
    ],
)
def test_an_impure_import_is_found(module: str, source: str) -> None:
    assert len(find_impure_imports(read_imports({module: ast.parse(source)}))) == 1


# --- fields ---


def find_undeclared_fields(tree: ast.AST) -> list[str]:
    """What a Struct's methods assign, and its fields do not name: msgspec refuses it, and mypy does not say so."""
    found = []
    for kind in ast.walk(tree):
        if isinstance(kind, ast.ClassDef) and any(ast.unparse(base) == "Struct" for base in kind.bases):
            declared = {
                one.target.id
                for one in kind.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
            assigned = {
                one.attr
                for one in ast.walk(kind)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and ast.unparse(one.value) == "self"
            }
            found += [f"{kind.name}.{name}" for name in sorted(assigned - declared)]
    return found


def test_a_struct_names_what_it_assigns_and_a_circle_is_found() -> None:
    assert [one for tree in MODULES.values() for one in find_undeclared_fields(tree)] == []
    late = ast.parse(
        "class A(Struct):\n    a: int\n    def b(self):\n        self.a, self.c = 1, 2\n        self.d[0] = 3"
    )
    assert find_undeclared_fields(late) == ["A.c"]
    imports = {"launcher.a.x": ["launcher.b.y"], "launcher.b.y": ["launcher.a.z"], "launcher.a.z": ["os"]}
    assert find_circle(list_edges(imports)) == []
    assert {*find_circle(list_package_edges(imports))} == {"launcher.a", "launcher.b"}
    imports["launcher.a.z"] = ["launcher.a.x"]
    assert {*find_circle(list_edges(imports))} == imports.keys()
    source = "import threading\nfrom rendezvous import errors\nfrom launcher.model.node import Node"
    assert find_upward_imports(read_imports({"launcher.hardware.accelerators.nvidia": ast.parse(source)})) == []


# --- sentences: what code needs of a message is a value beside it, since wording changes ---

READERS = {
    "startswith", "endswith", "find", "index", "split", "rsplit", "partition", "rpartition", "removeprefix",
    "removesuffix", "replace", "count", "search", "match", "fullmatch", "findall", "sub", "compile",
}  # fmt: skip
# Texts of other programs that code has to read: module -> the phrases, or their beginnings.
FOREIGN: dict[str, tuple[str, ...]] = {
    "launcher.calls.bootstrap": ("<frozen runpy>",),
    "launcher.cli": ("can't start new thread",),
    "launcher.diagnosis.stacks": ("not permitted",),
    "launcher.extensions.hints.start_failure": (
        "ModuleNotFoundError: No module named ",
        "arguments are required",
        "unrecognized arguments",
        "(?:/dev/shm",
    ),
    "launcher.hardware.linux.kernel_log": ("(?:Out of memory|Memory cgroup out of memory)",),
    "launcher.extensions.ray.cluster": ("node has died", "node was terminated", "node is dead"),
    "launcher.extensions.hints.hidden": ("<frozen runpy>", "ModuleNotFoundError: No module named "),
    "launcher.extensions.hints.last_words": ("^Current thread 0x", "(?:<frozen "),  # of faulthandler
    "launcher.extensions.hints.nothing_to_run": ("can't find '__main__' module",),
    "launcher.logs.reports.symptoms": ("Traceback (most recent call last)",),
    "launcher.meshctl.doctor.redact": (r"\b(?:hf_|sk-",),  # "BEGIN PRIVATE KEY"
    "launcher.meshctl.plan.cluster": ("Object ", " field ", " at"),
    "rendezvous.codec": (" in ",),
}


def find_reads(tree: ast.AST) -> Iterator[str]:
    """The phrases of two words or more that code compares with, searches for or splits at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            operands = node.args
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        else:
            continue
        for operand in operands:
            if isinstance(operand, (ast.Constant, ast.Tuple, ast.Set, ast.JoinedStr)):
                for part in ast.walk(operand):
                    if isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)):
                        text = part.value if isinstance(part.value, str) else part.value.decode("latin-1")
                        if re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}|[a-z]{2,} $|^ [a-z]{2,}", text):
                            yield text


def test_no_code_reads_a_sentence() -> None:
    found = {
        name: [text for text in find_reads(tree) if not text.startswith(FOREIGN.get(name, ()))]
        for name, tree in MODULES.items()
    }
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ('"giving up" in sentence', ["giving up"]),
        ('sentence.startswith(("run ", "x"))', ["run "]),
        ('sentence.split(",")', []),
        ('re.search(r"is gone now", sentence)', ["is gone now"]),
    ],
)
def test_what_code_reads_of_a_sentence(source: str, reads: list[str]) -> None:
    assert list(find_reads(ast.parse(source))) == reads


# A command that has one thread; and texts, which are no structs.
DECODING = {"rendezvous.codec", "launcher.meshctl.plan.cluster"}


def test_only_the_codec_decodes_structs() -> None:
    """Else two threads may be the first to meet a struct, which ends the process: see `codec.find_decoder`."""
    found = set()
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                called = ast.unparse(node.func)
                is_plain = called.endswith("json.decode") and words.get("type", "dict[str, ").startswith("dict[str, ")
                if re.search(r"msgspec\.(json\.decode|convert)$|\bDecoder$", called) and not is_plain:
                    found.add(name)
    assert found == DECODING
