"""Every path and module that a docstring, a comment or a page names exists."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.documents.pages import ROOT, pages

FOLDERS = "launcher|rendezvous|tests|docs|examples|benchmarks"
PATH = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w./*-]*\w")
MODULE = re.compile(r"(?<![\w./-])(?:launcher|rendezvous|tests)(?:\.\w+)+")
TEXT = re.compile(r'^ *r?""".*?"""|#[^\n]*', re.MULTILINE | re.DOTALL)
# Made by a run and kept out of the repository until one on that hardware has been.
ABSENT = {"benchmarks/records/hardware/gpu.jsonl"}


def list_texts(source: str) -> list[str]:
    """The docstrings, the texts below fields and the comments of a module."""
    return TEXT.findall(source)


@cache
def is_path(path: str) -> bool:
    names = (path, f"{path}.py")
    if "*" in path:
        return any(any(ROOT.glob(name)) for name in names)
    return any((ROOT / name).exists() for name in names) or path in ABSENT


@cache
def is_module(name: str) -> bool:
    """Whether this is a module, or something that the text of a module mentions."""
    at, words = ROOT, name.split(".")
    while words and (at / words[0]).is_dir():
        at /= words.pop(0)
    if words and (at / f"{words[0]}.py").exists():
        at /= f"{words.pop(0)}.py"
    source = at if at.is_file() else at / "__init__.py"
    return not words or (source.exists() and re.search(rf"\b{words[0]}\b", source.read_text()) is not None)


def find_stale(text: str) -> set[str]:
    stale = {path for path in PATH.findall(text) if not is_path(path)}
    return stale | {name for name in MODULE.findall(text) if not is_module(name)}


def test_every_path_and_module_that_a_text_names_is_there() -> None:
    modules = [path for folder in FOLDERS.split("|") for path in sorted((ROOT / folder).rglob("*.py"))]
    stale = [(path, name) for path in modules for text in list_texts(path.read_text()) for name in find_stale(text)]
    stale += [(page, name) for page in pages() for name in find_stale(page.read_text())]
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in stale]


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("see launcher/model/text.py, `docs/start` and tests/unit", set()),
        ("see launcher/model/txt.py", {"launcher/model/txt.py"}),
        ("`rendezvous.records.Spec` and launcher.model", set()),
        ("`rendezvous.records.Spek`", {"rendezvous.records.Spek"}),
        ("at https://example.org/docs/none.md", set()),
    ],
)
def test_a_pointer_is_followed(text: str, stale: set[str]) -> None:
    assert find_stale(text) == stale
