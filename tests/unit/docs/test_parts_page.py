"""The example on the page about parts: what it shows is run, and a host can have it."""

from __future__ import annotations

import re
import select
from pathlib import Path
from typing import Any

from launcher.parts.host import PartHost
from launcher.parts.part import Fact
from rendezvous.events import StartRound
from tests.support.reasons import because

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/internals/parts.md"


def start(round: int) -> StartRound:
    return StartRound(round, 0, 2, "h:1", "")


def make_fact(what: object, at: float) -> Fact:
    return Fact(what, 1, at, 0.0)


def test_the_example_does_what_its_test_says() -> None:
    part, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"start": start, "share": None, "fact": make_fact, "reason": because("growth")}
    exec(compile(part, "part", "exec"), names)
    exec(compile(test, "test", "exec"), names)
    assert len((part + test).splitlines()) <= 40
    said: list[str] = []
    host = PartHost(select.poll(), lambda: 200.0, said.append)
    host.add(names["SlowRounds"](60.0, said.append))
    host.tell(make_fact(names["RoundStarting"](start(3), None), 140.0))
    host.run(print)
    host.close()
    assert said == ["round 3 still runs after 60 s"]


def test_the_page_lists_every_fact() -> None:
    """Those of the kernel's own, what it tells the agreement, and what the parts of the diagnosis publish."""
    own = (ROOT / "launcher/parts/part.py").read_text().partition("# --- facts")[2].partition("# --- effects")[0]
    found = re.findall(r"^class (\w+)", own, flags=re.MULTILINE)
    found += re.findall(r"_submit\(events\.(\w+)", (ROOT / "launcher/agent/loop.py").read_text())
    for path in (ROOT / "launcher/diagnosis/part").glob("*.py"):
        found += re.findall(r"Publish\(\s*(\w+)\(", path.read_text())
    assert {"WaitUnexplained", "HangEnded", "RoundExamined"} <= set(found)
    table = PAGE.read_text().partition("## Facts")[2].partition("## Effects")[0]
    assert [name for name in found if f"`{name}`" not in table] == []
