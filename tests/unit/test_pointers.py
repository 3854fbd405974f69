"""Every path and module that a docstring, a comment or a page names exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents.pages import ROOT, pages

FOLDERS = "launcher|rendezvous|tests|docs|examples|benchmarks"
PATH = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w./*-]*\w")
MODULE = re.compile(r"(?<![\w./-])(?:launcher|rendezvous|tests)(?:\.\w+)+")
# Made by a run and kept out of the repository until one on that hardware has been.
ABSENT = {"benchmarks/records/hardware/gpu.jsonl"}


def list_texts(source: str) -> Iterator[str]:
    """The docstrings, the texts below fields and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def is_path(path: str, root: Path = ROOT) -> bool:
    return any(any(root.glob(name)) for name in (path, f"{path}.py")) or path in ABSENT


def is_module(name: str, root: Path = ROOT) -> bool:
    """Whether this is a module, or something that the text of a module mentions."""
    at, words = root, name.split(".")
    while words and (at / words[0]).is_dir():
        at /= words.pop(0)
    if words and (at / f"{words[0]}.py").exists():
        at /= f"{words.pop(0)}.py"
    source = at if at.is_file() else at / "__init__.py"
    return not words or (source.exists() and re.search(rf"\b{words[0]}\b", source.read_text()) is not None)


def find_stale(text: str, root: Path = ROOT) -> set[str]:
    stale = {path for path in PATH.findall(text) if not is_path(path, root)}
    return stale | {name for name in MODULE.findall(text) if not is_module(name, root)}


def test_every_path_and_module_that_a_text_names_is_there() -> None:
    modules = [path for folder in FOLDERS.split("|") for path in sorted((ROOT / folder).rglob("*.py"))]
    stale = [(path, name) for path in modules for text in list_texts(path.read_text()) for name in find_stale(text)]
    stale += [(page, name) for page in pages() for name in find_stale(page.read_text())]
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in stale]


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("see launcher/model/text.py, `docs/guides` and tests/unit", set()),
        ("see launcher/model/txt.py", {"launcher/model/txt.py"}),
        ("`rendezvous.records.Spec` and launcher.model", set()),
        ("`rendezvous.records.Spek`", {"rendezvous.records.Spek"}),
        ("at https://example.org/docs/none.md", set()),
    ],
)
def test_a_pointer_is_followed(text: str, stale: set[str]) -> None:
    assert find_stale(text) == stale
