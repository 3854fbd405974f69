"""The sentence of each kind of reason: what people read, once, and that every reason that is made has one."""

from __future__ import annotations

import ast
import inspect
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.model import sentences as launcher_sentences
from launcher.model.errors import describe as describe_any
from launcher.model.errors import give_hint as give_any_hint
from rendezvous import sentences
from rendezvous.reasons import Reason
from rendezvous.sentences import HINTS, SENTENCES, describe, give_hint

ROOT = Path(__file__).parents[2]
TABLES = {**SENTENCES, **launcher_sentences.SENTENCES}
A, AB = (Reason.of("nodes", names=names, count=len(names)) for names in (("a",), ("a", "b")))
ENOUGH, LOST = Reason.of("store-error", error="2 nodes are enough"), Reason.of("lost", nodes=A, round=4)
USED = Reason.of("restarts-used", used=3, allowed=3)


def because(kind: str, /, **values: Any) -> Reason:
    return Reason.of(kind, **values)


NAMES = because("placement/names", names=("a", "b"), count=5)
FIXED, SMALL = because("placement/fixed-size", mesh="dp=2,tp=8"), because("placement/too-small", ranks=8)
SHORT = because("placement/nodes-missing", mesh="dp=2,tp=8", nodes=2, devices=8, present=1, most=0)
SAME_RANK = because("placement/same-node-rank", node="a", other="b", rank=1)
UNSPLIT = because("placement/unsplit", ranks=210, nodes=30, now_ranks=252, now_nodes=32, cost=3920.0, now_cost=9328.0)


def read_reason(text: str) -> Reason:
    """What a line of the table says: `kind(name=value)`, one of the names above, or several joined by +."""
    calls = re.sub(r"([a-z][\w-]*(?:/[\w-]+)?)\(", r'because("\1", ', text)
    first, *others = (eval(call, globals()) for call in calls.split(" + "))
    assert isinstance(first, Reason)
    return first.add(*others)


def read_table(sign: str) -> list[tuple[Reason, str]]:
    """The lines of the table that have this sign between a reason and its sentence, or its hint."""
    lines = Path(__file__).with_name("sentences.txt").read_text().splitlines()
    rows = (line.partition(f"  {sign}") for line in lines if not line.startswith("#"))
    return [(read_reason(text), sentence.strip()) for text, found, sentence in rows if found]


EXAMPLES = read_table("->")


@pytest.mark.parametrize(("reason", "sentence"), EXAMPLES, ids=lambda value: getattr(value, "kind", None))
def test_people_read(reason: Reason, sentence: str) -> None:
    assert describe_any(reason) == sentence


def test_every_reason_and_hint_has_its_sentence_with_its_values_and_is_shown_here() -> None:
    assert {reason.kind for reason, _ in EXAMPLES} == set(TABLES)
    assert {kind for _, kind, _ in MADE} == set(TABLES)
    assert not [f"{place}: {kind}" for place, kind, names in MADE if names != list_names(TABLES[kind])]
    assert set(HINTS) <= set(SENTENCES)
    assert set(launcher_sentences.HINTS) <= set(launcher_sentences.SENTENCES)
    assert not [place for place, kind, _ in MADE if place.startswith("rendezvous") and kind not in SENTENCES]
    assert all("/" in kind for kind in launcher_sentences.SENTENCES)


# --- what is made


def list_made(folder: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Where a reason is made, its kind, and the names of its values."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if node.func.attr == "of" and isinstance(owner, ast.Name) and owner.id == "Reason":
                (kind,) = node.args
                assert isinstance(kind, ast.Constant), f"{path}:{node.lineno}: the kind must be a literal"
                names = frozenset(keyword.arg or "**" for keyword in node.keywords)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", kind.value, names


def list_names(sentence: sentences.Sentence) -> frozenset[str]:
    """The values that a sentence has."""
    if callable(sentence):
        return frozenset(inspect.signature(sentence).parameters)
    return frozenset(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


MADE = [*list_made("rendezvous"), *list_made("launcher")]


# --- hints, and reasons of others

VERBS = ("add", "change", "choose", "give", "install", "lower", "make", "raise", "start", "stop", "use")


@pytest.mark.parametrize(("reason", "hint"), read_table("=>"), ids=lambda value: getattr(value, "kind", None))
def test_a_hint_says_what_to_do(reason: Reason, hint: str) -> None:
    assert give_any_hint(reason) == hint
    assert not hint or hint.split()[0] in VERBS


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (because("from-tomorrow", node="a", limit_s=2.5), "from-tomorrow node=a limit_s=2.5"),
        (because("lost", node="a"), "lost node=a"),
        (because("no-node-joined", for_s="soon"), "no-node-joined for_s=soon"),
        (because("quarantined", cause="x", times=1), "quarantined cause=x times=1"),
        (because("nodes", names=3, count="x"), "nodes names=3 count=x"),
        (because("other-version", run="x"), "other-version run=x"),
        (because("no-node-joined", for_s=10**400), f"no-node-joined for_s={10**400}"),
        (because("store-failing", error=5, hint=""), "store-failing error=5 hint="),
        (because("from-tomorrow").add(because("late", round=2)), "from-tomorrow; joined after round 2 had started"),
        (LOST.add(because("x")), "node a lost in round 4; x"),
    ],
)  # fmt: skip
def test_what_another_program_wrote_is_shown_as_it_is(reason: Reason, shown: str) -> None:
    assert describe(reason) == shown
    assert give_hint(reason) == ""


def test_what_another_program_wrote_is_shown_and_added_reasons_told() -> None:
    for text in (5, True, ("a",)):
        reason = because("agent/gave-up", text=text)
        assert describe_any(reason) == str(reason)
    added = because("late", round=2).add(because("spare-leaves"))
    assert describe(because("all-succeeded").add(added)) == (
        "all workers succeeded; joined after round 2 had started; leaving"
    )
