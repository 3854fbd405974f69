"""The rules of the repository that a machine can check: what a file may hold, and that what is written twice agrees."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from docs import events, meshctl, options, settings, tested
from docs.casts import picture as cast
from docs.images import diagrams, idea, life, packages, round
from tests.support.documents.pages import ROOT, anchors, blocks, links, pages

FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "launcher", "rendezvous", "tests")
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".svg", ".typed", ".sh", ".sbatch", ".service", ""}
# A ratchet: it does not grow unless the commit that raises it says why. Lines of code are those that are not blank,
# comment, docstring or the text below a field, so that explaining costs nothing.
CODE_MAX = 43_946
DECISIONS = ROOT / "docs/internals/decisions"
# A record: the level of its heading, its number and title; its status and date are the line below.
RECORD = r"^(#|###) (\d{4}) (.+)\n\nStatus: accepted\. Date: \d{4}-\d\d-\d\d\.$"
# Brackets keep a pattern from finding itself.
UNWANTED = {
    r"/(?:wor[k]|roo[t]|tm[p]/venv|User[s])/": "a path of somebody's machine",
    r"\b(?:TOD[O]|FIXM[E]|XX[X])\b": "unfinished work belongs in an issue",
    r"(?i)py[p]i\.org|python[h]osted|download\.py[t]orch": "the host of a package index; pip's own settings name it",
    r"(?i)\b(?:chat[b]ot|assistan[t]|workplac[e])\b": "the project speaks of itself alone",
}


def files() -> list[Path]:
    """Every text file of the repository, without what tools make."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a work tree
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.suffix in TEXT and "__pycache__" not in path.parts)


FILES = files()
MODULES = [path for path in FILES if path.suffix == ".py"]
SOURCES = [path for path in MODULES if path.relative_to(ROOT).parts[0] in ("launcher", "meshrun.py", "rendezvous")]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_holds_anything_unwanted() -> None:
    found = [
        f"{name(path)}: {match[0]}: {why}"
        for path in FILES
        for pattern, why in UNWANTED.items()
        for match in re.finditer(pattern, path.read_text())
    ]
    assert not found


def count_code(source: str) -> int:
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_the_product_does_not_grow_unnoticed() -> None:
    count = sum(count_code(path.read_text()) for path in SOURCES)
    assert count <= CODE_MAX, f"{count:_} lines of code: raise CODE_MAX in the commit that names the feature"


def test_every_link_leads_somewhere() -> None:
    broken: list[str] = []
    for page in pages():
        for link in links(page):
            target, _, anchor = link.partition("#")
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{name(page)}: {link}")
    assert not broken


def test_every_page_is_in_the_tree_once() -> None:
    """A decision is found by the index of decisions; the release notes are made of the changelog."""
    named = re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text())
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = {page for page in there if not re.match(r"internals/decisions/\d", page)}
    assert sorted(named) == sorted({*listed, "release-notes.md"})
    assert {*named} - {"index.md", "release-notes.md"} <= {*links(ROOT / "docs/index.md")}, "the home page lists all"


def test_a_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in pages():
        text = page.read_text()
        commands = re.findall(r"`make ([a-z]+)(?: WHAT=(\w+))?", text)
        for block in blocks(page):
            commands += re.findall(r"^\$? ?make ([a-z]+)(?: WHAT=(\w+))?", block.text, re.MULTILINE)
        assert {f"{target}-{what}" if what else target for target, what in commands} <= targets, name(page)


def test_make_runs_the_tests_of_every_directory() -> None:
    lists = re.findall(r"^\w+_TESTS := \$\(wildcard (.*)\)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = {directory for words in lists for directory in words.split()}
    there = {name(path.parent) for path in (ROOT / "tests").glob("**/test_*.py")}
    assert all(any(directory.startswith(parent) for parent in named) for directory in there)


def list_missing_imports(path: Path, text: str) -> Iterator[str]:
    """What this text imports of the repository that is not there."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in FOLDERS:
            continue
        base = ROOT / (node.module or "").replace(".", "/")
        source = next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.exists()), None)
        names = symtable.symtable(source.read_text(), name(source), "exec").get_identifiers() if source else ()
        for alias in node.names:
            inner = base / alias.name
            is_module = inner.is_dir() or inner.with_suffix(".py").exists()
            if not is_module and alias.name not in names and "__getattr__" not in names:
                yield f"{name(path)}:{node.lineno} {node.module}.{alias.name}"


def test_what_a_test_imports_of_the_repository_exists() -> None:
    """Also what only `make slow` and `make bench` run, in environments of their own."""
    modules = [path for path in MODULES if path not in SOURCES]  # mypy reads the product
    assert [found for path in modules for found in list_missing_imports(path, path.read_text())] == []
    text = "from tests.unit.test_repository import gone, ROOT\n"
    assert list(list_missing_imports(ROOT / "x.py", text)) == ["x.py:1 tests.unit.test_repository.gone"]


@pytest.mark.parametrize(
    ("page", "make"),
    [
        ("options", options.page),
        ("settings", settings.page),
        ("meshctl", meshctl.page),
        ("events", events.page),
        ("tested", tested.page),
    ],
    ids=["options", "settings", "meshctl", "events", "tested"],
)
def test_a_page_that_is_made_from_the_code_is_what_it_says(page: str, make: Callable[[], str]) -> None:
    assert (ROOT / f"docs/reference/{page}.md").read_text() == make(), "make docs writes it anew"


def test_pictures_are_what_their_scripts_draw() -> None:
    for script in (idea, life, packages, round):
        file = Path(script.__file__)
        assert file.with_suffix(".svg").read_text() == script.picture(), f"python {name(file)} draws it anew"
    assert cast.CAST.with_suffix(".svg").read_text() == cast.picture(), "python docs/casts/picture.py draws it anew"
    for file_name, draw in diagrams.DIAGRAMS.items():
        assert (ROOT / "docs/images" / file_name).read_text() == draw(), "python docs/images/diagrams.py draws it anew"


def test_every_decision_has_its_form_and_is_linked_from_the_code() -> None:
    """The records of the agreement are sections of one page; every other record is a page named by its number."""
    records: dict[str, str] = {}  # number -> what a link to it ends with
    for page in DECISIONS.glob("*.md"):
        for level, number, title in re.findall(RECORD, page.read_text(), flags=re.MULTILINE):
            anchor = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", f"{number} {title}".lower()))
            assert level == "###" or page.name.startswith(f"{number}-"), page.name
            records[number] = page.name if level == "#" else f"{page.name}#{anchor}"
    pages_with_records = {target.partition("#")[0] for target in records.values()}
    assert {page.name for page in DECISIONS.glob("*.md")} - {"index.md"} == pages_with_records
    assert sorted(records) == [f"{number:04}" for number in range(1, len(records) + 1)]
    listed = [target for target in links(DECISIONS / "index.md") if target != "agreement.md"]
    assert listed == [records[number] for number in sorted(records)]
    parts = {path: path.relative_to(ROOT).parts for path in MODULES}
    code = "\n".join(
        path.read_text() for path in MODULES if parts[path][0] != "tests" or parts[path][1] == "simulation"
    )
    linked = set(re.findall(r"^ *# docs/internals/decisions/(\S+)$", code, flags=re.MULTILINE))
    assert linked == set(records.values())
