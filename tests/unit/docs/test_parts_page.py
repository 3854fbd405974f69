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

PAGE = Path(__file__).parents[3] / "docs/internals/parts.md"


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
