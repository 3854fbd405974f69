"""The English of the product: how messages are written, and that no code reads one.

A message is written once, for people. Code that looks for a word in it breaks when the wording gets better, so what
code needs is a value beside the sentence. Texts of other programs must be read; each place is listed with its words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.documents.pages import ROOT

SOURCES = [path for package in ("launcher", "rendezvous") for path in sorted((ROOT / package).rglob("*.py"))]
WORDS_MIN = 4  # of a message; what is shorter is a label
# A ratchet, of all messages; the patterns also meet some sentences that are well written.
SHARE_MAX = 0.01
# What a technical writer of the field would not write: a clause for a noun, a weak verb, a person for a program.
UNUSUAL = re.compile(
    r"\b(?:nobody|somebody|whoever|everybody|stands?|stood|lies|anew|behind|beside|so (?:long|many)|waited for|goes? on"
    r"|is said|will do|likewise|the like|is no|write it like|names (?:one|others|the|it|another)"
    r"|(?:says|tells|told|said) (?:so|it|that|which|what|whom|who|where|why|how))\b|^(?:What|Who|Whoever|Whatever)\b"
)
READERS = {
    "startswith", "endswith", "find", "index", "split", "rsplit", "partition", "rpartition", "removeprefix",
    "removesuffix", "replace", "count", "search", "match", "fullmatch", "findall", "sub", "compile",
}  # fmt: skip
# Texts of other programs that code has to read: module -> the phrases, or their beginnings.
FOREIGN: dict[str, tuple[str, ...]] = {
    "launcher.calls.bootstrap": ("<frozen runpy>",),
    "launcher.cli": ("can't start new thread",),
    "launcher.hardware.linux.kernel_log": ("(?:Out of memory|Memory cgroup out of memory)",),
    "launcher.extensions.ray.cluster": ("node has died", "node was terminated", "node is dead"),
    "launcher.logs.reports.symptoms": ("Traceback (most recent call last)",),
    "launcher.meshctl.plan.cluster": ("Object ", " field ", " at"),
    "launcher.meshctl.usage_errors": ("is not in the range x>=", "is less than "),
    "rendezvous.codec": (" in ",),
}


def list_messages(tree: ast.AST) -> Iterator[str]:
    """The texts of a module for people, an X in place of each value; no docstrings."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts | parts:
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z']+", text)) >= WORDS_MIN:
            yield text


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


def test_few_messages_are_worded_unusually() -> None:
    messages = [text for path in SOURCES for text in list_messages(ast.parse(path.read_text()))]
    unusual = [text for text in messages if UNUSUAL.search(text)]
    assert len(messages) > 1000
    assert len(unusual) / len(messages) <= SHARE_MAX, unusual


def test_no_code_reads_a_sentence() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        own = [text for text in find_reads(ast.parse(path.read_text())) if not text.startswith(FOREIGN.get(name, ()))]
        if own:
            found[name] = own
    assert not found


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ('"""Says what it is and does."""', []),
        ('x = f"node {a} goes on with {b}"', ["node X goes on with X"]),
        ('x = "too short"', []),
    ],
)
def test_the_messages_of_a_module(source: str, messages: list[str]) -> None:
    assert list(list_messages(ast.parse(source))) == messages


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
