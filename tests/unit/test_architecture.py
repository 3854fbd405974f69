"""The architecture as rules: which package may import which, and what no file or package may do.

Imports go downwards only, inside functions and for type checkers as well. If a module needs something from above, the
value it wants belongs lower.
"""

from __future__ import annotations

import ast
import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
# What still imports an extension: (module, extension) -> what takes the place of the import. It only gets shorter.
INTO_EXTENSIONS: dict[tuple[str, str], str] = {}
ENTRIES_MAX = 15  # of a package, without __init__, __main__ and py.typed
TOP_ENTRIES_MAX = 20  # with those three
INIT_LINES_MAX = 30  # of functions and classes in all __init__.py: they name what is public, no more

# Decisions: they touch no clock, file, thread or socket.
PURE = (
    "launcher.agent.lifecycle", "launcher.config.config", "launcher.config.options.*", "launcher.config.schedulers",
    "launcher.diagnosis.answer", "launcher.diagnosis.evidence", "launcher.logs.reports.failure_class",
    "launcher.supervisor.heartbeats", "launcher.diagnosis.progress", "launcher.diagnosis.recorder",
    "launcher.diagnosis.request", "launcher.diagnosis.stack_groups", "launcher.diagnosis.stragglers",
    "launcher.diagnosis.verdict", "launcher.hardware.cpu_binding",
    "launcher.extensions.measure.grouping", "launcher.extensions.measure.procedure",
    "launcher.extensions.measure.rates", "launcher.extensions.measure.schedule", "launcher.extensions.notices.notice",
    "launcher.extensions.page.view",
    "launcher.extensions.ray.agent_pool",
    "launcher.extensions.ray.bundles", "launcher.extensions.ray.environment", "launcher.extensions.ray.options",
    "launcher.locality.contract", "launcher.locality.keys", "launcher.locality.merge", "launcher.logs.reports.report",
    "launcher.logs.reports.symptoms", "launcher.meshctl.doctor.checks", "launcher.meshctl.live.log_lines",
    "launcher.meshctl.live.ranks", "launcher.meshctl.live.top_state",
    "launcher.meshctl.status.agents", "launcher.meshctl.status.state", "launcher.meshctl.table",
    "launcher.model.[!c]*", "launcher.views.goodput", "launcher.views.sinks.node_demand",
    "launcher.views.node_report", "launcher.views.run_events",
    "launcher.views.timeline",
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
INITS = {
    ".".join(path.relative_to(ROOT).parent.parts)
    for package in ("launcher", "rendezvous")
    for path in (ROOT / package).rglob("__init__.py")
}


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


def find_imports_into_extensions(modules: Mapping[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, extension) where the module imports any of the extension and is not part of it."""
    return {
        (name, name_extension(imported))
        for name, tree in modules.items()
        for imported in list_imports(name, tree, modules)
        if name_extension(imported) not in ("", name_extension(name))
    }


def find_upward_imports(modules: Mapping[str, ast.Module]) -> list[str]:
    """Imports that do not go downwards; those into extensions are `find_imports_into_extensions`."""
    found = []
    for name, tree in modules.items():
        package, _, rest = name.partition(".")
        for imported in list_imports(name, tree, modules):
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


def find_impure_imports(modules: Mapping[str, ast.Module]) -> list[str]:
    pure = (name for name in modules if any(fnmatch.fnmatchcase(name, pattern) for pattern in PURE))
    return [
        f"{name} imports {imported}: pass in what it needs"
        for name in pure
        for imported in list_imports(name, modules[name], modules)
        if imported.partition(".")[0] in IMPURE_MODULES
    ]


def find_circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """What reaches itself, in groups (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in edges:
        if node not in index:
            visit(node)
    return found


def list_edges(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> those it imports."""
    return {
        name: {one for one in list_imports(name, tree, modules) if one in modules and one != name}
        for name, tree in modules.items()
    }


def list_package_edges(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Package -> those it imports, without what is to go; each extension is a package."""

    def name_package(module: str) -> str:
        return ".".join(module.split(".")[: 3 if name_extension(module) else 2])

    edges: defaultdict[str, set[str]] = defaultdict(set)
    for name, others in list_edges(modules).items():
        own = name_package(name)
        kept = (other for other in others if (name, name_extension(other)) not in INTO_EXTENSIONS)
        edges[own] |= {other for other in map(name_package, kept) if other != own}
    return edges


def test_imports_go_downwards() -> None:
    assert find_upward_imports(MODULES) == []


def test_the_kernel_imports_no_extension_and_no_extension_another() -> None:
    assert find_imports_into_extensions(MODULES) == INTO_EXTENSIONS.keys()


def test_decisions_touch_no_clock_file_or_socket() -> None:
    assert find_impure_imports(MODULES) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert find_circles(list_edges(MODULES)) == []


def test_no_packages_import_each_other_in_a_circle() -> None:
    assert find_circles(list_package_edges(MODULES)) == []


def test_an_exit_code_is_defined_once() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is int:
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id.startswith("EXIT_"):
                        homes[name].append(target.id)
    assert list(homes) == ["rendezvous.errors"]


def test_a_package_has_few_entries() -> None:
    counts = {}
    for name in INITS - {"launcher"}:
        folder = ROOT.joinpath(*name.split("."))
        inner = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        counts[name] = len(inner - {"__init__", "__main__"})
    assert {name: count for name, count in counts.items() if count > ENTRIES_MAX} == {}
    top = [path for path in (ROOT / "launcher").iterdir() if path.name != "__pycache__"]
    assert len(top) <= TOP_ENTRIES_MAX


def test_an_init_file_names_what_is_public_and_no_more() -> None:
    lines = 0
    for name in INITS:
        tree = MODULES[name]
        assert ast.get_docstring(tree), f"{name} has no docstring"
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        lines += sum((node.end_lineno or 0) - node.lineno + 1 for node in tree.body if isinstance(node, kinds))
    assert lines <= INIT_LINES_MAX


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
    assert len(find_upward_imports({module: ast.parse(source)})) == 1


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
    modules = {module: ast.parse(source), "launcher.extensions": ast.parse("")}
    assert bool(find_imports_into_extensions(modules)) == is_found
    assert find_upward_imports(modules) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rendezvous.policy.decide", "import time"),
        ("launcher.model.mesh", "def late():\n    from os import path"),
        ("launcher.placement.planner", "import random"),
    ],
)
def test_an_impure_import_is_found(module: str, source: str) -> None:
    assert len(find_impure_imports({module: ast.parse(source)})) == 1


def test_a_circle_is_found() -> None:
    texts = {"launcher.a.x": "import launcher.b.y", "launcher.b.y": "import launcher.a.z", "launcher.a.z": ""}
    modules = {name: ast.parse(text) for name, text in texts.items()}
    assert find_circles(list_edges(modules)) == []
    assert find_circles(list_package_edges(modules)) == [["launcher.a", "launcher.b"]]
    modules["launcher.a.z"] = ast.parse("from launcher.a import x")
    assert find_circles(list_edges(modules)) == [["launcher.a.x", "launcher.a.z", "launcher.b.y"]]


def test_an_import_downwards_is_allowed() -> None:
    source = "import threading\nfrom rendezvous import errors\nfrom launcher.model.node import Node"
    assert find_upward_imports({"launcher.hardware.accelerators.amd": ast.parse(source)}) == []


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


def test_a_struct_names_the_fields_that_it_assigns() -> None:
    assert [one for tree in MODULES.values() for one in find_undeclared_fields(tree)] == []
    late = ast.parse(
        "class A(Struct):\n    a: int\n    def b(self):\n        self.a, self.c = 1, 2\n        self.d[0] = 3"
    )
    assert find_undeclared_fields(late) == ["A.c"]
