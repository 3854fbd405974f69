"""Faults planted in the machine of agreement, one at a time, to see who notices: `python -m tests.support.mutants`.

Each is a mistake that one could make: a comparison turned round, a guard dropped, an age counted from the wrong end. It
is planted in a copy of the tree, and three layers look for it: the simulation, seed after seed until one breaks an
invariant; the transcripts; the unit tests. What they found stands in docs/internals/mutations.md. A fault that changes
nothing that anybody could see is no entry here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click

from tests.support.documents.pages import ROOT

TRANSCRIPTS = ("tests/protocol/test_transcripts.py", "tests/protocol/test_leading.py")
UNITS = ("tests/unit/rendezvous",)
LIMIT_S = 3000.0  # for one layer: a fault may be an endless loop


class Mutant(NamedTuple):
    """`old` stands once in the module of rendezvous/ and becomes `new`."""

    name: str
    module: str
    old: str
    new: str


class Found(NamedTuple):
    mutant: Mutant
    seed: str  # the first that shows it and the invariant that it breaks, or how many do not
    transcripts: str
    units: str


def read_mutants() -> list[Mutant]:
    """The table: a line "@ MODULE: NAME", the old text behind "-", the new one behind "+"."""
    found = []
    for entry in re.split(r"^@ ", (Path(__file__).parent / "mutants.txt").read_text(), flags=re.MULTILINE)[1:]:
        head, *lines = entry.splitlines()
        module, _, name = head.partition(": ")
        old, new = ("\n".join(line[1:] for line in lines if line[:1] == sign) for sign in "-+")
        found.append(Mutant(name, module, old, new))
    return found


MUTANTS = read_mutants()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default=150, show_default=True, help="How many seeds to simulate with each.")
@click.option("--from", "begin", default=0, show_default=True, help="The first seed.")
@click.option("--processes", default=2, show_default=True, help="How many mutants at a time.")
@click.option("--layers", default="simulation,transcripts,units", show_default=True, help="Which to ask.")
@click.argument("words", nargs=-1)
def main(seeds: int, begin: int, processes: int, layers: str, words: tuple[str, ...]) -> None:
    """Plant one fault after the other, those whose names hold WORDS or all, and tell who notices it."""
    chosen = [each for each in MUTANTS if not words or any(word in f"{each.module}: {each.name}" for word in words)]
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(lambda each: examine(each, begin, seeds, layers.split(",")), chosen)
        for each in found:
            row = (each.mutant.module, each.mutant.name, each.seed, each.transcripts, each.units)
            print(f"| {' | '.join(row)} |", flush=True)


def examine(mutant: Mutant, begin: int, seeds: int, layers: list[str]) -> Found:
    """Plant it in a copy of the tree and ask each layer."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        plant(mutant, tree)
        seed = transcripts = units = "not asked"
        if "simulation" in layers:
            seed = _simulate(tree, begin, seeds)
        if "transcripts" in layers:
            transcripts = _test(tree, TRANSCRIPTS)
        if "units" in layers:
            units = _test(tree, UNITS)
        return Found(mutant, seed, transcripts, units)


def plant(mutant: Mutant, tree: Path) -> None:
    """Copy what the tests need, with the fault in it."""
    names = ("launcher", "rendezvous", "docs/reference", "tests")
    copied = subprocess.run(["tar", "-c", *names, "pyproject.toml"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=tree, input=copied.stdout, check=True)
    path = tree / "rendezvous" / f"{mutant.module}.py"
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise click.ClickException(f"{mutant.name}: what it changes is {text.count(mutant.old)} times in {path.name}")
    path.write_text(text.replace(mutant.old, mutant.new))


def _simulate(tree: Path, begin: int, seeds: int) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--first", "--seeds", f"{begin}:{begin + seeds}"]
    done = _run(command, tree)
    if done is None:
        return "no end"
    if done.returncode == 0:
        return f"not in {seeds}"
    first = done.stderr.splitlines()[0] if done.stderr else ""
    seed, _, what = first.removeprefix("seed ").partition(": ")
    return f"{seed} ({what.split(':')[0] if not what.startswith('Traceback') else 'exception'})"


def _test(tree: Path, files: tuple[str, ...]) -> str:
    done = _run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not server", "-p", "no:cacheprovider", *files], tree
    )
    if done is None:
        return "no end"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split("::")[-1].split(" - ")[0] if lines else "no" if done.returncode == 0 else "fails"


def _run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str] | None:
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    main()
