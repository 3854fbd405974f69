"""Which parts an agent has, and what the order of an extension changes about them."""

from __future__ import annotations

import select
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import extensions
from launcher.agent import command, composition
from launcher.agent.membership import read_clock
from launcher.parts.host import PartHost
from launcher.parts.part import LatePart


@pytest.mark.parametrize("has_sink", [True, False])
def test_the_journal_is_written_at_the_end_if_events_go_out(monkeypatch: pytest.MonkeyPatch, has_sink: bool) -> None:
    """Also where it is an extension that takes them; for one that only shows the run, nothing is made at the end."""

    def add(node: Any, ask: composition.Ask) -> None:
        if has_sink:
            node.sinks.append(list)

    config = command.parse(["--standalone", "--serve=1234", "--hang-timeout=0", "train.py"], {})
    monkeypatch.setattr(extensions, "load_entry", lambda entry: add)
    parts = PartHost(select.poll(), read_clock, print)
    layout = SimpleNamespace(keeps_files=False, is_temporary=True)
    composition.add_parts(SimpleNamespace(config=config, layout=layout, parts=parts, sinks=[]))  # type: ignore[arg-type]
    journal = parts._places[0].part
    parts.close()
    assert isinstance(journal, LatePart)
    assert journal.is_written == has_sink
