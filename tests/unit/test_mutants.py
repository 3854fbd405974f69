"""The table of planted faults fits the code: each can be planted, and changes a program that can be read."""

from __future__ import annotations

import ast

import pytest

from tests.support.documents.pages import ROOT
from tests.support.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_the_fault_can_be_planted(mutant: Mutant) -> None:
    text = (ROOT / "rendezvous" / f"{mutant.module}.py").read_text()
    assert text.count(mutant.old) == 1
    planted = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))


def test_there_are_enough_and_each_has_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
