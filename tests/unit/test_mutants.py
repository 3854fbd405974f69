"""The table of planted faults fits the code: each can be planted, and changes a program that can be read."""

from __future__ import annotations

import ast

from tests.support.documents.pages import ROOT
from tests.support.mutants import MUTANTS


def test_every_fault_can_be_planted_and_has_a_name_of_its_own() -> None:
    for mutant in MUTANTS:
        text = (ROOT / "rendezvous" / f"{mutant.module}.py").read_text()
        assert text.count(mutant.old) == 1, mutant.name
        planted = text.replace(mutant.old, mutant.new)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text)), mutant.name
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
